"""Where commands write: the terminal, a pipe, or a file."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from promptiter.llm.redaction import process_redactor
from traces import UnwritableTraceError
from traces.files import write_atomically
from traces.model import Json
from traces.text import one_line


class View(StrEnum):
    """How a graph can be shown."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"
    json = "json"


def view_of(output: Path | None) -> View:
    """What the name of an output asks for; text if it says nothing."""
    return {".svg": View.svg, ".mmd": View.mermaid, ".json": View.json}.get(output.suffix if output else "", View.text)


class SteadyConsole(Console):
    """A console on standard error whose reader may go away: what is shown there is not worth a run."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())
        os.close(nowhere)


def console(output: Path | None = None) -> Console:
    """A console for people: as wide as the terminal, 120 columns where there is none; plain text into a file."""
    if output is not None:
        try:
            file = output.open("w", encoding="utf-8")
        except OSError as error:
            raise UnwritableTraceError(f"{str(output)!r} cannot be written: {error.strerror}") from error
        return Console(file=file, width=120, highlight=False, force_terminal=False, color_system=None)
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(file=_Trimmed(), width=int(os.environ.get("COLUMNS") or 120), highlight=False)


class _Trimmed(io.StringIO):
    """Standard output without the spaces that fill up lines: they are noise in a pipe."""

    def write(self, text: str) -> int:
        sys.stdout.write(_FILLED.sub("\n", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()


_FILLED = re.compile(" +\n")


def print_rows(screen: Console, rows: Iterable[tuple[str, str]]) -> None:
    """A name in bold, and what is told of it; a name that comes again stands once."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    before = ""
    for name, told in rows:
        table.add_row("" if name == before else name, Text(one_line(told)))
        before = name
    screen.print(Padding(table, 0, expand=False))


def heading(screen: Console, text: str) -> None:
    """A bold line, after an empty one."""
    screen.print()
    screen.print(text, style="bold", markup=False)


def print_indented(screen: Console, text: str | Text, *, by: int = 2) -> None:
    """A text whose wrapped lines are indented as the first."""
    from rich.padding import Padding

    screen.print(Padding(text, (0, 0, 0, by), expand=False))


def say_error(text: str) -> None:
    """One line on standard error: what went wrong, without secrets, whoever's code said it."""
    typer.secho(f"error: {process_redactor().redact_text(text)}", fg="red", err=True)


def json_text(document: Json) -> str:
    """A document for machines."""
    import orjson

    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def write_text(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file and say so."""
    if output is None:
        typer.echo(text, nl=False)
    else:
        with write_atomically(output) as file:
            file.write(text.encode())
        typer.echo(f"written to {output}", err=True)
