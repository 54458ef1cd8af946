"""`promptiter run`, `resume` and `rerun`: optimize an agent as promptiter.yaml says, and say what came of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from promptiter.cli.output import SteadyConsole, console, say_error, write_text
from promptiter.errors import SetupError
from traces.model import Json

if TYPE_CHECKING:
    from promptiter.config.build import ConfiguredRun
    from promptiter.config.file import ReadConfig
    from promptiter.runlog.results import RunResult
    from promptiter.runs.directory import RunDirectory

Concurrency = Annotated[int | None, typer.Option("--concurrency", min=1, help="Cases at once.")]
Review = Annotated[
    bool | None, typer.Option("--review/--no-review", help="Ask about each patch: approve, edit or veto.")
]
Runs = Annotated[
    Path | None, typer.Option("--runs", "-o", metavar="FOLDER", help="Where the folder of the run is made.")
]
AsJson = Annotated[bool | None, typer.Option("--json/--no-json", help="Print only JSON, for machines.")]
Quiet = Annotated[
    bool | None, typer.Option("--quiet/--no-quiet", "-q", help="No progress, and only the verdict at the end.")
]
Run = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a run, its id or a part of it; or `latest`.")]


def run(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration file, or the folder of a promptiter.yaml.")
    ] = Path("promptiter.yaml"),
    max_rounds: Annotated[int | None, typer.Option(min=0, help="Rounds at most.")] = None,
    max_usd: Annotated[float | None, typer.Option(min=0, help="Spend at most so many dollars.")] = None,
    concurrency: Concurrency = None,
    seed: Annotated[int | None, typer.Option(help="For everything that is drawn.")] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="SURFACE", help="Only these surfaces may change; several with commas, or repeated."),
    ] = None,
    initial_profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin with this profile, not with the baseline.")
    ] = None,
    review: Review = None,
    runs: Runs = None,
    as_json: AsJson = None,
    quiet: Quiet = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what it would take, and what it is configured to do.")
    ] = False,
) -> None:
    """Optimize an agent: find the step that failed, patch the text behind it, adopt what a test shows to be better.

    Candidates are kept leniently; at the end both profiles run afresh, and one test decides (`claim` in CONFIG).

    An option wins over the key of the same name in CONFIG.

    The first Ctrl-C finishes the round in flight, the second stops at once; both leave a result, and can be resumed.
    """
    from promptiter.config.file import read_config

    names = [name.strip() for each in targets or () for name in each.split(",") if name.strip()]
    settings = settings_of(
        max_rounds=max_rounds,
        budget={"max_usd": max_usd} if max_usd is not None else None,
        concurrency=concurrency,
        seed=seed,
        targets=names or None,
        initial_profile=str(initial_profile.absolute()) if initial_profile is not None else None,
        review=review,
        runs=runs,
        as_json=as_json,
        quiet=quiet,
    )
    if dry_run:
        _forecast(read_config(config, settings=settings))
        return
    _conduct(read_config(config, settings=settings))


def resume(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: Annotated[Path | None, typer.Option("--runs", "-o", metavar="FOLDER", help="Where runs are.")] = None,
    claim: Annotated[
        bool,
        typer.Option("--final-test", help="After the round in flight end the search for good, and test what it kept."),
    ] = False,
    as_json: AsJson = None,
    quiet: Quiet = None,
) -> None:
    """Go on with a run that was killed, failed or stopped, as if it had not been. Answers it had are not paid again.

    What it was asked for must be as it was: a changed configuration, eval set or agent is refused, with what changed.
    The options say how it is done, and may differ.
    """
    from promptiter.api import read_config_to_resume

    folder = _run_folder(run, runs)
    settings = settings_of(concurrency=concurrency, review=review, as_json=as_json, quiet=quiet)
    _conduct(read_config_to_resume(folder, settings=settings), folder=folder, test_now=claim)


def rerun(
    run: Run = "latest",
    concurrency: Concurrency = None,
    review: Review = None,
    runs: Runs = None,
    as_json: AsJson = None,
    quiet: Quiet = None,
) -> None:
    """Start afresh what an earlier run was asked for, as its run.json says; cases and agent are those of now."""
    from promptiter.api import read_config_to_rerun

    folder = _run_folder(run, runs)
    settings = settings_of(concurrency=concurrency, review=review, runs=runs, as_json=as_json, quiet=quiet)
    _conduct(read_config_to_rerun(folder, settings=settings))


def settings_of(
    *,
    concurrency: int | None,
    review: bool | None,
    runs: Path | None = None,
    as_json: bool | None,
    quiet: bool | None,
    **others: Json,
) -> dict[str, Json]:
    """What the command line says, under the keys of a configuration file; what it does not say is left out."""
    said = {
        **others,
        "evaluation": {"concurrency": concurrency} if concurrency is not None else None,
        "review": review,
        "runs": str(runs.absolute()) if runs is not None else None,
        "json": as_json,
        "quiet": quiet,
    }
    return {key: value for key, value in said.items() if value is not None}


def _forecast(found: ReadConfig) -> None:
    """Show the configuration as it was understood, and what the run is expected to take. Nothing is spent or made."""
    import yaml

    from promptiter.cli.views import forecast as forecast_view
    from promptiter.config.resolved import resolved

    with contextlib.redirect_stdout(sys.stderr):  # whatever an agent prints
        configured = _prepared(found)
        try:
            configuration, forecast = resolved(configured), configured.forecast()
        finally:
            configured.gateway.cache.close()
    if configured.config.as_json:
        write_text(forecast_view.forecast_as_json(forecast, configuration), None)
        return
    if not configured.config.quiet:
        typer.echo(yaml.safe_dump(configuration, sort_keys=False, allow_unicode=True, width=120))
    forecast_view.print_forecast(console(), forecast)


def _run_folder(run: str, runs: Path | None) -> Path:
    from promptiter.cli.commands.runs import runs_folder
    from promptiter.config.file import FILE_NAME
    from promptiter.runs.listing import find_run

    if Path(run).is_file() or (Path(run) / FILE_NAME).is_file():  # a project: its latest
        run, runs = "latest", Path(run)
    return find_run(run, runs_folder(runs))


def _conduct(found: ReadConfig, *, folder: Path | None = None, test_now: bool = False) -> NoReturn:
    """Run to the end, show what came of it, and exit with the code of the verdict. A run that has a folder goes on."""
    from promptiter.cli.views import run as run_view

    with contextlib.redirect_stdout(sys.stderr):  # whatever an agent prints: standard output is for the summary
        configured = _prepared(found)
        try:
            directory = configured.begin() if folder is None else configured.resume(folder)
            result = _result(configured, directory, test_now=test_now)
        finally:
            configured.gateway.cache.close()
    for note in directory.notes:
        typer.secho(f"note: {note}", fg="yellow", err=True)
    if configured.config.as_json:
        write_text(run_view.as_json(result, directory.path), None)
    elif configured.config.quiet:
        run_view.print_verdict(console(), result)
    else:
        run_view.print_run(console(), result, directory.path)
    raise typer.Exit(run_view.exit_code(result))


def _prepared(found: ReadConfig) -> ConfiguredRun:
    """The run, ready to start; everything that stands in its way is told together."""
    from promptiter.cli.review import check_terminal
    from promptiter.config.build import build_run
    from promptiter.runs.directory import check_folder

    problems = []
    checks: list[Callable[[], None]] = [
        partial(check_folder, found.config.runs),
        *([check_terminal] if found.config.review else []),
    ]
    for check in checks:
        try:
            check()
        except SetupError as error:
            problems.append(str(error))
    return build_run(found, problems=problems)


def _result(configured: ConfiguredRun, directory: RunDirectory, *, test_now: bool) -> RunResult:
    """The result of the run; of one that failed, what it found until then."""
    from promptiter.cli.review import TerminalReviewer
    from promptiter.cli.views import run as run_view
    from promptiter.engine.interrupts import Interrupt
    from promptiter.engine.run import RunFailedError
    from promptiter.observers.progress import RunProgress

    config, ledger = configured.config, configured.gateway.ledger
    screen = SteadyConsole()
    progress = RunProgress(screen, spent=lambda: ledger.snapshot().total)
    reviewer = TerminalReviewer(screen, paused=progress.paused) if config.review else None
    try:
        with contextlib.nullcontext() if config.quiet else progress:
            if not config.quiet:
                progress.say(f"{run_view.from_here(directory.path)}/")
                progress.catch_up(directory.journal.read())
            return directory.run_sync(
                observers=() if config.quiet else (progress,),
                interrupt=Interrupt(test_now=test_now),
                reviewer=reviewer,
                tell=progress.say,
            )
    except RunFailedError as error:
        say_error(str(error))
        return error.result
