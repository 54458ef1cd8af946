"""`promptiter serve` as a process that is killed and stopped, and how a server stops."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path

import httpx
import pytest

from promptiter.manager import ConfiguredApp, Manager
from promptiter.server.serving import ServerOptions, serve
from promptiter.testing.store_hooks import wait_until
from tests.manager.test_manager import GatedRun
from tests.server.conftest import DESK, SmallApp
from tests.server.served_desk import OVERLAYS, ServedDesk

pytestmark = pytest.mark.slow


async def run_undisturbed(desk: ServedDesk) -> list[object]:
    async with Manager(ConfiguredApp(desk.project)) as manager:
        ids = [(await manager.start(each)).run_id for each in OVERLAYS[2:]]
        return [await manager.wait(run_id) for run_id in ids]


@pytest.mark.long
def test_runs_survive_a_kill_and_the_loss_of_folders_and_a_stopped_server_exits_with_0(tmp_path: Path) -> None:
    desk = ServedDesk(tmp_path, f"sqlite:///{tmp_path}/runs.db", "desk")
    try:
        first = desk.start()
        with first.client() as client:
            ids = [client.start(each).run_id for each in OVERLAYS[2:]]
            time.sleep(0.3)
        first.end(signal.SIGKILL)
        desk.lose_folders()
        second = desk.start()
        with second.client() as client:
            results = [client.wait(run_id) for run_id in ids]
        assert second.end(signal.SIGTERM) == 0
        assert "Error" not in second.output.read_text(encoding="utf-8")
        assert results == asyncio.run(run_undisturbed(desk))
    finally:
        desk.end_all()
        sys.modules.pop("agent", None)  # the one of run_undisturbed


async def test_a_server_that_stops_ends_streams_cleanly_and_starts_no_more_runs() -> None:
    gated = GatedRun(free=4)
    manager = Manager([SmallApp(gated)])
    stop = asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(manager, ServerOptions(port=0), on_start=address.set_result, stop=stop))
    async with asyncio.timeout(30), httpx.AsyncClient(base_url=await address, timeout=30) as client:
        blocked = asyncio.create_task(client.post(f"{DESK}/runs"))
        await gated.waits.wait()
        [run] = (await client.get(f"{DESK}/async-runs")).json()["runs"]
        streaming = asyncio.create_task(client.get(f"{DESK}/async-runs/{run['run_id']}/events"))
        await asyncio.sleep(0.1)
        stop.set()
        await wait_until(lambda: manager.is_closing)
        refused = await client.post(f"{DESK}/async-runs")
        assert (refused.status_code, refused.json()["error"]) == (503, "the server is stopping; ask the next one")
        assert (await client.get(f"{DESK}/async-runs/{run['run_id']}")).json()["result"]["status"] == "running"
        gated.gate.set()
        text = (await streaming).text
        assert text.startswith("id: 0\n")
        assert text.endswith("\n\n")
        assert "event: end" not in text, "the run goes on elsewhere"
        answer = await blocked
        assert answer.status_code == 503
        assert run["run_id"] in answer.json()["error"]
        await serving
