"""Which store a place is, and what every store can do by listing and deleting runs."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from promptiter.errors import RunLockedError, SetupError, UnknownRunError
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.lock import LEASE_S
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import ENDED, MAX_PAGE, ListedRun, RunQuery
from promptiter.runs.store import Store

MEMORY = "memory"


def open_store(where: str | os.PathLike[str], *, lease_s: float = LEASE_S) -> Store:
    """Open the store `"memory"`, one in a database (`sqlite:///runs.db`, `postgresql://…`), or one in a folder."""
    if where == MEMORY:
        return MemoryStore(lease_s=lease_s)
    if is_url(where):
        from promptiter.runs.sql.store import SqlStore

        return SqlStore(str(where), lease_s=lease_s)
    return FolderStore(where, lease_s=lease_s)


def is_url(where: str | os.PathLike[str]) -> bool:
    """Whether a place is the URL of a database rather than a folder."""
    return isinstance(where, str) and "://" in where


async def iterate_runs(store: Store, query: RunQuery) -> AsyncIterator[ListedRun]:
    """Yield all runs that a query asks for, newest first. They are read page by page."""
    cursor = query.cursor
    while True:
        page = await store.list_runs(replace(query, cursor=cursor))
        for run in page.runs:
            yield run
        if (cursor := page.next_cursor) is None:
            return


async def prune_runs(
    store: Store,
    *,
    older_than_days: float | None = None,
    keep_last: int | None = None,
    is_in_use: Callable[[str], bool] = lambda _: False,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[str]:
    """Delete runs that have ended, and return their ids. Their uses of cases stay.

    Only runs created more than `older_than_days` ago are deleted, and never the `keep_last` runs that ended last, nor
    those that are in use.
    """
    if older_than_days is None and keep_last is None:
        raise SetupError("prune_runs would delete all runs; give older_than_days, keep_last or both")
    before = "" if older_than_days is None else (now() - timedelta(days=older_than_days)).isoformat(timespec="seconds")
    kept, deleted = keep_last or 0, []
    async for run in iterate_runs(store, RunQuery(statuses=ENDED, limit=MAX_PAGE)):
        if kept > 0:
            kept -= 1
        elif (not before or run.created_at < before) and not is_in_use(run.run_id):
            with suppress(RunLockedError, UnknownRunError):  # it was resumed or deleted just now
                await store.delete(run.run_id, only_ended=True)
                deleted.append(run.run_id)
    return deleted
