"""The `promptiter` command: parse, call the API, render. Exit codes: 0 done, 1 failed, 2 wrong usage or input."""

from __future__ import annotations

import io
import sys
from typing import Annotated

import typer

from promptiter.cli import trace
from traces import TraceError

app = typer.Typer(
    name="promptiter",
    help="Backpropagation for agents: find the step that failed, patch the text behind it, keep what is proven better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(trace.app, name="trace")


def _print_version(wanted: bool) -> None:
    if wanted:
        from promptiter import __version__

        typer.echo(f"promptiter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say which release this is.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; errors that a user can mend are one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no box drawing is no reason to fail
    try:
        app()
    except TraceError as error:
        typer.secho(f"error: {error}", fg="red", err=True)
        sys.exit(2)
