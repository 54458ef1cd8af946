"""`promptiter runs`: list runs, how they ended, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.options import AsJson, Runs, find_runs
from promptiter.cli.output import console, echo, json_text, write_text
from promptiter.errors import SetupError


def runs(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER", help="A folder with runs, or a project; by default the promptiter.yaml of this folder."
        ),
    ] = None,
    runs: Runs = None,
    as_json: AsJson = False,
) -> None:
    """List runs: outcome, rounds, score, cost and time.

    `promptiter show RUN` shows one of them; `promptiter resume RUN` resumes one that did not finish.
    """
    from promptiter.cli.views.runs import print_runs
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.listing import list_runs

    if folder is not None and runs is not None:
        raise SetupError(f"{str(folder)!r} and --runs {str(runs)!r} both name a folder; give one of them")
    path = find_runs(folder or runs)
    listed = list_runs(path)
    if as_json:
        write_text(json_text([to_plain(each) for each in listed]), None)
    elif not listed:
        echo(f"no runs in {path}")
    else:
        print_runs(console(), listed)
