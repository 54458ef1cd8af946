"""`promptiter runs`: which runs there are, how they ended, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.output import console, json_text, write_text
from promptiter.errors import SetupError

if TYPE_CHECKING:
    from promptiter.runs.listing import RunSummary

STYLES = {"succeeded": "green", "running": "cyan", "interrupted": "yellow", "cancelled": "yellow"}


def runs(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="Where runs are; `runs` of the promptiter.yaml here if left out."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """List the runs of a folder, the newest last: status, verdict, rounds, score and cost.

    A run that was killed is `interrupted`; it, and any other without an end, goes on with `promptiter resume`.
    """
    from promptiter.runlog.codec import to_plain
    from promptiter.runs.listing import list_runs

    there = runs_folder(folder)
    found = list(list_runs(there))
    if as_json:
        write_text(json_text([to_plain(each) for each in found]), None)
        return
    if not found:
        typer.echo(f"no runs in {there}")
        return
    _print(found)


def runs_folder(folder: Path | None) -> Path:
    """Where runs are: in the folder that was named, else where the configuration of the current folder puts them."""
    from promptiter.config.file import FILE_NAME, read_config

    if folder is not None and (folder.is_file() or (folder / FILE_NAME).exists()):
        return read_config(folder).config.runs
    if folder is not None:
        if not folder.is_dir():
            raise SetupError(f"there is no folder {str(folder)!r}; name one with runs, or a project")
        return folder
    return read_config(FILE_NAME).config.runs if Path(FILE_NAME).exists() else Path("runs")


def _print(found: list[RunSummary]) -> None:
    from rich.table import Table
    from rich.text import Text

    from promptiter.cli.views.run import cost_of

    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "status", "verdict"):
        table.add_column(name, no_wrap=name != "verdict")
    for name in ("rounds", "score", "cost", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in found:
        table.add_row(
            each.run_id,
            Text(each.status, STYLES.get(each.status, "red")),
            Text(_told(each)),
            str(each.rounds),
            _score(each),
            cost_of(each.spent),
            "" if each.duration_s is None else f"{each.duration_s:.0f} s",
        )
    screen = console()
    screen.print(table)
    waiting = [each for each in found if each.can_resume and each.is_configured]
    if waiting:
        screen.print(f"\n{len(waiting)} can go on: promptiter resume {waiting[-1].path}", style="dim", soft_wrap=True)


def _told(each: RunSummary) -> str:
    """What came of it; or who works on it, or what went wrong."""
    from traces.text import cut, one_line

    if each.holder is not None:
        return f"process {each.holder.pid} on {each.holder.host}"
    if each.error is not None:
        return cut(one_line(each.error), 80)
    told = (each.verdict or "").replace("_", " ")
    if each.status == "succeeded" and each.can_resume:
        return f"{told}; {(each.stop_reason or '').replace('_', ' ')}, can go on"
    return told


def _score(each: RunSummary) -> str:
    if each.baseline is None:
        return ""
    before = f"{abs(each.baseline):.3f}"
    return before if each.best in (None, each.baseline) else f"{before} to {abs(each.best or 0.0):.3f}"
