from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from promptiter.runs.folder_store import FolderStore
from promptiter.runs.header import Configuration
from promptiter.runs.stored_run import StoredRun, new_header
from promptiter.testing.small_run import SmallRun
from promptiter.testing.store_hooks import ask, make_event, make_header, make_trace


async def test_answers_and_traces_are_on_disk_before_a_decision_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, synced = FolderStore(tmp_path), []
    await store.create(make_header("a"))
    journal = tmp_path / "a" / "journal.jsonl"

    def sync(file: int) -> None:
        names = {path.stat().st_ino: path.name for path in journal.parent.rglob("*")}
        synced.append((names[os.fstat(file).st_ino], b'"decision"' in journal.read_bytes()))

    async with store.open("a") as run:
        await run.journal.append(make_event(0))
        await ask(run, 0)
        await run.traces.put(make_trace("hi"))
        monkeypatch.setattr("os.fsync", sync)
        await run.journal.append(make_event(1))
        assert synced == []
        await run.journal.append(make_event(2, kind="decision"))
        assert synced == [
            ("calls.jsonl", False),
            ("traces.jsonl.gz", False),
            ("journal.jsonl", True),
        ]
        monkeypatch.undo()


async def test_a_run_without_its_answers_says_so(tmp_path: Path) -> None:
    store, small = FolderStore(tmp_path), SmallRun()
    run = await StoredRun.begin(store, small.engine, small.request)
    whole = await run.run()
    assert run.notes == []
    (tmp_path / run.run_id / "calls.jsonl").unlink()
    journal = tmp_path / run.run_id / "journal.jsonl"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))
    again = await StoredRun.resume(store, run.run_id, SmallRun().engine, small.request)
    assert await again.run() == whole
    [note] = again.notes
    assert "calls.jsonl' is missing: answers that are not in the journal are paid for again" in note


async def test_a_configuration_is_found_after_the_project_was_moved(tmp_path: Path) -> None:
    project, small = tmp_path / "project", SmallRun()
    file = project / "promptiter.yaml"
    file.parent.mkdir()
    checked = small.engine.check(small.request)
    header = new_header(small.engine, checked, configuration=Configuration(file=str(file)))
    created = await FolderStore(project / "runs").create(header)
    assert (await FolderStore(project / "runs").view(created.run_id)).header == created
    shutil.move(project, tmp_path / "moved")
    moved = (await FolderStore(tmp_path / "moved" / "runs").view(created.run_id)).header
    assert moved.configuration is not None
    assert moved.configuration.file == str(tmp_path / "moved" / "promptiter.yaml")
