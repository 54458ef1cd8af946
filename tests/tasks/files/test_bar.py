"""The bar of document 002: its file runs as printed, with a model, 50 iterations, and resumes from every event."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from promptiter.config.build import build_run
from promptiter.config.file import read_config
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.tasks.files.results_log import read_rows
from promptiter.testing.store_hooks import Killed
from tests.worlds.file_task import AS_PRINTED, make_skill_folder
from tests.worlds.model_server import LoopbackServer, run_server
from tests.worlds.results import drop_measured, read_unmeasured
from tests.worlds.skill_editor import answer_editor
from tests.worlds.starter import How, kill_runs_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

MODEL = "openai/editor"
SHORT = 5
"""Rounds of the runs that are killed: a crash, a violation, too many lines, and one that is kept."""
CHUNKS = 12


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    with run_server(LoopbackServer(answer_editor, fault_rate=0.1, seed=3)) as running:
        monkeypatch.setenv("OPENAI_BASE_URL", running.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        yield running


def run(folder: Path, *, max_rounds: int | None = None, concurrency: int = 1) -> RunResult:
    """Run the task of a folder with a model, or resume its only run, as the command does."""
    settings: dict[str, Any] = {
        "stages": MODEL,
        "search": {"options": {"function": None}},
        "evaluation": {"concurrency": concurrency},
        "models": {MODEL: {"price": {"input_usd_per_million": 0, "output_usd_per_million": 0}}},
    }
    if max_rounds is not None:
        settings["max_rounds"] = max_rounds
    built = build_run(read_config(folder / "task.yaml", settings=settings))
    there = sorted((folder / "runs").glob("*/run.json"))
    directory: RunDirectory = built.resume(there[0].parent) if there else built.begin()
    try:
        return directory.run_sync()
    finally:
        built.gateway.cache.close()


def list_rows(folder: Path) -> list[dict[str, Any]]:
    return read_rows(folder / "work" / "results.jsonl")


@pytest.mark.long
def test_the_file_as_printed_runs_50_iterations_with_a_model(server: LoopbackServer, tmp_path: Path) -> None:
    folder = make_skill_folder(tmp_path / "task")
    before = {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    result = run(folder)
    rows = list_rows(folder)
    assert (folder / "task.yaml").read_text() == AS_PRINTED
    assert [row["iteration"] for row in rows] == list(range(51))
    assert len(result.rounds) == 50
    check_order(rows)
    statuses = [row["status"] for row in rows]
    assert statuses.count("crash") == 4
    crash = next(row for row in rows if row["status"] == "crash")
    assert "the skill cannot be loaded" in crash["reason"]
    violation = next(row for row in rows if "violation_count is 1" in row["reason"])
    assert violation["status"] == "discard"
    limit = next(row for row in rows if "at most 120 may change" in row["reason"])
    assert (limit["status"], limit["metrics"]) == ("discard", {})
    assert rows[-1]["metrics"] != {}
    assert result.verdict == "improved_on_validation"
    assert result.accepted_score == 1.0
    assert server.faults
    after = {path: path.read_bytes() for path in before}
    assert after == before, "a run changes nothing but its results"


def check_order(rows: list[dict[str, Any]]) -> None:
    """Kept versions improve in the order primary, then tie-breakers, and no constraint is ever violated."""
    kept = [row for row in rows if row["status"] == "keep"]
    keys = [(row["score"], -row["metrics"]["violation_count"], -row["metrics"]["length_tokens"]) for row in kept]
    assert keys == sorted(set(keys))
    assert len({key[0] for key in keys}) < len(keys), "a tie-breaker decided, too"
    for row in kept:
        assert all(each["holds"] for each in row["constraints"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few rounds that was not killed."""
    folder = make_skill_folder(tmp_path_factory.mktemp("whole"))
    with pytest.MonkeyPatch.context() as patch, run_server(LoopbackServer(answer_editor)) as running:
        patch.setenv("OPENAI_BASE_URL", running.url)
        patch.setenv("OPENAI_API_KEY", "sk-test")
        run(folder, max_rounds=SHORT)
    assert [row["status"] for row in list_rows(folder)] == ["keep", "crash", "discard", "discard", "keep", "crash"]
    return folder


def count_events(folder: Path) -> int:
    [journal] = folder.glob("runs/*/journal.jsonl")
    return len(journal.read_bytes().splitlines())


def list_answers(folder: Path) -> list[str]:
    """The keys of all recorded answers: of models, and of measurements."""
    found = []
    for path in folder.glob("runs/*/calls.jsonl"):
        raw = path.read_bytes()
        found += [line["key"] for line in map(orjson.loads, raw[: raw.rfind(b"\n") + 1].splitlines()) if "key" in line]
    return sorted(found)


def check_kill(whole: Path, seq: int, folder: Path) -> None:
    """Kill a run at an event, resume it, and compare everything with a run that was not killed."""
    make_skill_folder(folder)
    with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
        run(folder, max_rounds=SHORT)
    run(folder, max_rounds=SHORT, concurrency=1 + seq % 2)
    assert read_unmeasured(folder / "runs") == read_unmeasured(whole / "runs")
    assert drop_measured(list_rows(folder)) == drop_measured(list_rows(whole))
    answers = list_answers(folder)
    assert answers == list_answers(whole)
    assert len(set(answers)) == len(answers), "what was measured once is not measured again"


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_task_resumes_from_every_event(chunk: int, whole: Path, server: LoopbackServer, tmp_path: Path) -> None:
    for seq in range(chunk, count_events(whole), CHUNKS):
        check_kill(whole, seq, tmp_path / str(seq))
