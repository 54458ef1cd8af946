"""What `promptiter run`, `resume`, `rerun` and `learn` share: run to the end, show the outcome, exit with its code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

from promptiter.cli.options import Layout, Requirement
from promptiter.cli.output import SteadyConsole, console, divert_prints, echo, print_error, write_text
from promptiter.errors import PromptiterError, SetupError

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredRun
    from promptiter.config.file import ParsedConfig
    from promptiter.runlog.results import RunResult
    from promptiter.runs.apply import ApplyReport
    from promptiter.runs.directory import RunDirectory
    from promptiter.runs.next_commands import RunAddress


def execute(
    prepare: Callable[[], ConfiguredRun], *, folder: Path | None = None, test_now: bool = False, costs: bool = False
) -> NoReturn:
    """Build a run, run it to the end, show the outcome, and exit with its code. With a folder, resume that run."""
    from promptiter.cli.review import check_terminal

    with divert_prints():
        configured = prepare()
        try:
            if configured.config.review == "ask":
                check_terminal()
            if folder is None:
                check_requirement(configured)
            directory = configured.begin() if folder is None else configured.resume(folder)
            if folder is None:
                _print_warnings(configured, directory)
            result = _run(configured, directory, test_now=test_now)
        finally:
            configured.gateway.cache.close()
    for note in directory.notes:
        echo(f"note: {note}", color="yellow", err=True)
    config = configured.config
    applied = apply_at_end(directory.path, config.require, agent=configured.engine.agent) if config.apply else None
    end(
        result,
        directory.path,
        as_json=config.as_json,
        quiet=config.quiet,
        require=config.require,
        costs=costs,
        applied=applied,
        layout=config.layout,
    )


def end(
    result: RunResult,
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
    require: Requirement | None,
    costs: bool,
    applied: ApplyReport | PromptiterError | None = None,
    layout: Layout | None = None,
    address: RunAddress | None = None,
) -> NoReturn:
    """Show the outcome of a run and what was applied, and exit with its code, or with that of its layout.

    With an `address`, the folder is a copy of a run that is elsewhere.
    """
    from promptiter.cli.exit_codes import FAILED, LAYOUT_CODES, NOT_SHOWN, choose_exit_code
    from promptiter.cli.views import run as run_view
    from promptiter.cli.views.apply import print_report
    from promptiter.cli.views.costs import print_costs
    from promptiter.engine.model_checks import UNCOUNTED_CALLS
    from promptiter.runs.apply import NotAdoptedError
    from promptiter.runs.round_records import find_status
    from promptiter.runs.summary import summarize

    summary = summarize(result, folder, address=address)
    exit_code = choose_exit_code(summary.outcome, require=require)
    if layout is not None and exit_code != NOT_SHOWN:
        exit_code = LAYOUT_CODES[layout][find_status(result)]
    if isinstance(applied, PromptiterError) and not isinstance(applied, NotAdoptedError):
        exit_code = FAILED
    if as_json:
        is_copy = address is not None
        text = run_view.result_as_json(result, folder, exit_code=exit_code, applied=applied, is_copy=is_copy)
        write_text(text, None)
    elif quiet:
        run_view.print_line(console(), summary)
        if UNCOUNTED_CALLS in summary.problems:
            echo(f"warning: {UNCOUNTED_CALLS}", err=True)
    else:
        run_view.print_end(console(), summary)
        if costs:
            print_costs(console(), summary)
    if exit_code == NOT_SHOWN and not as_json:
        why = f"not shown for new cases: {summary.obstacle}" if summary.obstacle else "no gain was shown"
        echo(f"--require unseen is not met: {why}", err=True)
    if isinstance(applied, NotAdoptedError):
        echo(f"note: {applied}", err=True)
    elif isinstance(applied, PromptiterError):
        print_error(f"the run ended, but its result was not applied: {applied}")
    elif applied is not None and not as_json:
        print_report(applied)
    raise typer.Exit(exit_code)


def check_requirement(configured: ConfiguredRun) -> None:
    """Refuse a run that cannot show its gain for new cases, if that is required."""
    if configured.config.require == "unseen" and (obstacle := configured.find_obstacle()) is not None:
        raise SetupError(f"--require unseen cannot be met: {obstacle}")


def _print_warnings(configured: ConfiguredRun, directory: RunDirectory) -> None:
    """Say before anything is spent what will not be changed, tested or applied, and that the budget is too low."""
    from promptiter.cli.views.forecast import describe_low_caps
    from promptiter.engine.new_cases import explain_too_few_inputs
    from promptiter.engine.outline import describe_kept_targets
    from promptiter.forecast.caps import read_caps
    from promptiter.runs.forecast_file import read_forecast

    checked = configured.checked
    test, forecast = checked.test, read_forecast(directory.path)
    unwritable = _find_unwritable(configured) if configured.config.apply else []
    few = None if test is None or checked.shape == "scorer" else explain_too_few_inputs(test)
    low = [] if forecast is None else describe_low_caps(forecast, read_caps(configured.gateway.budget))
    kept = describe_kept_targets(configured.engine.search, checked.snapshot, checked.targets, shape=checked.shape)
    unused = [*([] if kept is None else [kept]), *([] if few is None else [f"the test set will not be run: {few}"])]
    for warning in [*unused, *low, *unwritable]:
        echo(f"warning: {warning}", color="yellow", err=True)


def prepare_run(parsed: ParsedConfig) -> ConfiguredRun:
    """Build the run. All problems are reported together."""
    from promptiter.cli.review import check_terminal
    from promptiter.config.build import build_run
    from promptiter.runs.directory import check_folder

    problems = []
    checks: list[Callable[[], None]] = [
        partial(check_folder, parsed.config.runs),
        *([check_terminal] if parsed.config.review == "ask" else []),
    ]
    for check in checks:
        try:
            check()
        except SetupError as error:
            problems.append(str(error))
    return build_run(parsed, problems=problems)


def _run(configured: ConfiguredRun, directory: RunDirectory, *, test_now: bool) -> RunResult:
    """Run, and return the result; of a failed run, the result so far."""
    from promptiter.cli.review import make_reviewer
    from promptiter.engine.interrupts import Interrupt
    from promptiter.engine.run import RunFailedError
    from promptiter.observers.progress import RunProgress
    from promptiter.wording import path_from_here

    config, ledger = configured.config, configured.gateway.ledger
    interrupt = Interrupt(test_now=test_now)
    configured.watch_output_dir(interrupt)
    progress = RunProgress(SteadyConsole(), spent=lambda: ledger.snapshot().of_models)
    reviewer = make_reviewer(configured, directory.path, progress, interrupt)
    try:
        with contextlib.nullcontext() if config.quiet else progress:
            if not config.quiet:
                progress.say(f"{path_from_here(directory.path)}/")
                progress.catch_up(directory.journal.read())
            return directory.run_sync(
                observers=() if config.quiet else (progress,),
                interrupt=interrupt,
                reviewer=reviewer,
                notify=progress.say,
            )
    except RunFailedError as error:
        if config.as_json:  # otherwise the summary names the cause
            print_error(str(error))
        return error.result


def apply_at_end(folder: Path, require: Requirement | None, *, agent: object = None) -> ApplyReport | PromptiterError:
    """Apply the result of a run, or say why that was not done."""
    from promptiter.agents.in_place.agent import InPlaceAgent
    from promptiter.api import apply_run

    sources = {}
    if isinstance(agent, InPlaceAgent):
        agent.close()  # it may still have a candidate in place
        sources = agent.sources
    try:
        with divert_prints():
            return apply_run(folder, sources=sources, require=require)
    except PromptiterError as error:
        return error


def _find_unwritable(configured: ConfiguredRun) -> list[str]:
    """Warnings about surfaces whose new values could not be applied at the end."""
    from promptiter.agents.in_place.agent import InPlaceAgent
    from promptiter.config.run_project import open_project
    from promptiter.runs.apply_plan import find_problems

    agent, given = configured.engine.agent, configured.configuration
    if given is None:
        return []
    found = open_project(
        configured.config,
        file=Path(given.file),
        sources=agent.sources if isinstance(agent, InPlaceAgent) else None,
    )
    problems = find_problems(
        configured.checked.targets,
        structure=configured.checked.snapshot,
        sources=found.sources,
        project=found.project,
    )
    return [f"a new value could not be applied: {problem}" for problem in problems]
