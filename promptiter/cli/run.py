"""`promptiter run`: optimize an agent as promptiter.yaml says, and say what came of it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.output import console, say_error, write_text
from promptiter.errors import SetupError
from traces import TraceError
from traces.model import Json

if TYPE_CHECKING:
    from promptiter.config.build import ConfiguredRun
    from promptiter.engine.records import RunResult


def run(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration file, or the folder of a promptiter.yaml.")
    ] = Path("promptiter.yaml"),
    max_rounds: Annotated[int | None, typer.Option(min=0, help="Rounds at most.")] = None,
    max_usd: Annotated[float | None, typer.Option(min=0, help="Spend at most so many dollars.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Cases at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="For everything that is drawn.")] = None,
    targets: Annotated[
        list[str] | None,
        typer.Option(metavar="SURFACE", help="Only these surfaces may change; several with commas, or repeated."),
    ] = None,
    initial_profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Begin with this profile, not with the baseline.")
    ] = None,
    review: Annotated[
        bool | None, typer.Option("--review/--no-review", help="Ask about each patch: approve, edit or veto.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", "-o", metavar="FOLDER", help="Where the folder of the run is made.")
    ] = None,
    as_json: Annotated[bool | None, typer.Option("--json/--no-json", help="Print only JSON, for machines.")] = None,
    quiet: Annotated[
        bool | None, typer.Option("--quiet/--no-quiet", "-q", help="No progress, and only the verdict at the end.")
    ] = None,
) -> None:
    """Optimize an agent: find the step that failed, patch the text behind it, keep what validation shows to be better.

    An option wins over the key of the same name in CONFIG.

    The first Ctrl-C finishes the round in flight, the second stops at once; both leave a result.
    """
    from promptiter.cli import run_view

    names = [name.strip() for each in targets or () for name in each.split(",") if name.strip()]
    settings: dict[str, Json] = {
        "max_rounds": max_rounds,
        "budget": {"max_usd": max_usd} if max_usd is not None else None,
        "evaluation": {"concurrency": concurrency} if concurrency is not None else None,
        "seed": seed,
        "targets": names or None,
        "initial_profile": str(initial_profile.absolute()) if initial_profile is not None else None,
        "review": review,
        "runs": str(runs.absolute()) if runs is not None else None,
        "json": as_json,
        "quiet": quiet,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    with contextlib.redirect_stdout(sys.stderr):  # whatever an agent prints: standard output is for the summary
        configured = _prepared(config, given)
        result = _result(configured)
    path = _written(configured.config.runs, result)
    if configured.config.as_json:
        write_text(run_view.as_json(result, path), None)
    elif configured.config.quiet:
        run_view.print_verdict(console(), result)
    else:
        run_view.print_run(console(), result, path)
    raise typer.Exit(run_view.exit_code(result))


def _prepared(file: Path, settings: dict[str, Json]) -> ConfiguredRun:
    """The run, ready to start; everything that stands in its way is told together."""
    from promptiter.cli.review import check_terminal
    from promptiter.config.build import build_run
    from promptiter.config.file import read_config
    from promptiter.runs.directory import check_folder

    found = read_config(file, settings=settings)
    problems = list(found.problems)
    checks: list[Callable[[], None]] = [
        partial(check_folder, found.config.runs),
        *([check_terminal] if found.config.review else []),
    ]
    for check in checks:
        try:
            check()
        except SetupError as error:
            problems.append(str(error))
    return build_run(found.config, problems=problems, broken=found.broken)


def _result(configured: ConfiguredRun) -> RunResult:
    """The result of the run; of one that failed, what it found until then."""
    from rich.console import Console

    from promptiter.cli.review import TerminalReviewer
    from promptiter.engine.engine import RunFailedError
    from promptiter.observers.progress import RunProgress

    config, ledger = configured.config, configured.gateway.ledger
    screen = Console(stderr=True, highlight=False)
    progress = RunProgress(screen, spent=lambda: ledger.snapshot().total)
    reviewer = TerminalReviewer(screen, paused=progress.paused) if config.review else None
    try:
        with contextlib.nullcontext() if config.quiet else progress:
            return configured.engine.run_sync(
                configured.request,
                observers=() if config.quiet else (progress,),
                reviewer=reviewer,
                tell=progress.say,
            )
    except RunFailedError as error:
        say_error(str(error))
        return error.result
    finally:
        configured.gateway.memo.close()


def _written(folder: Path, result: RunResult) -> Path | None:
    """Where the run's files are; the run was paid for, so its summary is shown even if they cannot be written."""
    from promptiter.runs.directory import write_run

    try:
        return write_run(folder, result)
    except (OSError, TraceError) as error:
        say_error(f"the files of the run could not be written: {error}")
        return None
