from __future__ import annotations

import asyncio

from promptiter.manager import Manager
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.stored_run import StoredRun
from promptiter.server.stream import stream_events
from promptiter.testing.small_run import SmallRun


async def test_the_stream_of_a_run_that_is_deleted_ends() -> None:
    store, small = MemoryStore(), SmallRun()
    run_id = (await StoredRun.begin(store, small.engine, small.request, app="default")).run_id
    manager = Manager(small.engine, store=store)  # it has not begun to look for runs

    async def read() -> list[bytes]:
        return [each async for each in stream_events(manager, "default", run_id, after=-1)]

    async with asyncio.timeout(30):
        reading = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        assert not reading.done()
        await manager.delete(run_id)
        assert await reading == []
