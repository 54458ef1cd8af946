"""`promptiter refine`: improve one finished result, by running its task again with what was wrong with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.exit_codes import CANCELLED
from promptiter.cli.options import AsJson, MaxUsd, Runs, find_run_folder
from promptiter.cli.output import console, divert_prints, echo, json_text, write_text
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.config.refinement import ConfiguredRefinement
    from promptiter.tasks.refine.sessions import RefinementSession

_PAIR = "manager:worker, split at the first colon; what is empty is the model of the seed"


def refine(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN",
            help="A finished run: its folder, its id or a part of it, or `latest`; or a folder with a rubric.md.",
        ),
    ] = None,
    case: Annotated[
        str | None,
        typer.Option("--case", metavar="ID", help="The case to refine; by default the one with the lowest score."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="EXP:TASK", help="Instead of RUN: the best run of a task of an experiment."),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option("--iterations", metavar="N", help="Maximum number of iterations, from 1 to 10; by default 3."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model of the manager, in all iterations.")
    ] = None,
    worker_model: Annotated[
        str | None, typer.Option("--worker-model", metavar="NAME", help="The model of the workers.")
    ] = None,
    tier_low: Annotated[
        str | None, typer.Option("--tier-low", metavar="PAIR", help=f"Models of the first iterations: {_PAIR}.")
    ] = None,
    tier_mid: Annotated[
        str | None, typer.Option("--tier-mid", metavar="PAIR", help="Models of the iterations in the middle.")
    ] = None,
    tier_high: Annotated[
        str | None, typer.Option("--tier-high", metavar="PAIR", help="Models of the last iterations.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="AGENT", help="The agent as module:attr, if RUN does not know it.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option("--command", metavar="COMMAND", help="A command that is run in the folder of each iteration."),
    ] = None,
    rubric: Annotated[
        Path | None,
        typer.Option("--rubric", metavar="FILE", help="What a good deliverable has; a judge measures by it."),
    ] = None,
    task: Annotated[
        str, typer.Option("--task", metavar="WORDS", help="The task of a folder with a rubric; by default its task.md.")
    ] = "",
    judge: Annotated[
        str | None, typer.Option("--judge", metavar="MODEL", help="The judge of a rubric, instead of CONFIG's.")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="CONFIG", help="Settings for a result that is not a run of promptiter."),
    ] = None,
    work_dir: Annotated[
        Path | None,
        typer.Option("--work-dir", metavar="FOLDER", help="Where iterations are run; by default below the result."),
    ] = None,
    max_usd: MaxUsd = None,
    sessions: Annotated[bool, typer.Option("--sessions", help="List the sessions so far, and refine nothing.")] = False,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Improve one finished result.

    Its task is run again, with the deliverable and what was wrong with it, on half the budget, until the loss stops
    falling. The best deliverable is kept in BEST/, which only ever improves. The agent itself does not change: see
    `promptiter run` for that.

    Exits 0 if an iteration improved, or there is nothing to refine; 1 if the seed still wins; 2 if it cannot start.
    """
    from promptiter.api import load_refinement
    from promptiter.cli.views import refine as view
    from promptiter.config.refinement_settings import RefinementSettings
    from promptiter.tasks.refine.records import ModelPair
    from promptiter.tasks.refine.tiers import TierPlan, parse_pair

    if (run is None) == (target is None):
        raise SetupError("give a RUN, or --target EXPERIMENT:TASK")
    if agent is not None and command is not None:
        raise SetupError(f"--agent {agent} and --command both run the iterations; give one of them")
    folder = None if run is None else _find_folder(run, rubric, runs)
    if sessions:
        found = view.list_sessions(folder, target)
        if as_json:
            write_text(json_text(view.sessions_as_json(found)), None)
        else:
            view.print_sessions(console(), found)
        return
    pairs = {"low": tier_low, "mid": tier_mid, "high": tier_high}
    given = {name: parse_pair(text) for name, text in pairs.items() if text}
    settings = RefinementSettings(
        iterations=iterations,
        models=ModelPair(manager=model or "", worker=worker_model or ""),
        tiers=TierPlan(**given) if given else None,
        agent=agent,
        command=() if command is None else _split(command),
        config=config,
        rubric=rubric,
        task=task,
        judge=judge,
        work=work_dir,
        max_usd=max_usd,
    )
    with divert_prints():
        configured = load_refinement(folder, settings, target=target, case_id=case)
    _run(configured, as_json=as_json)


def _run(configured: ConfiguredRefinement, *, as_json: bool) -> None:
    import asyncio

    from promptiter.cli.views import refine as view

    for warning in configured.warnings:
        echo(f"warning: {warning}", err=True)
    if configured.seed.case is not None:
        view.show_progress(f"the case is {configured.seed.case.id!r}")
    try:
        with divert_prints():
            session = asyncio.run(_refine_until_signal(configured))
    except (KeyboardInterrupt, asyncio.CancelledError):
        echo("Cancelled. The session and the best deliverable so far are kept.", err=True)
        raise typer.Exit(CANCELLED) from None
    finally:
        configured.gateway.cache.close()
    code = view.choose_exit_code(session)
    if as_json:
        write_text(json_text(view.session_as_json(session, configured.seed, exit_code=code)), None)
    else:
        view.print_session(console(), session, configured.seed)
    raise typer.Exit(code)


async def _refine_until_signal(configured: ConfiguredRefinement) -> RefinementSession:
    """Refine until the end, or until Ctrl-C, SIGTERM or SIGHUP cancels the iteration in progress."""
    import asyncio

    from promptiter.cli.views import refine as view
    from promptiter.engine.interrupts import Interrupt, on_signals

    interrupt, refining = Interrupt(), asyncio.ensure_future(configured.refine(notify=view.show_progress))
    interrupt.stop("cancelled")  # so that the first signal stops at once: an iteration has nothing to finish
    with on_signals(interrupt, refining.cancel):
        return await refining


def _split(command: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise SetupError(f"--command {command!r} cannot be split into words: {error}; close its quotes") from error
    if not words:
        raise SetupError("--command is empty; give a program and its arguments")
    return words


def _find_folder(run: str, rubric: Path | None, runs: Path | None) -> Path:
    """The folder of a run, of ours or not, or one with a rubric."""
    from promptiter.config.file import find_config_file
    from promptiter.config.task_yaml.document import FILE_NAME as TASK_FILE
    from promptiter.runs.header import FILE_NAME as HEADER
    from promptiter.tasks.refine.seeds import RUBRIC, is_run_folder, not_a_result

    path = Path(run)
    is_task = find_config_file(path).name == TASK_FILE
    has_rubric = rubric is not None or ((path / RUBRIC).is_file() and not is_task)
    if path.is_dir() and (has_rubric or is_run_folder(path) or (path / HEADER).is_file()):
        return path
    if path.is_dir() and not find_config_file(path).is_file() and not any(path.glob(f"*/{HEADER}")):
        raise not_a_result(path)
    return find_run_folder(run, runs)
