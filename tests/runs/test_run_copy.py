"""Copies of runs: from any store, as folders and as zip files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.trace_file import TraceFile
from promptiter.runlog.results import RunResult
from promptiter.runs.folder_store import FolderStore, read_run
from promptiter.runs.header import Configuration, read_header
from promptiter.runs.lock import find_holder
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.report.run_report import read_report
from promptiter.runs.run_copy import copy_run, finish_copy, pack_copy, set_configuration, unpack_copy
from promptiter.runs.stored_run import StoredRun
from promptiter.runs.stores import open_store
from promptiter.runs.summary import read_result, read_summary
from promptiter.testing.list_contract import end_run
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import make_header

pytestmark = pytest.mark.slow

AT_SERVER = RunAddress.of_server("a run", url="http://here", app="desk")


async def run_in(store: MemoryStore | FolderStore) -> tuple[str, RunResult]:
    small = SmallRun()
    run = await StoredRun.begin(store, small.engine, small.request)
    return run.run_id, await run.run()


@pytest.mark.parametrize("where", ["memory", "folder", "sqlite"])
async def test_a_copy_has_the_result_and_the_traces_of_a_run_in_any_store(where: str, tmp_path: Path) -> None:
    place = {"memory": "memory", "folder": str(tmp_path / "runs"), "sqlite": f"sqlite:///{tmp_path}/runs.db"}[where]
    store = open_store(place)
    run_id, result = await run_in(store)  # type: ignore[arg-type]
    copy = tmp_path / "copy"
    await copy_run(await store.view(run_id), copy)
    assert read_result(copy) == result
    assert result.baseline is not None
    [digest] = result.baseline.rows[0].trace_digests
    assert TraceFile(copy / "traces.jsonl.gz").get(digest).steps
    finish_copy(copy)
    assert {"result.json", "report.html", "profiles", "surfaces"} <= {each.name for each in copy.iterdir()}


async def test_a_copy_of_a_run_in_progress_says_so_and_what_was_spent(tmp_path: Path) -> None:
    store, small = MemoryStore(), SmallRun()
    run = await StoredRun.begin(store, small.engine, small.request)
    done = await run.run()
    data = store._runs[run.run_id]
    del data.events[-3:]
    async with store.open(run.run_id):
        await copy_run(await store.view(run.run_id), tmp_path / "copy")
    assert find_holder(tmp_path / "copy") is not None
    summary = read_summary(tmp_path / "copy")
    assert summary.outcome == "running"
    assert summary.costs.models.calls == done.measured.spent.total.calls > 0
    assert read_run(tmp_path / "copy").status == "running"


async def test_a_copy_of_a_cancelled_run_is_cancelled(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.create(make_header("a"))
    await store.request_stop("a", cancel=True)
    await copy_run(await store.view("a"), tmp_path / "copy")
    assert read_run(tmp_path / "copy").status == "cancelled"


async def test_a_copy_without_traces_has_a_report_all_the_same(tmp_path: Path) -> None:
    store = MemoryStore()
    run_id, _ = await run_in(store)
    await copy_run(await store.view(run_id), tmp_path / "copy", traces=False)
    assert not (tmp_path / "copy" / "traces.jsonl.gz").exists()
    report = read_report(tmp_path / "copy", address=AT_SERVER)
    assert report.summary.folder is None
    [show, *_] = report.summary.commands
    assert show.command == "promptiter show 'a run' --server http://here --app desk"


async def test_a_zip_file_has_the_same_copy(tmp_path: Path) -> None:
    store = MemoryStore()
    run_id, result = await run_in(store)
    await copy_run(await store.view(run_id), tmp_path / "copy")
    packed = io.BytesIO()
    pack_copy(tmp_path / "copy", packed)
    unpack_copy(packed, tmp_path / "other" / "copy")
    assert read_result(tmp_path / "other" / "copy") == result
    assert read_header(tmp_path / "other" / "copy") == read_header(tmp_path / "copy")


async def test_a_zip_file_writes_only_the_files_of_a_copy(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.create(make_header("a"))
    await end_run(store, "a", "failed")
    await copy_run(await store.view("a"), tmp_path / "copy")
    packed = io.BytesIO()
    pack_copy(tmp_path / "copy", packed)
    with zipfile.ZipFile(packed, "a") as archive:
        for name in ("../outside", "/outside-of-it", "stop", "sub/run.json"):
            archive.writestr(name, "x")
    unpack_copy(packed, tmp_path / "in" / "it")
    assert sorted(each.name for each in (tmp_path / "in").rglob("*")) == ["it", "journal.jsonl", "run.json"]


@pytest.mark.parametrize("content", [b"no zip file", b""])
def test_what_is_not_a_copy_is_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="the archive of the run cannot be read"):
        unpack_copy(io.BytesIO(content), tmp_path / "copy")


async def test_an_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    store = MemoryStore()
    await store.create(make_header("a"))
    with pytest.raises(SetupError, match="exists; choose another folder"):
        await copy_run(await store.view("a"), tmp_path)


async def test_a_copy_can_belong_to_a_project_of_this_machine(tmp_path: Path) -> None:
    store, there = MemoryStore(), Configuration(file="/srv/desk/promptiter.yaml")
    await store.create(make_header("a").model_copy(update={"configuration": there}))
    await copy_run(await store.view("a"), tmp_path / "runs" / "a")
    (tmp_path / "promptiter.yaml").touch()
    set_configuration(tmp_path / "runs" / "a", tmp_path / "promptiter.yaml")
    found = read_header(tmp_path / "runs" / "a").configuration
    assert found is not None
    assert found.file == str(tmp_path / "promptiter.yaml")
