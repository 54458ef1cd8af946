"""`promptiter report`: the report of a run, written again from its folder."""

from __future__ import annotations

from typing import Annotated

import typer

from promptiter.cli.options import Run, Runs, find_run_folder
from promptiter.cli.output import echo


def report(
    run: Run = "latest",
    runs: Runs = None,
    is_opened: Annotated[bool, typer.Option("--open", help="Open report.html in the browser.")] = False,
) -> None:
    """Write the report of a run.

    That is report.html, report.md and trajectory.csv in its folder. Works at any time, also while the run is in
    progress or after it crashed. A run that ends writes its own report.
    """
    from promptiter.runs.report.files import write_report
    from promptiter.wording import path_from_here

    path = write_report(find_run_folder(run, runs))
    echo(str(path_from_here(path)))
    if is_opened:
        typer.launch(str(path))
