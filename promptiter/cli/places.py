"""Where the runs of a command are: in a folder, in a database, or at a server. Commands treat them alike."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from promptiter.cli.options import find_run_folder, find_runs
from promptiter.errors import RunEndedError, SetupError, nearest
from promptiter.runlog.event_log import is_finished
from promptiter.runs.listing import MAX_NAMED
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.run_list import MAX_PAGE, ListedRun, RunPage, RunQuery
from promptiter.wording import join_names

if TYPE_CHECKING:
    from promptiter.runs.store import Store

SERVER = "PROMPTITER_SERVER"
"""The environment variable with the server, if none is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """What the options of a command say about where its runs are."""

    runs: str | None = None
    server: str | None = None
    app: str | None = None
    token_file: Path | None = None

    def with_default_server(self, run: str = "") -> PlaceOptions:
        """With the server of the environment, unless these options or the argument name a place."""
        server = os.environ.get(SERVER)
        is_given = (
            self.runs is not None or self.server is not None or (run not in ("", "latest") and Path(run).exists())
        )
        return self if is_given or not server else PlaceOptions(server=server, app=self.app, token_file=self.token_file)


class RunPlace(Protocol):
    """Runs, for commands."""

    @property
    def name(self) -> str:
        """The place, for messages."""
        ...

    @property
    def app(self) -> str | None:
        """The app whose runs these are, if any."""
        ...

    def list_apps(self) -> Sequence[str]:
        """The apps that have runs there, by name."""
        ...

    def list_runs(self, query: RunQuery) -> RunPage:
        """A page of the runs, newest first."""
        ...

    def copy_run(self, run_id: str, folder: Path, *, traces: bool) -> None:
        """Write a copy of a run to a new folder."""
        ...

    def stop_run(self, run_id: str, *, cancel: bool) -> bool:
        """Stop a run after the work in progress, or cancel it. Returns whether it was cancelled."""
        ...

    def locate(self, run_id: str) -> RunAddress:
        """How a run is named on the command line."""
        ...


def open_place(options: PlaceOptions) -> RunPlace:
    """The place that options name; by default the folder of promptiter.yaml."""
    from promptiter.runs.stores import is_url, open_store

    if options.server is not None and options.runs is not None:
        raise SetupError(f"--server {options.server} and --runs {options.runs} both name a place; give one of them")
    if options.server is not None:
        from promptiter.cli.served_runs import open_server

        return open_server(options.server, app=options.app, token_file=options.token_file)
    if options.token_file is not None:
        raise SetupError("--token-file is for --server URL")
    if options.runs is not None and is_url(options.runs):
        if options.runs.startswith(("http://", "https://")):
            raise SetupError(f"{options.runs} is the URL of a server; give it as --server")
        _check_exists(options.runs)
        where = options.runs
    else:
        where = str(find_runs(None if options.runs is None else Path(options.runs)))
    store = open_store(where)
    return StoredRuns(store if options.app is None else store.for_app(options.app), where, options.app)


def _check_exists(url: str) -> None:
    """Raise SetupError if a SQLite database does not exist. Opening it would create it."""
    from promptiter.runs.sql.address import parse_address

    address = parse_address(url)
    if address.backend == "sqlite" and not Path(str(address.url.database)).exists():
        raise SetupError(f"there is no database {address.name}")


@contextmanager
def open_run(run: str, options: PlaceOptions, *, traces: bool = False) -> Iterator[tuple[Path, RunAddress]]:
    """The folder of a run, and its address. The folder of a run that is elsewhere is a temporary copy."""
    if not is_elsewhere(options):
        folder = find_run_folder(run, find_app_folder(options))
        yield folder, RunAddress.of_folder(folder)
        return
    place = open_place(options)
    run_id = find_run_id(place, run)
    with tempfile.TemporaryDirectory(prefix="promptiter-") as temporary:
        folder = Path(temporary) / "run"
        place.copy_run(run_id, folder, traces=traces)
        yield folder, place.locate(run_id)


def is_elsewhere(options: PlaceOptions) -> bool:
    """Whether the runs are not in a folder of this machine."""
    from promptiter.runs.stores import is_url

    return options.server is not None or (options.runs is not None and is_url(options.runs))


def has_begun(folder: Path) -> bool:
    """Whether a run has recorded anything."""
    from promptiter.runs.event_file import FILE_NAME as JOURNAL

    return (folder / JOURNAL).exists()


def find_app_folder(options: PlaceOptions) -> Path | None:
    """The folder with the runs that options name, if any."""
    runs = None if options.runs is None else Path(options.runs)
    return runs if options.app is None else find_runs(runs) / options.app


def find_run_id(place: RunPlace, run: str) -> str:
    """The id of a run, from the id, a part of it, or `latest`. SetupError if none matches, or several do."""
    return find_listed(place, run).run_id


def find_listed(place: RunPlace, run: str) -> ListedRun:
    """What a list shows of a run; see `find_run_id`."""
    query = RunQuery(limit=1) if run == "latest" else RunQuery(text=run, limit=MAX_PAGE)
    found = {each.run_id: each for each in place.list_runs(query).runs}
    if run in found or len(found) == 1:
        return found.get(run) or next(iter(found.values()))
    if found:
        raise SetupError(f"{run!r} matches {join_names(list(found), limit=MAX_NAMED)}; give more of the name")
    if run == "latest":
        raise SetupError(f"there are no {describe_none(place)}")
    known = [each.run_id for each in place.list_runs(RunQuery(limit=MAX_PAGE)).runs]
    raise SetupError(f"there is no run {run!r} in {place.name}{nearest(run, known)}")


def describe_none(place: RunPlace) -> str:
    """What is not there if a place has no runs, and where others are: `runs in sqlite:///runs.db`."""
    apps = place.list_apps()
    has = f"it has the apps {join_names(apps, limit=MAX_NAMED)}: --app NAME"
    if not apps or place.app in apps:
        return f"runs in {place.name}"
    if place.app is None:
        return f"runs outside an app in {place.name}; {has}"
    return f"runs in {place.name}{nearest(place.app, apps) or f'; {has}'}"


def list_all(place: RunPlace, query: RunQuery, *, limit: int | None) -> tuple[Sequence[ListedRun], str | None]:
    """The newest runs of a place up to a limit, oldest first, and where the next page begins."""
    found: list[ListedRun] = []
    cursor = query.cursor
    while limit is None or len(found) < limit:
        size = MAX_PAGE if limit is None else min(MAX_PAGE, limit - len(found))
        page = place.list_runs(replace(query, limit=size, cursor=cursor))
        found += page.runs
        if (cursor := page.next_cursor) is None:
            break
    return found[::-1], cursor


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """Runs in a folder or in a database, of an app or of none."""

    store: Store
    where: str
    app: str | None

    @property
    def name(self) -> str:
        place = describe_store(self.where)
        return place if self.app is None else f"the app {self.app!r} of {place}"

    def list_apps(self) -> Sequence[str]:
        from promptiter.runs.app_list import list_apps

        return list_apps(self.where)

    def list_runs(self, query: RunQuery) -> RunPage:
        return asyncio.run(self.store.list_runs(query))

    def copy_run(self, run_id: str, folder: Path, *, traces: bool) -> None:
        from promptiter.runs.run_copy import copy_run

        async def copy() -> None:
            await copy_run(await self.store.view(run_id), folder, traces=traces)

        asyncio.run(copy())

    def stop_run(self, run_id: str, *, cancel: bool) -> bool:
        asyncio.run(self._stop(run_id, cancel=cancel))
        return cancel

    async def _stop(self, run_id: str, *, cancel: bool) -> None:
        view = await self.store.view(run_id)
        if not cancel and await view.find_holder() is None:
            if is_finished(await view.last()):
                raise RunEndedError(run_id)
            raise SetupError(f"no process works on the run {run_id!r}; --cancel marks it as cancelled")
        await self.store.request_stop(run_id, cancel=cancel)

    def locate(self, run_id: str) -> RunAddress:
        from promptiter.runs.stores import is_url

        if is_url(self.where):
            return RunAddress.of_database(run_id, url=describe_store(self.where), app=self.app)
        return RunAddress.of_folder(Path(self.where) / (self.app or "") / run_id)


def describe_store(where: str) -> str:
    """The place of a store, without its password."""
    from promptiter.runs.stores import is_url

    if not is_url(where):
        return where
    from promptiter.runs.sql.address import parse_address

    return parse_address(where).name
