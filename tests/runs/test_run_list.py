"""What a list says of a run, in every store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunQuery
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.testing.store_hooks import make_event, make_header

STORES: tuple[Callable[[Path], Store], ...] = (
    lambda _: MemoryStore(),
    FolderStore,
    lambda path: SqlStore(f"sqlite:///{path}/runs.db"),
)


@pytest.mark.parametrize("make_store", STORES, ids=["memory", "folder", "sqlite"])
async def test_a_queued_run_is_not_running_and_need_not_be_resumed(
    make_store: Callable[[Path], Store], tmp_path: Path
) -> None:
    store = make_store(tmp_path)

    async def describe() -> tuple[str, str, bool]:
        [run] = (await store.list_runs(RunQuery())).runs
        return run.status, run.outcome, run.can_resume

    await store.create(make_header("a").model_copy(update={"app": "desk"}))
    assert await describe() == ("queued", "queued", False)
    await store.request_stop("a", cancel=True)
    assert await describe() == ("cancelled", "cancelled", True)
    await store.request_resume("a")
    assert await describe() == ("queued", "queued", False)
    async with store.open("a") as run:
        assert await describe() == ("running", "running", False)
        await run.journal.append(make_event(0))
    assert await describe() == ("interrupted", "interrupted", True)
