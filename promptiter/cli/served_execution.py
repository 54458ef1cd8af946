"""`promptiter run` and `resume` with --server: the server runs it, and its progress and its end are shown here."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import typer

from promptiter.cli.exit_codes import CANCELLED
from promptiter.cli.options import Requirement
from promptiter.cli.output import SteadyConsole, echo
from promptiter.cli.places import PlaceOptions, find_run_id
from promptiter.cli.run_execution import end
from promptiter.cli.served_runs import ServedRuns, open_server
from promptiter.errors import SetupError
from promptiter.observers.progress import RunProgress
from promptiter.runlog.events import Event
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.summary import read_result
from promptiter.server.client_errors import ServerError
from promptiter.server.patience import PATIENCE_S, describe_wait
from traces.model import Json

ENDED = 409


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown of a run at a server. `detach`: only its id."""

    detach: bool = False
    as_json: bool = False
    quiet: bool = False
    require: Requirement | None = None
    costs: bool = False


def start_served(options: PlaceOptions, changes: Mapping[str, Json], shown: Shown) -> NoReturn:
    """Start a run at a server, and follow it to its end."""
    place = _open(options)
    with place.connect() as client:
        run_id = client.start(changes).run_id
    _follow(place, run_id, [], shown)


def resume_served(options: PlaceOptions, run: str, shown: Shown) -> NoReturn:
    """Continue a run at a server, and follow it to its end. A run in progress is followed, a finished one shown."""
    place = _open(options)
    run_id = find_run_id(place, run)
    with tempfile.TemporaryDirectory(prefix="promptiter-") as temporary:
        folder = Path(temporary) / "run"
        place.copy_run(run_id, folder, traces=False)
        events = list(EventFile(folder / JOURNAL).read()) if (folder / JOURNAL).exists() else []
    with place.connect() as client:
        try:
            client.resume(run_id)
        except ServerError as error:
            if error.status != ENDED or not client.get(run_id).is_final:
                raise
    _follow(place, run_id, events, shown)


def refuse_options(**given: object) -> None:
    """Raise SetupError if options were given that a server does not take."""
    names = [f"--{name.replace('_', '-')}" for name, value in given.items() if value not in (None, False, [], ())]
    if names:
        raise SetupError(f"{', '.join(names)} cannot be combined with --server; the server's promptiter.yaml decides")


def _open(options: PlaceOptions) -> ServedRuns:
    if options.runs is not None:
        raise SetupError(f"--server {options.server} and --runs {options.runs} both name a place; give one of them")
    assert options.server is not None, "the caller has a server"
    return open_server(options.server, app=options.app, token_file=options.token_file)


def _follow(place: ServedRuns, run_id: str, events: Sequence[Event], shown: Shown) -> NoReturn:
    """Show the progress of a run after the events so far, then its end; exit with its code."""
    address = place.locate(run_id)
    if shown.detach:
        echo(run_id)
        echo(f"watch it with: promptiter resume {address.arguments}", err=True)
        raise typer.Exit
    progress = RunProgress(SteadyConsole(), spent=lambda: None)
    try:
        with contextlib.nullcontext() if shown.quiet else progress:
            if not shown.quiet:
                progress.say(f"{run_id} at {place.url}")
                progress.catch_up(events)
            after = events[-1].seq if events else -1
            asyncio.run(
                place.watch(
                    run_id,
                    after=after,
                    observe=_ignore if shown.quiet else progress.observe,
                    on_wait=lambda error: None if shown.quiet else progress.say(describe_wait(error)),
                )
            )
    except KeyboardInterrupt:
        echo(f"the run continues at {place.url}; stop it with: promptiter stop {address.arguments}", err=True)
        raise typer.Exit(CANCELLED) from None
    with tempfile.TemporaryDirectory(prefix="promptiter-") as temporary:
        folder = Path(temporary) / "run"
        place.copy_run(run_id, folder, traces=False, patience_s=PATIENCE_S)
        end(
            read_result(folder),
            folder,
            as_json=shown.as_json,
            quiet=shown.quiet,
            require=shown.require,
            costs=shown.costs,
            address=address,
        )


async def _ignore(_: Event) -> None:
    """Show nothing."""
