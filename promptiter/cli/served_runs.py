"""Runs at a server, for commands. Errors of the server are those of the command."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from promptiter.config.file import FILE_NAME, read_config
from promptiter.errors import RequestError, SetupError
from promptiter.runlog.events import Event
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.run_list import ListedRun, RunPage, RunQuery
from promptiter.server.bodies import CURSOR
from promptiter.server.client import AsyncClient
from promptiter.server.client_errors import OK, ServerError
from promptiter.server.sync_client import Client
from promptiter.wording import join_names

TOKEN = "PROMPTITER_TOKEN"  # noqa: S105 - its name
"""The environment variable with the token."""

CALLER_ERRORS = (OK, *range(300, 500))
"""Statuses of errors of the caller. With 200 or a redirect, the URL is that of another web server."""
UNAUTHORIZED, FORBIDDEN = 401, 403


@dataclass(frozen=True, slots=True)
class ServedRuns:
    """The runs of one app of a server."""

    url: str
    app: str
    token: str | None = field(default=None, repr=False)
    token_source: str = ""

    @contextmanager
    def connect(self, *, patience_s: float = 0.0) -> Iterator[Client]:
        """A client. What the caller got wrong is a SetupError, with what to do; other errors of the server stay.

        With patience, a server that is restarted is waited for. Another client has reached it then.
        """
        client = Client(self.url, app=self.app, token=self.token, patience_s=patience_s, was_reached=True)
        with self._explain_refusals(), client:
            yield client

    async def watch(
        self,
        run_id: str,
        *,
        after: int,
        observe: Callable[[Event], Awaitable[None]],
        on_wait: Callable[[ServerError], None],
    ) -> None:
        """Observe the events of a run as they happen, until it ends. A server that is restarted is waited for."""
        client = AsyncClient(self.url, app=self.app, token=self.token, on_wait=on_wait, was_reached=True)
        with self._explain_refusals():
            async with client:
                async for event in client.watch(run_id, after=after):
                    await observe(event)

    @property
    def name(self) -> str:
        return f"the app {self.app!r} of {self.url}"

    def list_apps(self) -> Sequence[str]:
        return (self.app,)

    def list_runs(self, query: RunQuery) -> RunPage:
        with self.connect() as client:
            page = client.list(
                status=list(query.statuses),
                verdict=list(query.verdicts),
                created_from=query.created_from or None,
                created_before=query.created_before or None,
                text=query.text,
                limit=query.limit,
                cursor=None if query.cursor is None else f"{CURSOR}{query.cursor}",
            )
        following = None if page.next_cursor is None else page.next_cursor.removeprefix(CURSOR)
        return RunPage(tuple(ListedRun(**each.model_dump()) for each in page.runs), following)

    def copy_run(self, run_id: str, folder: Path, *, traces: bool, patience_s: float = 0.0) -> None:
        with self.connect(patience_s=patience_s) as client:
            client.export(run_id, folder, traces=traces)

    def stop_run(self, run_id: str, *, cancel: bool) -> bool:
        with self.connect() as client:
            stopped = client.cancel(run_id) if cancel else client.stop(run_id)
        return cancel or stopped.status == "cancelled"  # one that has not begun is always cancelled

    def locate(self, run_id: str) -> RunAddress:
        return RunAddress.of_server(run_id, url=self.url, app=self.app)

    @contextmanager
    def _explain_refusals(self) -> Iterator[None]:
        try:
            yield
        except ServerError as error:
            if error.status not in CALLER_ERRORS:
                raise
            if len(error.problems) > 1:
                raise RequestError(error.problems) from error
            raise SetupError(f"{error}{self._find_hint(error.status)}") from error

    def _find_hint(self, status: int) -> str:
        if status == UNAUTHORIZED and self.token is None:
            return f"; set {TOKEN}, or give --token-file FILE"
        if status == UNAUTHORIZED:
            return f"; it is from {self.token_source}; make another with `promptiter token`"
        return "; ask for a token with more rights: `promptiter token`" if status == FORBIDDEN else ""


def open_server(url: str, *, app: str | None, token_file: Path | None) -> ServedRuns:
    """The runs of an app of a server. SetupError if the app or the token is missing."""
    token, source = _read_token(token_file)
    place = ServedRuns(url.rstrip("/"), app or "", token, source)
    if app is None:
        with place.connect() as client:
            place = replace(place, app=_choose_app(list(client.list_apps()), place.url))
    return place


def _read_token(file: Path | None) -> tuple[str | None, str]:
    """The token in a file or in the environment, and where it was."""
    if file is None:
        token = os.environ.get(TOKEN, "").strip()
        where = f"the variable {TOKEN}"
    else:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise SetupError(f"--token-file {str(file)!r} cannot be read: {reason}") from error
        where = f"--token-file {str(file)!r}"
        if not token:
            raise SetupError(f"{where} is empty; it must have a token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SetupError(f"{where} does not have a token: one line of letters, digits, '-' and '_'")
    return token or None, where


def _choose_app(apps: list[str], url: str) -> str:
    """The only app of a server, or the one of the project in this folder."""
    if len(apps) == 1:
        return apps[0]
    if Path(FILE_NAME).exists():
        own = read_config(Path(FILE_NAME)).config.server.app or Path.cwd().name
        if own in apps or not apps:
            return own
    has = f"it has {join_names(apps, limit=5)}" if apps else "it does not say which it has"
    raise SetupError(f"name an app of {url} with --app NAME; {has}")
