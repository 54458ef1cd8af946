from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from promptiter.errors import RunLockedError
from promptiter.runs.sql.store import SqlStore
from promptiter.testing.store_hooks import LOST, Clock, make_event, make_header, make_key, wait_until

pytestmark = pytest.mark.slow

KILLED = """
import asyncio, os, signal, sys
from promptiter.runs.sql.store import SqlStore
from promptiter.testing.store_hooks import LOST, ask, make_event, make_key

async def work():
    async with SqlStore(sys.argv[1]).open("a") as run:
        for seq in range(3):
            await run.journal.append(make_event(seq))
            await ask(run, seq)
        await run.answers.asking(make_key(9), lost=LOST).__aenter__()
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(work())
"""


async def test_the_run_of_a_killed_process_can_be_opened_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    store = SqlStore(url)
    await store.create(make_header("a"))
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, url])
    assert killed.returncode == -signal.SIGKILL
    assert await (await store.view("a")).find_holder() is None
    async with store.open("a") as run:
        assert [event.seq async for event in run.journal.read()] == [0, 1, 2]
        total = (await run.answers.ledger()).total
        assert (total.calls, total.lost_calls, total.possible_usd) == (3, 1, LOST.spent.possible_usd)
        assert await run.answers.get(make_key(2)) is not None


async def test_one_of_several_that_open_a_run_at_the_same_time_gets_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    await SqlStore(url).create(make_header("a"))
    opened, finish = 0, asyncio.Event()

    async def work(store: SqlStore) -> None:
        nonlocal opened
        async with store.open("a") as run:
            opened += 1
            await run.journal.append(make_event(0))
            await finish.wait()

    tasks = [asyncio.create_task(work(SqlStore(url))) for _ in range(6)]
    await wait_until(lambda: sum(task.done() for task in tasks) == 5)
    finish.set()
    failed = [type(each) for each in await asyncio.gather(*tasks, return_exceptions=True) if each is not None]
    assert opened == 1
    assert failed == [RunLockedError] * 5


async def test_an_opening_that_is_cancelled_leaves_no_lease(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db")
    await store.create(make_header("a"))
    with closing(sqlite3.connect(tmp_path / "runs.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = asyncio.create_task(store.open("a").__aenter__())
        await asyncio.sleep(0.2)  # it waits for the other process
        opening.cancel()
        other.execute("COMMIT")
    with pytest.raises(asyncio.CancelledError):
        await opening
    async with store.open("a") as run:
        await run.journal.append(make_event(0))


async def test_a_lease_is_renewed_while_the_event_loop_is_blocked(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/runs.db", lease_s=1.2)
    await store.create(make_header("a"))
    async with store.open("a"):
        time.sleep(1.6)  # noqa: ASYNC251 - as a function of the user may
        with pytest.raises(RunLockedError, match="that is this process"):
            async with store.open("a"):
                pass


async def test_a_locked_run_names_its_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, url = Clock(), f"sqlite:///{tmp_path}/runs.db"
    store = SqlStore(url, now=clock)
    await store.create(make_header("a"))
    monkeypatch.setattr("promptiter.runs.sql.leases._this_place", lambda: "elsewhere")
    async with store.open("a"):
        monkeypatch.undo()
        with pytest.raises(RunLockedError, match=r"locked by process \d+ on .*; .* try again in 60 s"):
            async with SqlStore(url, now=clock).open("a"):
                pass
