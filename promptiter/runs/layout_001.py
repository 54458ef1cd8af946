"""Layout001: the artifacts of AgentOptimizer, written during a run and at its end. Each file is replaced as a whole.

result.json                 OptimizeResult, with camelCase keys
summary.txt, run.log        for people, and for tools that search logs
config.snapshot.json        optimizer.json as the run began, without secrets
rounds/round_001.json       RoundRecord, as soon as the round has ended
baseline_prompts/NAME.md, best_prompts/NAME.md
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from promptiter.concurrency import run_in_thread
from promptiter.runlog.events import Event
from promptiter.runlog.fold import build_result as build_run
from promptiter.runlog.journal import EventReader
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.payloads import RoundCompleted, RunStarted
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runlog.run_state import RunState
from promptiter.runs.artifacts import file_name
from promptiter.runs.optimize_result import FILE_NAME, OptimizeResult
from promptiter.runs.round_records import RoundBuilder, RoundTimes, build_result, name_prompts, read_prompts
from traces.files import write_file
from traces.model import Json

FOLDER = "layout_001"
"""The folder of the artifacts in that of the run, if no other is given."""


class Layout001:
    """An observer that writes the artifacts of one run, by default into a folder of the run's own."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        algorithm: str = "",
        configuration: Mapping[str, Json] | None = None,
        max_metric_calls: int | None = None,
        update_source: bool = False,
    ) -> None:
        self.folder = None if folder is None else Path(folder).absolute()
        self.algorithm = algorithm
        self.configuration = configuration
        self.max_metric_calls = max_metric_calls
        self.update_source = update_source
        self._run: ObservedRun | None = None
        self._start()

    async def begin_run(self, run: ObservedRun) -> None:
        """Write the configuration, and what is known of a run that is resumed."""
        self._run = run
        if self.folder is None:
            self.folder = (run.folder or Path.cwd()) / FOLDER
        await run_in_thread(self._begin)

    async def observe(self, event: Event) -> None:
        if event.type in (RunStarted.event_type, RoundCompleted.event_type):
            await run_in_thread(self._read_on)

    async def end_run(self, run: ObservedRun) -> None:
        await run_in_thread(lambda: self._end(run.events))

    def write(self, result: RunResult) -> OptimizeResult:
        """Write all artifacts of a run that has ended, result.json last, and return the result."""
        folder = self._get_folder()
        names = name_prompts(result)
        found = build_result(
            result,
            algorithm=self.algorithm,
            names=names,
            times=self._times,
            budget=self.max_metric_calls,
            run_folder="" if self._run is None or self._run.folder is None else str(self._run.folder),
        )
        self._write_prompts("baseline_prompts", found.baseline_prompts)
        for each in found.rounds:
            each.dump_to(self._make_folder("rounds") / f"round_{each.round:03}.json")
        if found.status == "SUCCEEDED":
            self._write_prompts("best_prompts", found.best_prompts)
            summary = found.format_summary(output_dir=folder, update_source=self.update_source)
            write_file(folder / "summary.txt", summary.encode())
        write_file(folder / "run.log", found.format_log_line().encode())
        found.dump_to(folder / FILE_NAME)
        return found

    def _begin(self) -> None:
        folder = self._get_folder()
        folder.mkdir(parents=True, exist_ok=True)
        if self.configuration is not None:
            raw = orjson.dumps(self.configuration, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            write_file(folder / "config.snapshot.json", raw)
        self._start()
        self._read_on()

    def _start(self) -> None:
        """Forget what was read of a run."""
        self._times = RoundTimes()
        self._state = RunState()
        self._rounds = RoundBuilder(times=self._times, budget=self.max_metric_calls)
        self._next = 0

    def _read_on(self) -> None:
        """Read the new events of the run: write the baseline's prompts, and each round that is complete."""
        assert self._run is not None, "a run begins before its artifacts are written"
        for event in self._run.events.read(self._next):
            self._next = event.seq + 1
            self._times.note(event)
            self._state.take(event)
            if event.type == RunStarted.event_type:
                run = self._state.run
                self._write_prompts(
                    "baseline_prompts", read_prompts(run.initial_profile, run.structure, name_prompts(run))
                )
            elif event.type == RoundCompleted.event_type:
                self._write_round(self._state.round, self._state.run)

    def _write_round(self, each: RoundResult | None, run: RunResult) -> None:
        assert each is not None, "a round has started"
        record = self._rounds.build(each, run, names=name_prompts(run))
        record.dump_to(self._make_folder("rounds") / f"round_{record.round:03}.json")

    def _end(self, events: EventReader) -> None:
        self._read_on()
        self.write(build_run(self._state, events))

    def _write_prompts(self, name: str, prompts: Mapping[str, str]) -> None:
        folder = self._make_folder(name)
        for prompt, text in prompts.items():
            write_file(folder / f"{file_name(prompt)}.md", text.encode("utf-8", "replace"))

    def _make_folder(self, name: str) -> Path:
        path = self._get_folder() / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _get_folder(self) -> Path:
        return self.folder or Path.cwd() / FOLDER
