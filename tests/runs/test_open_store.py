"""Places of stores, and what every store can do by listing and deleting runs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_list import RunQuery
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.runs.stores import iterate_runs, open_store, prune_runs
from promptiter.testing.list_contract import end_run
from promptiter.testing.store_hooks import make_header

pytestmark = pytest.mark.slow


def test_a_place_is_memory_a_folder_or_a_url(tmp_path: Path) -> None:
    assert isinstance(open_store("memory"), MemoryStore)
    assert isinstance(open_store(f"sqlite:///{tmp_path}/runs.db"), SqlStore)
    for folder in ("runs", tmp_path):
        store = open_store(folder)
        assert isinstance(store, FolderStore)
        assert store.folder == Path(folder)
    with pytest.raises(SetupError, match="'redis' is not a known database"):
        open_store("redis://host/0")


async def make_runs(store: Store, count: int) -> None:
    """One run a day from the first of November; the second is not finished."""
    for number in range(count):
        header = make_header(f"run-{number}").model_copy(
            update={"created_at": f"2026-11-{number + 1:02}T12:00:00+00:00"}
        )
        await store.create(header)
        if number != 1:
            await end_run(store, header.run_id, "failed" if number % 2 else "succeeded", is_final=not number % 2)


@pytest.mark.parametrize(
    ("older_than_days", "keep_last", "deleted"),
    [
        (3, None, ["run-3", "run-2", "run-0"]),
        (None, 2, ["run-3", "run-2", "run-0"]),
        (3, 4, ["run-0"]),
        (30, None, []),
        (0, None, ["run-5", "run-4", "run-3", "run-2", "run-0"]),
        (None, 0, ["run-5", "run-4", "run-3", "run-2", "run-0"]),
    ],
)
async def test_old_runs_that_have_ended_are_pruned(
    older_than_days: float | None, keep_last: int | None, deleted: list[str]
) -> None:
    store = MemoryStore()
    await make_runs(store, 6)
    found = await prune_runs(
        store,
        older_than_days=older_than_days,
        keep_last=keep_last,
        now=lambda: datetime(2026, 11, 8, tzinfo=UTC),
    )
    assert found == deleted
    left = [each.run_id async for each in iterate_runs(store, RunQuery(limit=1))]
    assert left == [f"run-{number}" for number in range(5, -1, -1) if f"run-{number}" not in deleted]


async def test_a_run_that_is_resumed_after_it_was_listed_is_not_pruned() -> None:
    class ResumingStore(MemoryStore):
        async def delete(self, run_id: str, *, only_ended: bool = False) -> None:
            await self.request_resume(run_id)
            await super().delete(run_id, only_ended=only_ended)

    store = ResumingStore()
    await store.create(make_header("a"))
    await end_run(store, "a", "failed")
    assert await prune_runs(store, keep_last=0) == []
    assert await store.list_ids() == ["a"]


async def test_a_run_that_is_open_is_not_pruned() -> None:
    store = MemoryStore()
    await make_runs(store, 3)
    async with store.open("run-0"):
        assert await prune_runs(store, keep_last=0) == ["run-2"]


async def test_pruning_without_a_limit_is_refused() -> None:
    with pytest.raises(SetupError, match="would delete all runs; give older_than_days"):
        await prune_runs(MemoryStore())
