"""`promptiter run`, `resume` and `rerun`: optimize the agent of a promptiter.yaml, and show the outcome."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from promptiter.cli.commands.apply import apply_at_end, find_unwritable
from promptiter.cli.load import collect_settings
from promptiter.cli.options import (
    Apply,
    Concurrency,
    Config,
    ConfiguredJson,
    Costs,
    InitialProfile,
    MaxUsd,
    Quiet,
    Require,
    Requirement,
    Review,
    ReviewWay,
    Run,
    Runs,
    Seed,
    find_run_folder,
)
from promptiter.cli.output import SteadyConsole, console, divert_prints, echo, print_error, write_text
from promptiter.errors import PromptiterError, SetupError

if TYPE_CHECKING:
    from promptiter.config.configured_run import ConfiguredRun
    from promptiter.config.file import ParsedConfig
    from promptiter.runlog.results import RunResult
    from promptiter.runs.apply import ApplyReport
    from promptiter.runs.directory import RunDirectory


def run(
    config: Config = Path("promptiter.yaml"),
    max_rounds: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Maximum number of rounds; 0 only evaluates the baseline.")
    ] = None,
    max_usd: MaxUsd = None,
    concurrency: Concurrency = None,
    seed: Seed = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="SURFACE", help="Surfaces that may change: separated by commas, or repeat the option."),
    ] = None,
    initial_profile: InitialProfile = None,
    review: Review = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FOLDER", help="Create the folder of the run in this folder.")
    ] = None,
    keep_best_only: Annotated[
        bool | None,
        typer.Option("--keep-best-only/--keep-all", help="At the end, remove answers, traces and other candidates."),
    ] = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the configuration and a forecast, and run nothing.")
    ] = False,
) -> None:
    """Optimize an agent, and test the result.

    Finds the step that failed, patches the text behind it, and adopts only what one test shows to be better.

    During the search any gain is accepted. At the end baseline and best are run again, and one significance test
    decides what is adopted (`final_test` in CONFIG).

    Options override the keys of the same name in CONFIG.

    The first Ctrl-C finishes the work in progress, the second stops at once; `promptiter resume` continues either.

    `promptiter --help` explains the exit codes.
    """
    from promptiter.config.file import read_config

    names = [name.strip() for each in targets or () for name in each.split(",") if name.strip()]
    settings = collect_settings(
        max_rounds=max_rounds,
        budget={"max_usd": max_usd},
        evaluation={"concurrency": concurrency},
        seed=seed,
        targets=names or None,
        initial_profile=initial_profile,
        review=_parse_review(review),
        runs=runs,
        keep_best_only=keep_best_only,
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    if dry_run:
        _print_forecast(read_config(config, settings=settings))
        return
    _execute(partial(_prepare, read_config(config, settings=settings)), costs=costs)


def resume(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: Runs = None,
    final_test: Annotated[
        bool, typer.Option("--final-test", help="End the search after the current round, and test what was accepted.")
    ] = False,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
) -> None:
    """Resume an interrupted, failed or stopped run.

    Recorded model answers are reused at no cost.

    The configuration, the eval sets and the agent must not have changed since the run began; if they have, the error
    names the changes. Options may differ. A run that Python began is resumed, too, if its parts have names.
    To look at a run, use `promptiter show`.
    """
    from promptiter.api import load_resume
    from promptiter.runs.directory import read_finished_run
    from promptiter.runs.header import read_header

    folder = find_run_folder(run, runs)
    settings = collect_settings(
        evaluation={"concurrency": concurrency},
        review=_parse_review(review),
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    prepare = partial(load_resume, folder, settings=settings)
    try:
        _execute(prepare, folder=folder, test_now=final_test, costs=costs)
    except SetupError:
        if (finished := read_finished_run(folder)) is None:
            raise
        if apply is None:
            configuration = read_header(folder).configuration
            apply = configuration is not None and bool(configuration.document.get("apply"))
        applied = apply_at_end(folder, require) if apply else None
        _end(finished, folder, as_json=bool(as_json), quiet=bool(quiet), require=require, costs=costs, applied=applied)


def rerun(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: Runs = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
) -> None:
    """Start a new run with the settings of an earlier one.

    The settings come from its run.json, the agent and the eval sets are the current ones.
    """
    from promptiter.api import load_rerun

    folder = find_run_folder(run, runs)
    settings = collect_settings(
        evaluation={"concurrency": concurrency},
        review=_parse_review(review),
        runs=runs,
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    _execute(partial(load_rerun, folder, settings=settings), costs=costs)


def execute_run(parsed: ParsedConfig) -> NoReturn:
    """Run a configuration to the end, show the outcome, and exit with its code."""
    _execute(partial(_prepare, parsed))


def _print_forecast(parsed: ParsedConfig) -> None:
    """Print the effective configuration as YAML that can be run, and the forecast to standard error."""
    import yaml

    from promptiter.cli.views import forecast as forecast_view
    from promptiter.config.effective_config import build_effective_config

    with divert_prints():
        configured = _prepare(parsed)
        try:
            _check_requirement(configured)
            effective, forecast = build_effective_config(configured), configured.forecast()
        finally:
            configured.gateway.cache.close()
    if configured.config.as_json:
        write_text(forecast_view.forecast_as_json(forecast, effective.document), None)
        return
    if configured.config.quiet:
        forecast_view.print_forecast(console(), forecast)
        return
    if effective.left_out:
        echo(f"# Secrets are left out; write them as ${{VARIABLE}}: {', '.join(effective.left_out)}")
    echo(yaml.safe_dump(effective.document, sort_keys=False, allow_unicode=True, width=120), nl=False)
    echo(err=True)
    forecast_view.print_forecast(SteadyConsole(), forecast)


def _execute(
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
                _check_requirement(configured)
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
    _end(
        result,
        directory.path,
        as_json=config.as_json,
        quiet=config.quiet,
        require=config.require,
        costs=costs,
        applied=applied,
    )


def _end(
    result: RunResult,
    folder: Path,
    *,
    as_json: bool,
    quiet: bool,
    require: Requirement | None,
    costs: bool,
    applied: ApplyReport | PromptiterError | None = None,
) -> NoReturn:
    """Show the outcome of a run and what was applied, and exit with its code."""
    from promptiter.cli.exit_codes import FAILED, NOT_SHOWN, choose_exit_code
    from promptiter.cli.views import run as run_view
    from promptiter.cli.views.apply import print_report
    from promptiter.cli.views.costs import print_costs
    from promptiter.engine.model_checks import UNCOUNTED_CALLS
    from promptiter.runs.apply import NotAdoptedError
    from promptiter.runs.summary import summarize

    summary = summarize(result, folder)
    exit_code = choose_exit_code(summary.outcome, require=require)
    if isinstance(applied, PromptiterError) and not isinstance(applied, NotAdoptedError):
        exit_code = FAILED
    if as_json:
        write_text(run_view.result_as_json(result, folder, exit_code=exit_code, applied=applied), None)
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


def _check_requirement(configured: ConfiguredRun) -> None:
    """Refuse a run that cannot show its gain for new cases, if that is required."""
    if configured.config.require == "unseen" and (obstacle := configured.find_obstacle()) is not None:
        raise SetupError(f"--require unseen cannot be met: {obstacle}")


def _print_warnings(configured: ConfiguredRun, directory: RunDirectory) -> None:
    """Say before anything is spent that the test set is too small, the budget too low, or a text not to be applied."""
    from promptiter.cli.views.forecast import describe_low_caps
    from promptiter.engine.new_cases import explain_too_few_inputs
    from promptiter.forecast.caps import read_caps
    from promptiter.runs.forecast_file import read_forecast

    test, forecast = configured.checked.test, read_forecast(directory.path)
    unwritable = find_unwritable(configured) if configured.config.apply else []
    few = None if test is None else explain_too_few_inputs(test)
    low = [] if forecast is None else describe_low_caps(forecast, read_caps(configured.gateway.budget))
    for warning in [*([] if few is None else [f"the test set will not be run: {few}"]), *low, *unwritable]:
        echo(f"warning: {warning}", color="yellow", err=True)


def _prepare(parsed: ParsedConfig) -> ConfiguredRun:
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


def _parse_review(way: ReviewWay | None) -> ReviewWay | bool | None:
    return False if way == "no" else way
