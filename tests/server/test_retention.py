"""Old runs are deleted while a server runs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress

import pytest

from promptiter.manager import Manager
from promptiter.runs.memory_store import MemoryStore
from promptiter.server.retention import Retention
from promptiter.testing.list_contract import end_run
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_header
from tests.server.conftest import SmallApp

pytestmark = pytest.mark.slow


async def prune(manager: Manager, retention: Retention) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await retention.keep_pruning(manager, every_s=60)


async def make_runs(store: MemoryStore) -> None:
    """Three runs of an app that have ended, and one that has not."""
    for run_id in ("a", "b", "c", "d"):
        await store.for_app("desk").create(make_header(run_id))
        if run_id != "a":
            await end_run(store.for_app("desk"), run_id, "failed")


async def test_only_runs_that_have_ended_are_deleted() -> None:
    store = MemoryStore()
    await make_runs(store)
    manager = Manager([SmallApp(SmallRun())], store=store)
    deleted: list[str] = []

    async def note(run_ids: Collection[str]) -> None:
        deleted.extend(run_ids)

    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await Retention(keep_last=1).keep_pruning(manager, every_s=60, on_deleted=note)
    assert await store.for_app("desk").list_ids() == ["a", "d"]
    assert sorted(deleted) == ["b", "c"]


async def test_without_a_limit_all_runs_are_kept() -> None:
    store = MemoryStore()
    await make_runs(store)
    await prune(Manager([SmallApp(SmallRun())], store=store), Retention())
    await prune(Manager([SmallApp(SmallRun())], store=store), Retention(keep_days=365 * 100))
    assert await store.for_app("desk").list_ids() == ["a", "b", "c", "d"]


async def test_a_run_that_is_being_refined_is_kept() -> None:
    store = MemoryStore()
    await make_runs(store)
    manager = Manager([SmallApp(SmallRun())], store=store)
    asked: list[tuple[str, str]] = []

    def is_refined(app: str, run_id: str) -> bool:
        asked.append((app, run_id))
        return run_id == "b"

    with suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await Retention(keep_last=1).keep_pruning(manager, every_s=60, is_in_use=is_refined)
    assert asked == [("desk", "c"), ("desk", "b")]
    assert await store.for_app("desk").list_ids() == ["a", "b", "d"]
