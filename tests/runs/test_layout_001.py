from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from promptiter import RunFailedError
from promptiter.agents import CallAgent
from promptiter.engine.engine import Engine
from promptiter.runlog.events import Event
from promptiter.runlog.journal import EventReader
from promptiter.runlog.observation import ObservedRun
from promptiter.runs.layout_001 import FOLDER, Layout001
from promptiter.runs.optimize_result import OptimizeResult
from tests.worlds import desk


def list_files(folder: Path) -> list[str]:
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())


def test_files_are_written_as_soon_as_their_content_is_known(tmp_path: Path) -> None:
    seen: list[list[str]] = []
    search = desk.Tries(desk.DRAFT, desk.POLISH, at_round=lambda _: seen.append(list_files(tmp_path)))
    layout = Layout001(tmp_path, algorithm="tries", configuration={"optimize": {}}, max_metric_calls=40)
    request = desk.request(final_test=None, objective="pass_rate")
    desk.engine(search=search).run_sync(request, observers=[layout])
    first = ["baseline_prompts/draft.md", "baseline_prompts/polish.md", "config.snapshot.json"]
    assert seen == [first, [*first, "rounds/round_001.json"]]
    assert list_files(tmp_path) == [
        *first[:2],
        *("best_prompts/draft.md", "best_prompts/polish.md", "config.snapshot.json", "result.json"),
        *("rounds/round_001.json", "rounds/round_002.json", "run.log", "summary.txt"),
    ]
    result = OptimizeResult.from_file(tmp_path / "result.json")
    assert (result.algorithm, result.total_rounds, result.rounds[1].budget_total) == ("tries", 2, 40)
    assert (tmp_path / "best_prompts" / "polish.md").read_text() == result.best_prompts["polish"]


class CountsReads:
    """Events of a run that count how many were read."""

    def __init__(self, events: EventReader) -> None:
        self._events = events
        self.count = 0

    def read(self, start: int = 0) -> Iterator[Event]:
        for event in self._events.read(start):
            self.count += 1
            yield event


def test_each_event_is_read_once_during_a_run(tmp_path: Path) -> None:
    class Counted(Layout001):
        async def begin_run(self, run: ObservedRun) -> None:
            self.events = CountsReads(run.events)
            await super().begin_run(replace(run, events=self.events))

        async def end_run(self, run: ObservedRun) -> None:
            self.read_before_the_end = self.events.count
            self.written = sum(1 for _ in run.events.read())
            await super().end_run(run)

    layout = Counted(tmp_path)
    desk.engine(search=desk.Tries(desk.DRAFT, desk.POLISH)).run_sync(desk.request(final_test=None), observers=[layout])
    assert len(list((tmp_path / "rounds").iterdir())) == 2
    assert layout.read_before_the_end <= layout.written


def test_a_run_that_fails_has_neither_best_prompts_nor_a_summary(tmp_path: Path) -> None:
    def fail(_: int) -> None:
        raise OSError("the disk is full")

    engine = desk.engine(search=desk.Tries(desk.DRAFT, at_round=fail))
    with pytest.raises(RunFailedError):
        engine.run_sync(desk.request(), observers=[Layout001(tmp_path)])
    assert json.loads((tmp_path / "result.json").read_text())["status"] == "FAILED"
    assert not {"best_prompts", "summary.txt"} & {each.name for each in tmp_path.iterdir()}


def test_the_name_of_a_prompt_cannot_lead_out_of_the_folder(tmp_path: Path) -> None:
    async def answer(query: str, prompts: dict[str, str]) -> str:
        return query + prompts["../up"]

    agent = CallAgent(answer, prompts={"../up": "careful"})
    engine = Engine(agent, desk.evaluator(), search=desk.Tries())
    engine.run_sync(desk.request(final_test=None), observers=[Layout001(tmp_path / "out")])
    assert [each.name for each in tmp_path.iterdir()] == ["out"]
    [file] = (tmp_path / "out" / "baseline_prompts").iterdir()
    assert file.read_text() == "careful"


def test_without_a_folder_the_artifacts_of_a_run_in_memory_are_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    desk.engine(desk.DRAFT).run_sync(desk.request(final_test=None), observers=[Layout001()])
    assert (tmp_path / FOLDER / "result.json").exists()
