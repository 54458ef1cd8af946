"""The report of a run, and its copy as a zip file, over HTTP."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import pytest

from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.manager import Manager
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.run_copy import unpack_copy
from promptiter.runs.summary import read_result
from promptiter.server.run_files import RunFiles
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_header
from tests.manager.test_manager import GatedRun, expected_result
from tests.server.conftest import DESK, SmallApp, serving

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert('x')</script>"


class HostileRun(SmallRun):
    """A run whose model answers with a script."""

    def _answer(self, request: ModelRequest) -> ModelReply:
        answer = super()._answer(request)
        return ModelReply(text=f"{HOSTILE} {answer.text}", usage=answer.usage)


async def test_the_report_is_one_page_without_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with serving(Manager([SmallApp(HostileRun())])) as client:
        run_id = (await client.post(f"{DESK}/runs")).json()["result"]["measured"]["run_id"]
        report = await client.get(f"{DESK}/async-runs/{run_id}/report")
        assert report.status_code == 200
        assert report.headers["content-type"] == "text/html; charset=utf-8"
        assert report.headers["x-content-type-options"] == "nosniff"
        assert report.headers["content-security-policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
        assert "<script" not in report.text
        assert f"promptiter show {run_id} --server http://testserver --app desk" in report.text
        assert str(tmp_path) not in report.text
    assert list_names(tmp_path) == []


async def test_the_report_of_a_run_in_progress_shows_what_it_has_so_far() -> None:
    gated = GatedRun(free=4)
    async with serving(Manager([SmallApp(gated)])) as client:
        run_id = (await client.post(f"{DESK}/async-runs")).json()["result"]["measured"]["run_id"]
        await gated.waits.wait()
        assert "Running in round 1" in (await client.get(f"{DESK}/async-runs/{run_id}/report")).text
        gated.gate.set()


async def test_a_run_that_has_not_begun_has_no_report() -> None:
    store = MemoryStore()
    await store.for_app("desk").create(make_header("a"))
    await store.for_app("desk").request_stop("a", cancel=True)
    async with serving(Manager([SmallApp(SmallRun())], store=store)) as client:
        answer = await client.get(f"{DESK}/async-runs/a/report")
        assert (answer.status_code, answer.json()) == (
            409,
            {"error": "the run 'a' has not begun; it has no report yet"},
        )


async def test_the_archive_is_a_copy_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        run_id = (await client.post(f"{DESK}/runs")).json()["result"]["measured"]["run_id"]
        for query, has_traces in (("", True), ("?traces=false", False)):
            answer = await client.get(f"{DESK}/async-runs/{run_id}/archive{query}")
            assert answer.headers["content-type"] == "application/zip"
            folder = tmp_path / f"copy{query}"
            unpack_copy(io.BytesIO(answer.content), folder)
            assert read_result(folder) == await expected_result()
            assert (folder / "traces.jsonl.gz").exists() == has_traces
    assert list_names(tmp_path / "temporary") == []


async def test_a_stopped_run_finishes_its_work_and_can_be_resumed() -> None:
    gated = GatedRun(free=4)
    manager = Manager([SmallApp(gated)])
    async with serving(manager) as client:
        run_id = (await client.post(f"{DESK}/async-runs")).json()["result"]["measured"]["run_id"]
        await gated.waits.wait()
        assert (await client.post(f"{DESK}/async-runs/{run_id}/stop")).status_code == 202
        gated.gate.set()
        stopped = await manager.wait(run_id)
        assert stopped.stop is not None
        assert stopped.stop.reason == "user_stop"
        assert (await client.post(f"{DESK}/async-runs/{run_id}/resume")).status_code == 202
        assert await manager.wait(run_id) == await expected_result()
        assert (await client.post(f"{DESK}/async-runs/{run_id}/stop")).status_code == 409


async def test_a_queued_run_that_is_stopped_is_cancelled() -> None:
    gated = GatedRun()
    manager = Manager([SmallApp(gated)], max_runs=1)
    async with serving(manager) as client:
        first, second = [(await client.post(f"{DESK}/async-runs")).json()["result"]["measured"]["run_id"] for _ in "ab"]
        await gated.waits.wait()
        answer = await client.post(f"{DESK}/async-runs/{second}/stop")
        assert answer.json()["result"]["status"] == "cancelled"
        gated.gate.set()
        await manager.wait(first)


@pytest.mark.parametrize(
    "wanted", ["bytes=abc", "bytes=99999999-", "items=0-1", "bytes=5-1", "bytes=0-1", "bytes=0-0,5-6"]
)
async def test_an_archive_is_sent_as_a_whole_whatever_range_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with serving(Manager([SmallApp(SmallRun())])) as client:
        run_id = (await client.post(f"{DESK}/runs")).json()["result"]["measured"]["run_id"]
        answer = await client.get(f"{DESK}/async-runs/{run_id}/archive", headers={"Range": wanted})
        assert (answer.status_code, answer.headers["accept-ranges"]) == (200, "none")
        unpack_copy(io.BytesIO(answer.content), tmp_path / "copy")
    assert list_names(tmp_path) == ["copy"]


async def test_an_archive_that_cannot_be_sent_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    manager = Manager([SmallApp(SmallRun())])
    async with serving(manager) as client:
        run_id = (await client.post(f"{DESK}/runs")).json()["result"]["measured"]["run_id"]
        archive = await RunFiles().make_archive(await manager.view(run_id, app="desk"), traces=False)

        async def send(_: Any) -> None:
            raise OSError("the client has left")

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "GET", "headers": [], "asgi": {"spec_version": "2.4"}}
        with pytest.raises(OSError, match="has left"):
            await archive(scope, receive, send)
    assert list_names(tmp_path) == []


def list_names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]
