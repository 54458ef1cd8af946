"""Refinements over HTTP: of runs that a real app made, in a folder."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from promptiter.manager import Manager
from promptiter.manager.app import ConfiguredApp
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.stores import open_store
from promptiter.server.client import AsyncClient
from promptiter.server.limits import Limits
from promptiter.server.refined_copies import RefinedCopies
from promptiter.server.tokens import Tokens
from promptiter.tasks.refine.run_seeds import find_home
from promptiter.tasks.refine.seeds import find_sessions
from promptiter.testing.list_contract import end_run
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_header
from tests.manager.test_manager import GatedRun
from tests.server.conftest import DESK, SmallApp, make_tokens, serving

pytestmark = pytest.mark.slow

AGENT = """
import threading
from promptiter import GraphAgent, ModelNode

gate = threading.Event()
gate.set()
reached = threading.Event()


def answer(messages):
    if "[REFINEMENT" not in messages[-1]["content"]:
        return "paris"
    reached.set()
    assert gate.wait(30)
    return "paris, with sources"


def sources(case, run):
    return ("with sources" in run.output, "" if "with sources" in run.output else "it names no sources")


agent = GraphAgent(name="desk", nodes=(ModelNode(name="clerk", model="own", instruction="Answer."),))
"""
CONFIG = """
agent: served_bot:agent
cases: cases.jsonl
metrics: [{metric_name: "served_bot:sources"}]
models: {own: {model: "served_bot:answer"}, strong: {model: "served_bot:answer"}}
max_rounds: 0
refine: {models: [listed], tiers: {high: "strong:"}}
server: {app: desk}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "served_bot.py").write_text(AGENT)
    (folder / "promptiter.yaml").write_text(CONFIG)
    (folder / "cases.jsonl").write_bytes(orjson.dumps({"id": "france/capital", "input": "Capital of France?"}) + b"\n")
    sys.modules.pop("served_bot", None)
    yield folder
    sys.modules.pop("served_bot", None)


def find_event(name: str) -> threading.Event:
    event = getattr(sys.modules["served_bot"], name)
    assert isinstance(event, threading.Event)
    return event


def make_manager(project: Path) -> Manager:
    return Manager([ConfiguredApp(project)], store=FolderStore(project / "runs"))


@asynccontextmanager
async def serving_run(project: Path, **options: Any) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A server with one run that has ended, and the address of that run."""
    async with serving(make_manager(project), **options) as client:
        done = await client.post(f"{DESK}/runs", json={"run": {}})
        assert done.status_code == 200, done.text
        yield client, f"{DESK}/async-runs/{done.json()['result']['measured']['run_id']}"


async def wait_for_end(client: httpx.AsyncClient, place: str) -> list[dict[str, Any]]:
    async with asyncio.timeout(30):
        while True:
            found: list[dict[str, Any]] = (await client.get(f"{place}/refinements")).json()["refinements"]
            if all(each["status"] != "running" for each in found):
                return found
            await asyncio.sleep(0.02)


async def test_a_case_of_a_run_is_refined(project: Path) -> None:
    async with serving_run(project) as (client, place):
        started = await client.post(f"{place}/refine", json={"iterations": 2, "case": "france/capital"})
        assert started.status_code == 202, started.text
        assert started.json()["warnings"] == []
        assert started.json()["refinement"]["case"] == "france/capital"
        [session] = await wait_for_end(client, place)
        assert session["session_id"] == started.json()["refinement"]["session_id"]
        assert (session["status"], session["best_iter"]) == ("ended", 1)
        assert session["stop_reason"] == "empty_gradient_midloop"
        assert session["chain"] == [session["seed_run_id"], session["iterations"][0]["run_id"]]
        home = find_home(project / "runs" / "desk" / place.rpartition("/")[2], "france/capital")
        assert (home / "BEST" / "answer.md").read_text() == "paris, with sources"


async def test_tiers_and_a_model_together_warn(project: Path) -> None:
    body = {
        "iterations": 1,
        "tier_low": {"manager": "", "worker": ""},
        "tier_high": {"manager": "strong", "worker": ""},
        "model": "own",
    }
    async with serving_run(project) as (client, place):
        started = await client.post(f"{place}/refine", json=body)
        assert started.status_code == 202
        assert started.json()["warnings"] == ["refinement.mixed_body: tier_* set; ignoring legacy model/worker_model"]
        [session] = await wait_for_end(client, place)
        assert (session["tier_plan_used"], session["iterations"][0]["model_manager"]) == (True, "strong")


async def test_tiers_without_models_use_those_of_the_seed(project: Path) -> None:
    tiers = {f"tier_{name}": {"manager": "", "worker": None} for name in ("low", "mid", "high")}
    async with serving_run(project) as (client, place):
        assert (await client.post(f"{place}/refine", json=tiers)).status_code == 202
        [session] = await wait_for_end(client, place)
        assert (session["tier_plan_used"], session["iterations"][0]["model_manager"]) == (False, "own")


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"model": "gpt-4o"}, "the model 'gpt-4o' is not one of this app"),
        ({"tier_low": {"worker": "os:system"}}, "the model 'os:system' is not one of this app"),
        ({"model": "stron"}, "did you mean 'strong'?"),
        ({"agent": "os:system"}, "agent"),
        ({"command": "rm -rf /"}, "command"),
        ({"work_dir": "/tmp"}, "work_dir"),
        ({"rubric": "/etc/passwd"}, "rubric"),
        ({"iterations": "many"}, "iterations"),
        ({"iterations": True}, "iterations"),
        ({"case": "../../etc"}, "has no case '../../etc'"),
        ([1], "must be an object"),
    ],
)
async def test_what_a_request_must_not_say_is_refused(project: Path, body: Any, problem: str) -> None:
    async with serving_run(project) as (client, place):
        refused = await client.post(f"{place}/refine", json=body)
        assert refused.status_code == 400, refused.text
        assert problem in refused.text
        assert "the run cannot start" not in refused.text
        assert str(project) not in refused.text
        assert (await client.get(f"{place}/refinements")).json() == {"refinements": []}


@pytest.mark.parametrize("model", ["own", "strong", "listed"])
async def test_models_of_the_app_may_be_named(project: Path, model: str) -> None:
    async with serving_run(project) as (client, place):
        found = await client.post(f"{place}/refine", json={"worker_model": model})
        assert "is not one of this app" not in found.text


async def test_unknown_runs_and_runs_in_progress_are_refused(project: Path) -> None:
    async with serving(make_manager(project)) as client:
        for name in ("missing", "..%2f..%2fetc", "%2e%2e"):
            for answer in (
                await client.post(f"{DESK}/async-runs/{name}/refine"),
                await client.get(f"{DESK}/async-runs/{name}/refinements"),
            ):
                assert answer.status_code == 404, (name, answer.text)
        other = await client.post("/promptiter/v1/apps/other/async-runs/x/refine")
        assert other.status_code == 404
    gated = GatedRun()
    async with serving(Manager([SmallApp(gated)], store=FolderStore(project / "other"))) as client:
        started = await client.post(f"{DESK}/async-runs")
        refused = await client.post(f"{started.headers['location']}/refine")
        assert refused.status_code == 409
        assert "refine it when it has ended" in refused.text
        gated.gate.set()


async def test_a_run_in_a_database_is_copied_and_refined(project: Path) -> None:
    store = f"sqlite:///{project / 'promptiter.db'}"
    async with serving(Manager([ConfiguredApp(project)], store=open_store(store))) as client:
        done = await client.post(f"{DESK}/runs", json={"run": {}})
        run_id = done.json()["result"]["measured"]["run_id"]
        place = f"{DESK}/async-runs/{run_id}"
        assert (await client.get(f"{place}/refinements")).json() == {"refinements": []}
        for _ in range(2):
            started = await client.post(f"{place}/refine", json={"iterations": 1})
            assert started.status_code == 202, started.text
            await wait_for_end(client, place)
    copy = project / "refined_runs" / "desk" / run_id
    assert [each.name for each in copy.parent.iterdir()] == [run_id]
    assert (find_home(copy, "france/capital") / "BEST" / "answer.md").read_text() == "paris, with sources"
    async with serving(Manager([ConfiguredApp(project)], store=open_store(store))) as client:
        found = (await client.get(f"{place}/refinements")).json()["refinements"]
        assert [(each["status"], each["best_iter"]) for each in found] == [("ended", 1), ("ended", 1)]
        assert (await client.delete(place)).status_code == 204
    assert not copy.exists()


async def test_a_copy_follows_its_run(project: Path) -> None:
    """A run that failed may be refined, resumed and refined again."""
    store = MemoryStore()
    await store.for_app("desk").create(make_header("b"))
    copies = RefinedCopies(Manager([ConfiguredApp(project)], store=store))
    view = await store.for_app("desk").view("b")
    folder = copies.find("desk", view)
    assert folder is not None
    await copies.update(view, folder)
    assert await FileJournal(folder / JOURNAL).last() is None
    await end_run(store.for_app("desk"), "b", "failed")
    (folder / "refined").mkdir()
    await copies.update(view, folder)
    assert await FileJournal(folder / JOURNAL).last() == await view.last()
    assert (folder / "refined").is_dir()
    copies.remove(["desk"], ["b", "../desk"])
    assert not folder.exists()


async def test_a_server_that_cannot_keep_a_copy_says_so(project: Path) -> None:
    (project / "refined_runs").touch()
    async with serving(Manager([ConfiguredApp(project)], store=MemoryStore())) as client:
        run_id = (await client.post(f"{DESK}/runs", json={"run": {}})).json()["result"]["measured"]["run_id"]
        refused = await client.post(f"{DESK}/async-runs/{run_id}/refine")
        assert (refused.status_code, "cannot keep a copy of the run" in refused.text) == (503, True)


async def test_apps_without_a_project_say_what_to_do() -> None:
    async with serving(Manager([SmallApp(SmallRun())], store=MemoryStore())) as client:
        run_id = (await client.post(f"{DESK}/runs")).json()["result"]["measured"]["run_id"]
        refused = await client.post(f"{DESK}/async-runs/{run_id}/refine")
        assert refused.status_code == 409
        assert "promptiter export" in refused.json()["error"]
        assert (await client.get(f"{DESK}/async-runs/{run_id}/refinements")).json() == {"refinements": []}


async def test_a_run_that_is_being_refined_is_left_alone(project: Path) -> None:
    async with serving_run(project) as (client, place):
        find_event("gate").clear()
        assert (await client.post(f"{place}/refine")).status_code == 202
        assert await asyncio.to_thread(find_event("reached").wait, 30)
        again = await client.post(f"{place}/refine")
        assert (again.status_code, "is being refined" in again.text) == (409, True)
        deleted = await client.delete(place)
        assert (deleted.status_code, "is being refined" in deleted.text) == (409, True)
        [session] = (await client.get(f"{place}/refinements")).json()["refinements"]
        assert (session["status"], session["stop_reason"]) == ("running", None)
        find_event("gate").set()
        await wait_for_end(client, place)
        assert (await client.delete(place)).status_code == 204


async def test_sessions_survive_the_server(project: Path) -> None:
    async with serving_run(project) as (client, place):
        find_event("gate").clear()
        await client.post(f"{place}/refine")
        assert await asyncio.to_thread(find_event("reached").wait, 30)
        find_event("gate").set()
        run_folder = project / "runs" / "desk" / place.rpartition("/")[2]
    sessions = find_sessions(find_home(run_folder, "france/capital"))
    [ended] = sessions.read_all()
    assert ended.completed_at is not None
    killed = ended.model_copy(
        update={
            "session_id": "refine_20990101T000000Z",
            "started_at": "2099",
            "completed_at": None,
            "stop_reason": None,
        }
    )
    sessions.write(killed)
    async with serving(make_manager(project)) as client:
        found = (await client.get(f"{place}/refinements")).json()["refinements"]
    assert [each["status"] for each in found] == ["ended", "interrupted"]
    assert found[0]["session_id"] == ended.session_id


async def test_refining_needs_the_scope_run(project: Path) -> None:
    tokens: Tokens = make_tokens(reader=("read",), runner=("run",))
    async with serving(make_manager(project), tokens=tokens) as client:
        place = f"{DESK}/async-runs/missing"
        for token, posted, got in (("", 401, 401), ("reader", 403, 404), ("runner", 404, 404)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            assert (await client.post(f"{place}/refine", headers=headers)).status_code == posted
            assert (await client.get(f"{place}/refinements", headers=headers)).status_code == got


async def test_a_large_body_is_refused(project: Path) -> None:
    async with serving_run(project, limits=Limits(max_body_bytes=200)) as (client, place):
        assert (await client.post(f"{place}/refine", json={"case": "x" * 300})).status_code == 413


async def test_the_client_refines(project: Path) -> None:
    from promptiter.server.application import create_application

    application = create_application(make_manager(project))
    transport = httpx.ASGITransport(app=application)
    async with (
        application.router.lifespan_context(application),
        AsyncClient("http://testserver", app="desk", transport=transport) as client,
    ):
        run = await client.run()
        started = await client.refine(run.run_id, iterations=1, tier_high={"manager": "strong"})
        async with asyncio.timeout(30):
            while (await client.list_refinements(run.run_id))[0].status == "running":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        [session] = await client.list_refinements(run.run_id)
    assert (session.session_id, session.best_iter) == (started.refinement.session_id, 1)


async def test_the_openapi_document_describes_both_routes(project: Path) -> None:
    async with serving(make_manager(project)) as client:
        document = (await client.get("/promptiter/v1/openapi.json")).json()
    paths = {path.rpartition("/")[2]: each for path, each in document["paths"].items()}
    refine = paths["refine"]["post"]
    assert refine["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/RefineBody")
    assert {"202", "400", "401", "403", "404", "409", "413"} <= set(refine["responses"])
    assert set(document["components"]["schemas"]["RefineBody"]["properties"]) == {
        *("case", "iterations", "tier_low", "tier_mid", "tier_high", "model", "worker_model")
    }
    assert "200" in paths["refinements"]["get"]["responses"]
