"""Runs an optimization of `promptiter test optimize` to its end: lines per trial, the result, and the exit code."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from promptiter.cli.output import divert_prints, echo, print_error
from promptiter.wording import path_from_here

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredRun
    from promptiter.config.file import ParsedConfig
    from promptiter.runlog.results import RunResult
    from traces.model import Json


def execute_optimization(
    parsed: ParsedConfig | None,
    *,
    folder: Path | None,
    settings: Mapping[str, Json],
    quiet: bool,
    verbose: bool,
) -> int:
    """Begin a run, or resume that in `folder`, run it to the end, and return the exit code."""
    from promptiter.api import load_resume
    from promptiter.cli.exit_codes import LAYOUT_CODES
    from promptiter.cli.run_execution import prepare_run
    from promptiter.runs.layout_000.layout import Layout000
    from promptiter.runs.round_records import find_status

    with divert_prints():
        if parsed is not None:
            configured = prepare_run(parsed)
        else:
            assert folder is not None, "a run is begun or resumed"
            configured = load_resume(folder, settings=settings)
        try:
            if folder is None:
                print_warnings(configured)
            result = _run(configured, folder, quiet=quiet, verbose=verbose)
        finally:
            configured.gateway.cache.close()
    assert isinstance(configured.layout, Layout000), "the settings ask for it"
    _print_end(result, configured.layout.get_folder())
    return LAYOUT_CODES["000"][find_status(result)]


def print_warnings(configured: ConfiguredRun) -> None:
    """Print what a user should know before anything is spent."""
    from promptiter.config.agent_yaml.checks import find_warnings
    from promptiter.config.search import find_models_of_stages
    from promptiter.engine.model_checks import list_models_of_agent

    config = configured.config
    surfaces = map(configured.checked.snapshot.surface, configured.checked.targets)
    is_numeric = any(each.is_setting for each in surfaces)
    warnings = list(find_warnings(config.search, config.acceptance, is_numeric=is_numeric))
    if config.budget.max_usd is not None:
        asked = {*dict(list_models_of_agent(configured.engine.agent)).values(), *find_models_of_stages(config).values()}
        warnings += [
            f"the price of the model {name} is unknown: max_usd counts only the cost that it reports itself, if any"
            for name in sorted(asked)
            if configured.gateway.price(name) is None
        ]
    for warning in warnings:
        echo(f"warning: {warning}", color="yellow", err=True)


def _run(configured: ConfiguredRun, folder: Path | None, *, quiet: bool, verbose: bool) -> RunResult:
    from promptiter.cli.views.trial_lines import TrialLines
    from promptiter.engine.interrupts import Interrupt
    from promptiter.engine.run import RunFailedError
    from promptiter.runs.layout_000.layout import Layout000

    directory = configured.begin() if folder is None else configured.resume(folder)
    assert isinstance(configured.layout, Layout000), "the settings ask for it"
    interrupt = Interrupt()
    configured.watch_output_dir(interrupt)
    lines = TrialLines(configured.layout, verbose=verbose)
    if not quiet:
        echo(f"run {directory.path.name}", err=True)
    try:
        return directory.run_sync(
            observers=() if quiet else (lines,), interrupt=interrupt, notify=partial(echo, err=True)
        )
    except RunFailedError as error:
        return error.result


def _print_end(result: RunResult, folder: Path) -> None:
    from promptiter.runs.layout_000.header import read_layout_header

    header = read_layout_header(folder)
    invalid = result.stop.text if result.stop_reason == "invalid_eval" and result.stop is not None else None
    if cause := result.error or invalid:
        print_error(cause)
    echo(f"ended by {header.exit_reason}")
    echo(f"report: {path_from_here(folder / 'report.md')}")
