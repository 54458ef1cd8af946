"""`promptiter task`: improve files that a script scores, as a task.yaml says."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.help import PlainCommand
from promptiter.cli.load import collect_settings
from promptiter.cli.options import Apply, ConfiguredJson, Costs, MaxUsd, Quiet, Require, Review, Seed
from promptiter.cli.output import echo
from promptiter.cli.run_execution import execute, prepare_run
from promptiter.cli.starter_files import write_starter
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.config.file import ParsedConfig
    from traces.model import Json

app = typer.Typer(help="Improve files that a script scores.", no_args_is_help=True)

TaskFile = Annotated[Path, typer.Argument(metavar="TASK", help="A task.yaml, or the folder that has one.")]
EditModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="The model that edits the files.")]

NO_MODEL = (
    "note: no model edits the files, so simple edits are tried in a fixed order; a model does better: --model NAME"
)


@app.command(cls=PlainCommand)
def run(
    task: TaskFile = Path("task.yaml"),
    model: EditModel = None,
    max_iterations: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="How many rounds; 0 only measures the files as they are.")
    ] = None,
    max_usd: MaxUsd = None,
    seed: Seed = None,
    review: Review = None,
    runs: Annotated[
        Path | None, typer.Option("--runs", metavar="FOLDER", help="Create the folder of the run in this folder.")
    ] = None,
    as_json: ConfiguredJson = None,
    quiet: Quiet = None,
    require: Require = None,
    apply: Apply = None,
    costs: Costs = False,
) -> None:
    """Improve the files of a task, and test the result.

    Each candidate is edited, run and scored in a private copy of the workspace. Constraints come before the score.
    Your files change only with --apply, or `promptiter apply`.

    `promptiter resume`, `show`, `report` and `apply` work as for any run.
    """
    settings = collect_settings(
        max_rounds=max_iterations,
        budget={"max_usd": max_usd},
        seed=seed,
        review=False if review == "no" else review,
        runs=runs,
        json=as_json,
        quiet=quiet,
        require=require,
        apply=apply,
    )
    parsed = _read(task, model, settings)
    if _edits_offline(parsed) and not (parsed.config.quiet or parsed.config.as_json):
        echo(NO_MODEL, color="yellow", err=True)
    execute(partial(prepare_run, parsed), costs=costs)


@app.command(cls=PlainCommand)
def check(task: TaskFile = Path("task.yaml"), model: EditModel = None) -> None:
    """Measure the files of a task once, as they are.

    Shows the artifacts, the sandbox, the figures, and which constraint fails. Reports what would keep a run from
    starting, such as a missing editor. Nothing is edited.
    """
    import asyncio

    from promptiter.agents.base import RunContext
    from promptiter.cli.views.task_check import print_check
    from promptiter.config.task_yaml.document import read_task_file
    from promptiter.config.task_yaml.parts import build_file_scorer
    from promptiter.sandbox import find_sandbox

    configured = prepare_run(_read(task, model, {}))
    found = read_task_file(task)
    scorer = build_file_scorer(found)
    try:
        asyncio.run(configured.engine.check_setup(configured.checked))
        with configured.gateway.active():
            reading = asyncio.run(scorer.read_baseline(RunContext(case_id="scorer")))
    finally:
        configured.gateway.cache.close()
    print_check(scorer, reading, sandbox=find_sandbox(found.task.sandbox.kind).description)


@app.command(cls=PlainCommand)
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it; created if needed.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a starter task that runs as it is, offline.

    It has a skill, a rubric, and the scripts that run and score it.
    """
    from promptiter.config.task_yaml.starter import FILES
    from promptiter.config.task_yaml.task_schema import FILE_NAME, read_task_schema

    files = {**{path: text.encode() for path, text in FILES.items()}, FILE_NAME: read_task_schema()}
    write_starter(folder, files, force=force, command="promptiter task run")


def _read(task: Path, model: str | None, settings: dict[str, Json]) -> ParsedConfig:
    """The task with these settings. A model takes the place of another editor."""
    from promptiter.config.file import read_config
    from promptiter.config.task_yaml.document import FILE_NAME, read_task_file

    file = task / FILE_NAME if task.is_dir() else task
    given = read_task_file(file).given
    mode = given.mutation.mode
    if model is not None and mode != "direct_edit":
        raise SetupError(f"--model is for tasks with the mode 'direct_edit', and that of {str(file)!r} is {mode!r}")
    if model is not None:
        settings = {**settings, "stages": model}
        if given.search is None:
            settings["search"] = {"options": {"function": None}}
    return read_config(file, settings=settings)


def _edits_offline(parsed: ParsedConfig) -> bool:
    from promptiter.config.task_yaml.conversion import OFFLINE_EDITOR

    search = parsed.config.search
    return search is not None and search.options.get("function") == OFFLINE_EDITOR
