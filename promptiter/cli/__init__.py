"""The `promptiter` command. All commands share their exit codes: see exit_codes."""

from __future__ import annotations

import atexit
import io
import logging
import os
import sys
import traceback
from collections.abc import Callable
from functools import cache
from typing import Annotated, NoReturn

import typer

from promptiter.cli.commands import agent as agent_commands
from promptiter.cli.commands import cache as cache_commands
from promptiter.cli.commands import db, task, test, trace
from promptiter.cli.commands.apply import apply
from promptiter.cli.commands.check import check
from promptiter.cli.commands.compare import compare
from promptiter.cli.commands.describe import describe
from promptiter.cli.commands.evaluate import evaluate
from promptiter.cli.commands.gate import gate
from promptiter.cli.commands.gateway import gateway
from promptiter.cli.commands.init import init
from promptiter.cli.commands.learn import learn
from promptiter.cli.commands.noise import noise
from promptiter.cli.commands.refine import refine
from promptiter.cli.commands.rejudge import rejudge
from promptiter.cli.commands.report import report
from promptiter.cli.commands.restore import restore
from promptiter.cli.commands.run import rerun, resume, run
from promptiter.cli.commands.runs import export, runs, stop
from promptiter.cli.commands.schema import schema
from promptiter.cli.commands.serve import serve, token
from promptiter.cli.commands.show import show
from promptiter.cli.commands.try_edit import try_edit
from promptiter.cli.exit_codes import CANCELLED, EXIT_CODES_HELP
from promptiter.cli.help import PlainCommand, SafeGroup
from promptiter.cli.output import LogFormatter, echo, print_error
from promptiter.errors import BudgetEndedError, PromptiterError, SetupError
from promptiter.llm.redaction import process_redactor
from traces import TraceError

app = typer.Typer(
    name="promptiter",
    cls=SafeGroup,
    epilog=EXIT_CODES_HELP,
    help="Backpropagation for agents: find the step that failed, patch the text behind it, adopt only what one test "
    "shows to be better.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS = (
    *(init, run, resume, stop, rerun, show, runs, export, report, compare, refine, rejudge, gate, apply),
    *(try_edit, learn, noise, evaluate, restore, check, describe, gateway, serve, token, schema),
)
for _command in _COMMANDS:
    app.command("try" if _command is try_edit else None, cls=PlainCommand)(_command)
app.add_typer(agent_commands.app, name="agent")
app.add_typer(cache_commands.app, name="cache")
app.add_typer(db.app, name="db")
app.add_typer(trace.app, name="trace")
app.add_typer(test.app, name="test")
app.add_typer(task.app, name="task")


def _print_version(wanted: bool) -> None:
    if wanted:
        from promptiter import __version__

        echo(f"promptiter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@cache
def build_command() -> Callable[[], None]:
    """Return the command line that typer builds of `app`. Building it takes longer than many commands: do it once."""
    return typer.main.get_command(app)


def main() -> None:
    """Run the command line. Errors that a user can fix are printed on one line."""
    if isinstance(logging.lastResort, logging.Handler):
        logging.lastResort.setFormatter(LogFormatter())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can print box drawing
    try:
        build_command()()
    except SystemExit as error:
        if error.code == CANCELLED:
            _exit_at_once(CANCELLED)
        raise
    except (TraceError, SetupError) as error:
        _fail(error, code=2)
    except BudgetEndedError as error:
        _fail(error, code=6)
    except PromptiterError as error:
        _fail(error, code=1)
    except Exception:  # noqa: BLE001 - a bug: printed in full for the report, without secrets
        echo(process_redactor().redact_text(traceback.format_exc()), nl=False, err=True)
        sys.exit(1)


def _exit_at_once(code: int) -> NoReturn:
    """Exit without waiting for threads: after a cancellation, a function that hangs must not keep the process."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _fail(error: Exception, *, code: int) -> NoReturn:
    print_error(str(error))
    sys.exit(code)
