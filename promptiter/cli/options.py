"""Options and arguments that several commands share, so that they mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from promptiter.errors import SetupError

Requirement: TypeAlias = Literal["unseen"]
"""What `--require` asks of a run: `unseen`, a gain that is shown for new cases."""

Layout: TypeAlias = Literal["000", "001"]
"""The layouts of artifacts that a run can be exported in."""

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="The configuration file, or a folder with a promptiter.yaml.")
]
Subject = Annotated[
    str | None,
    typer.Argument(
        metavar="AGENT",
        help="The agent as module:attr, or a configuration file or its folder; by default promptiter.yaml.",
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="CONFIG", help="Settings of the agent's models and metrics; by default promptiter.yaml."
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run: its folder, its id or a part of it, `latest`, or a project for its latest run."
    ),
]
Runs = Annotated[
    Path | None,
    typer.Option("--runs", metavar="FOLDER", help="The folder with the runs; by default `runs` of promptiter.yaml."),
]
RunsPlace = Annotated[
    str | None,
    typer.Option(
        "--runs",
        metavar="PLACE",
        help="The folder with the runs, or the URL of a database; by default `runs` of promptiter.yaml.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server", metavar="URL", help="A server with the runs; by default PROMPTITER_SERVER of the environment."
    ),
]
App = Annotated[
    str | None, typer.Option("--app", metavar="NAME", help="The app that the runs belong to, of a server or database.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="A file with the token for the server; by default PROMPTITER_TOKEN."
    ),
]
Detach = Annotated[bool, typer.Option("--detach", help="With --server: print the id of the run, and do not wait.")]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", min=1, metavar="N", help="Number of cases to run in parallel.")
]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Random seed.")]
MaxUsd = Annotated[float | None, typer.Option("--max-usd", min=0, metavar="USD", help="Hard cap on spending.")]
InitialProfile = Annotated[
    Path | None, typer.Option("--initial-profile", metavar="FILE", help="Start from this profile, not the baseline.")
]
ReviewWay: TypeAlias = Literal["ask", "file", "no"]
Review = Annotated[
    ReviewWay | None,
    typer.Option(
        "--review",
        metavar="[ask|file]",
        help="Approve, edit or veto each patch: ask at the terminal, or wait for files in the run's folder.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ConfiguredJson = Annotated[bool | None, typer.Option("--json/--no-json", help="Print JSON on standard output.")]
Quiet = Annotated[bool | None, typer.Option("--quiet/--no-quiet", "-q", help="Print one line: the outcome.")]
Apply = Annotated[
    bool | None, typer.Option("--apply/--no-apply", help="Apply an improvement at the end: see `promptiter apply`.")
]
Require = Annotated[
    Requirement | None,
    typer.Option("--require", metavar="unseen", help="Exit with code 8 unless the gain is shown for new cases."),
]
Costs = Annotated[bool, typer.Option("--costs", help="Show the accounting: calls and cost by role and stage.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file instead of printing.")
]


def find_run_folder(run: str, runs: Path | None) -> Path:
    """Find the folder of a run, even if the configuration cannot be read."""
    from promptiter.config.file import find_config_file
    from promptiter.runs.listing import find_run

    if find_config_file(Path(run)).is_file():  # a project: its latest run
        run, runs = "latest", Path(run)
    return find_run(run, find_runs(runs))


def find_runs(folder: Path | None) -> Path:
    """Find the folder with the runs: the given one, the one in the configuration, or `runs`."""
    from promptiter.config.file import find_config_file, read_config

    if folder is not None and not folder.exists():
        raise SetupError(f"there is no folder {str(folder)!r}; name one with runs, or a project")
    file = find_config_file(folder or Path())
    if folder is not None and folder.is_dir() and not file.exists():
        return folder
    try:
        return read_config(file).config.runs if file.exists() else Path("runs")
    except SetupError:  # a broken configuration must not hide the runs; assume the default folder
        return file.parent / "runs"
