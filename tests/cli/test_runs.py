from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.runs.stores import open_store
from promptiter.testing.list_contract import end_run
from promptiter.testing.store_hooks import make_header
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_runs_of_a_database_are_listed(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def make_runs() -> None:
        store = SqlStore(url)
        for place, run_id in ((store, "first"), (store, "second"), (store.for_app("desk"), "of the desk")):
            await place.create(make_header(run_id))
            await end_run(place, run_id, "failed", error="no luck")
        await store.close()

    asyncio.run(make_runs())
    shown = run("runs", url)
    assert shown.index("first") < shown.index("second")
    assert "failed" in shown
    assert "second: no luck" in shown
    assert "of the desk" not in shown
    assert "runs of the apps desk: --app NAME" in run("runs", url, stream="err")
    assert "of the desk" in run("runs", url, "--app", "desk")


def test_those_who_look_in_the_wrong_place_learn_which_apps_have_runs(tmp_path: Path, run: Run) -> None:
    database, folder = f"sqlite:///{tmp_path}/runs.db", str(tmp_path / "runs")

    async def make_run(store: Store) -> None:
        await store.for_app("desk").create(make_header("waiting").model_copy(update={"app": "desk"}))

    for place in (database, folder):
        asyncio.run(make_run(open_store(place)))
        for shown in (run("runs", place), run("show", "latest", "--runs", place, code=2)):
            assert "no runs outside an app in " in shown
            assert "it has the apps desk: " in shown
        assert "waiting" in run("runs", place, "--app", "desk")
        assert "no such runs in the app 'desk'" in run("runs", place, "--app", "desk", "--status", "failed")
        assert "no runs in the app 'dsek' of" in run("runs", place, "--app", "dsek")
        assert "did you mean 'desk'" in run("runs", place, "--app", "dsek")
        assert "it has the apps desk: --app NAME" in run("runs", place, "--app", "other")


def test_reading_creates_no_database(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "typo.db"
    for command in (("runs",), ("show", "latest", "--runs"), ("stop", "latest", "--runs")):
        assert f"there is no database sqlite:///{file}" in run(*command, f"sqlite:///{file}", code=2)
    assert not file.exists()


def test_a_run_that_has_not_begun_is_listed_and_shown_as_what_it_is(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def make_runs() -> None:
        store = SqlStore(url)
        for run_id in ("waiting", "unwanted"):
            await store.for_app("desk").create(make_header(run_id).model_copy(update={"app": "desk"}))
        await store.close()

    asyncio.run(make_runs())
    at = ("--runs", url, "--app", "desk")
    listed = run("runs", *at)
    assert listed.count("queued") == 2
    assert "can be resumed" not in listed
    assert "no process works on the run 'unwanted'; --cancel marks it as cancelled" in run(
        "stop", "unwanted", *at, code=2
    )
    assert "cancelled unwanted" in run("stop", "unwanted", *at, "--cancel")
    assert run("show", "waiting", *at) == "waiting is queued: it has not begun\n"
    assert run("show", "unwanted", *at) == "unwanted is cancelled; it had not begun\n"
    shown = json.loads(run("show", "unwanted", *at, "--json"))
    assert (shown["run_id"], shown["status"], shown["can_resume"]) == ("unwanted", "cancelled", True)


def test_a_run_that_has_ended_is_not_stopped(tmp_path: Path, run: Run) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def make_run() -> None:
        store = SqlStore(url)
        await store.create(make_header("done"))
        await end_run(store, "done", "succeeded", is_final=True)
        await store.close()

    asyncio.run(make_run())
    for options in ((), ("--cancel",)):
        shown = run("stop", "latest", "--runs", url, *options, code=2)
        assert "the run 'done' has ended, so it cannot be stopped" in shown
