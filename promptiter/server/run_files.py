"""Files about a run that a server makes when they are asked for: its report, and a copy of the run as a zip file."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.types import Receive, Scope, Send

from promptiter.concurrency import run_in_thread
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.report.pages import render_html
from promptiter.runs.report.run_report import read_report
from promptiter.runs.run_copy import copy_run, pack_copy
from promptiter.runs.store import RunView
from promptiter.server.errors import HttpError

MOST_AT_ONCE = 2
"""Files that are made at the same time. They take time and space, and the others wait."""

REPORT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@dataclass(eq=False)
class RunFiles:
    """Makes files about runs, a few at a time."""

    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MOST_AT_ONCE))

    async def make_report(self, view: RunView, *, url: str, app: str) -> Response:
        """The report of a run, finished or in progress, as one page without scripts. HttpError before it has begun."""
        run_id = view.header.run_id
        if await view.last() is None:
            raise HttpError(409, f"the run {run_id!r} has not begun; it has no report yet")
        address = RunAddress.of_server(run_id, url=url, app=app)
        async with self.turns, _temporary_folder() as folder:
            await copy_run(view, folder / "run")
            page = await run_in_thread(lambda: render_html(read_report(folder / "run", address=address), is_alone=True))
        return HTMLResponse(page.encode("utf-8", "replace"), headers=REPORT_HEADERS)

    async def make_archive(self, view: RunView, *, traces: bool) -> Response:
        """A copy of a run as a zip file."""
        file, name = tempfile.mkstemp(prefix="promptiter-", suffix=".zip")
        try:
            with os.fdopen(file, "wb") as archive:
                async with self.turns, _temporary_folder() as folder:
                    await copy_run(view, folder / "run", traces=traces)
                    await run_in_thread(lambda: pack_copy(folder / "run", archive))
        except BaseException:
            os.unlink(name)  # noqa: PTH108 - this must not wait
            raise
        headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Accept-Ranges": "none"}
        return _TemporaryFileResponse(name, media_type="application/zip", headers=headers)


class _TemporaryFileResponse(FileResponse):
    """Sends a file that was made for this answer, and deletes it.

    Always the whole file: the next request gets another one. A background task would not be started for an answer that
    fails.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"range"]
        try:
            await super().__call__({**scope, "headers": headers}, receive, send)
        finally:
            os.unlink(self.path)  # noqa: PTH108 - this must not wait


@asynccontextmanager
async def _temporary_folder() -> AsyncIterator[Path]:
    folder = await run_in_thread(lambda: Path(tempfile.mkdtemp(prefix="promptiter-")))
    try:
        yield folder
    finally:
        await run_in_thread(lambda: shutil.rmtree(folder, ignore_errors=True))
