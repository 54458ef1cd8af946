"""Output of commands: to the terminal, a pipe, or a file."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, redirect_stdout
from enum import StrEnum
from pathlib import Path

import orjson
import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.llm.redaction import process_redactor
from promptiter.terminal import SafeConsole, show_controls
from traces import UnwritableTraceError
from traces.files import write_atomically
from traces.model import Json
from traces.text import one_line


class OutputFormat(StrEnum):
    """The formats of graphs and traces."""

    text = "text"
    mermaid = "mermaid"
    svg = "svg"
    json = "json"


def guess_format(output: Path | None) -> OutputFormat:
    """The format that the name of an output file implies; text by default."""
    formats = {".svg": OutputFormat.svg, ".mmd": OutputFormat.mermaid, ".json": OutputFormat.json}
    return formats.get(output.suffix if output else "", OutputFormat.text)


def divert_prints() -> AbstractContextManager[object]:
    """Send what agents and judges print to standard error: standard output is for the result of a command."""
    return redirect_stdout(sys.stderr)


class SteadyConsole(SafeConsole):
    """A console on standard error that survives a closed pipe: a run must not fail because of its progress."""

    def __init__(self) -> None:
        super().__init__(stderr=True, highlight=False, width=None if sys.stderr.isatty() else _plain_width())

    def on_broken_pipe(self) -> None:
        self.quiet = True
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stderr.fileno())
        os.close(null)


def console(output: Path | None = None) -> Console:
    """A console as wide as the terminal, or 120 columns if there is none; for a file, plain text."""
    if output is not None:
        try:
            file = output.open("w", encoding="utf-8")
        except OSError as error:
            raise UnwritableTraceError(f"{str(output)!r} cannot be written: {error.strerror}") from error
        return SafeConsole(file=file, width=120, highlight=False, force_terminal=False, color_system=None)
    if sys.stdout.isatty():
        return SafeConsole(highlight=False)
    return SafeConsole(file=_TrimmedOutput(), width=_plain_width(), highlight=False)


def _plain_width() -> int:
    """The width of what is not printed to a terminal."""
    return int(os.environ.get("COLUMNS") or 120)


class _TrimmedOutput(io.StringIO):
    """Standard output without trailing spaces."""

    def write(self, text: str) -> int:
        sys.stdout.write(_TRAILING_SPACES.sub("\n", text))
        return len(text)

    def flush(self) -> None:
        sys.stdout.flush()


_TRAILING_SPACES = re.compile(" +\n")


def new_table(*columns: str, gap: int = 2) -> Table:
    """A table without borders. Columns whose name starts with `>` have figures: they are right-aligned, and wrap if the
    table is too wide, because part of a figure is another figure. The others are cut off.
    """
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, gap, 0, 0))
    for name in columns:
        is_figure = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if is_figure else "left", no_wrap=not is_figure)
    return table


def print_rows(screen: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print a table of names, in bold, and texts. A name that repeats is printed once."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    before = ""
    for name, text in rows:
        table.add_row("" if name == before else name, Text(one_line(text)))
        before = name
    screen.print(Padding(table, 0, expand=False))


def print_heading(screen: Console, text: str) -> None:
    """Print an empty line and a bold one."""
    screen.print()
    screen.print(text, style="bold", markup=False)


def print_indented(screen: Console, text: str | Text, *, by: int = 2) -> None:
    """Print a text with all of its lines indented, wrapped ones too."""
    screen.print(Padding(text, (0, 0, 0, by), expand=False))


def echo(text: str = "", *, err: bool = False, nl: bool = True, color: str | None = None) -> None:
    """Print a text, to standard error if wanted, with its control characters shown."""
    typer.secho(show_controls(text), fg=color, err=err, nl=nl)


def print_stopping(message: str) -> None:
    """Say what the first Ctrl-C does to a command that measures."""
    echo(message, err=True)


def print_error(text: str) -> None:
    """Print an error to standard error, without secrets."""
    echo(f"error: {process_redactor().redact_text(text)}", color="red", err=True)


class LogFormatter(logging.Formatter):
    """Formats log messages with their control characters shown."""

    def format(self, record: logging.LogRecord) -> str:
        return show_controls(super().format(record))


def log_to_standard_error(name: str) -> None:
    """Print the log of a package from INFO on, one line per message with its time."""
    handler, logger = logging.StreamHandler(), logging.getLogger(name)
    handler.setFormatter(LogFormatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def json_text(document: Json) -> str:
    """A document as indented JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def write_text(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file."""
    if output is None:
        echo(text, nl=False)
    else:
        with write_atomically(output) as file:
            file.write(text.encode())
        echo(f"written to {output}", err=True)
