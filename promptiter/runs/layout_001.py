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
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.results import RunResult
from promptiter.runs.artifacts import file_name
from promptiter.runs.optimize_result import FILE_NAME, OptimizeResult
from promptiter.runs.round_records import RoundTimes, build_result, build_rounds, name_prompts, read_prompts
from traces.files import write_atomically
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
        self._times = RoundTimes()

    async def begin_run(self, run: ObservedRun) -> None:
        """Write the configuration, and what is known of a run that is resumed."""
        self._run = run
        if self.folder is None:
            self.folder = (run.folder or Path.cwd()) / FOLDER
        await run_in_thread(self._begin)

    async def observe(self, event: Event) -> None:
        self._times.note(event)
        if event.type == "run_started":
            await run_in_thread(self._write_baseline)
        elif event.type == "round_completed":
            await run_in_thread(self._write_rounds)

    async def end_run(self, run: ObservedRun) -> None:
        await run_in_thread(lambda: self.write(fold_lazily(run.events)))

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
            _write(folder / "summary.txt", summary.encode())
        _write(folder / "run.log", found.format_log_line().encode())
        found.dump_to(folder / FILE_NAME)
        return found

    def _begin(self) -> None:
        folder = self._get_folder()
        folder.mkdir(parents=True, exist_ok=True)
        if self.configuration is not None:
            raw = orjson.dumps(self.configuration, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            _write(folder / "config.snapshot.json", raw)
        assert self._run is not None, "a run begins before its artifacts are written"
        self._times = RoundTimes.read(self._run.events.read())
        if self._times.began:
            self._write_rounds()

    def _write_baseline(self) -> None:
        result = self._fold()
        names = name_prompts(result)
        self._write_prompts("baseline_prompts", read_prompts(result.initial_profile, result.structure, names))

    def _write_rounds(self) -> None:
        """Write the rounds that are not written yet; the last ones may have been interrupted."""
        result, folder = self._fold(), self._make_folder("rounds")
        names = name_prompts(result)
        for each in build_rounds(result, names=names, times=self._times, budget=self.max_metric_calls):
            file = folder / f"round_{each.round:03}.json"
            if each.round >= len(result.rounds) - 1 or not file.exists():
                each.dump_to(file)

    def _fold(self) -> RunResult:
        assert self._run is not None, "a run begins before its artifacts are written"
        return fold_lazily(self._run.events)

    def _write_prompts(self, name: str, prompts: Mapping[str, str]) -> None:
        folder = self._make_folder(name)
        for prompt, text in prompts.items():
            _write(folder / f"{file_name(prompt)}.md", text.encode("utf-8", "replace"))

    def _make_folder(self, name: str) -> Path:
        path = self._get_folder() / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def _get_folder(self) -> Path:
        return self.folder or Path.cwd() / FOLDER


def _write(path: Path, raw: bytes) -> None:
    with write_atomically(path) as file:
        file.write(raw)
