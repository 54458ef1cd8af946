"""The `promptiter` command: parse, call the API, render.

Exit codes, the same for all commands: see EXIT_CODES.
"""

from __future__ import annotations

import atexit
import io
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from promptiter.cli.commands import cache, trace
from promptiter.cli.commands.check import check
from promptiter.cli.commands.describe import describe
from promptiter.cli.commands.evaluate import evaluate
from promptiter.cli.commands.init import init
from promptiter.cli.commands.noise import noise
from promptiter.cli.commands.restore import restore
from promptiter.cli.commands.run import rerun, resume, run
from promptiter.cli.commands.runs import runs
from promptiter.cli.output import say_error
from promptiter.errors import BudgetEndedError, PromptiterError, SetupError
from promptiter.llm.redaction import process_redactor
from traces import TraceError

CANCELLED = 130
EXIT_CODES = (
    "Exit codes: 0 improved, or the command did what it says; 1 failed, or below a threshold; 2 wrong usage or input; "
    "3 no evidence; 4 underpowered; 5 overfit risk; 6 the budget ended; 7 an invalid evaluation; 130 cancelled."
)

app = typer.Typer(
    name="promptiter",
    epilog=EXIT_CODES,
    help="Backpropagation for agents: find the step that failed, patch the text behind it, keep what is proven better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(init)
app.command(epilog=EXIT_CODES)(run)
app.command(epilog=EXIT_CODES)(resume)
app.command(epilog=EXIT_CODES)(rerun)
app.command()(runs)
app.command(epilog=EXIT_CODES)(noise)
app.command()(evaluate)
app.command()(restore)
app.command()(check)
app.command()(describe)
app.add_typer(cache.app, name="cache")
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
    except SystemExit as left:
        if left.code == CANCELLED:
            _leave_at_once(CANCELLED)
        raise
    except (TraceError, SetupError) as error:
        _fail(error, code=2)
    except BudgetEndedError as error:
        _fail(error, code=6)
    except PromptiterError as error:
        _fail(error, code=1)
    except Exception:  # noqa: BLE001 - a defect: told whole, so that it can be reported, but without secrets
        typer.echo(process_redactor().redact_text(traceback.format_exc()), nl=False, err=True)
        sys.exit(1)


def _leave_at_once(code: int) -> NoReturn:
    """End without waiting for threads: whoever cancelled a run does not wait for a function that hangs."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(error: Exception, *, code: int) -> NoReturn:
    say_error(str(error))
    sys.exit(code)
