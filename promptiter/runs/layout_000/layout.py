"""Layout000: the artifacts of HoloDeck's optimizer, written during a run and at its end.

run.json                            what the run began with; at the end, why it ended
trials.jsonl, trajectory.csv        one row per trial, written once it is decided
candidates/iter-NN.yaml             the baseline, and the agent after each accepted trial
instructions/system-prompt.iter-NN.md
best.yaml, best-instructions.md     links to the last accepted ones
report.md                           written at the end, however the run ended
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from promptiter.backprop.trial_record import get_trials
from promptiter.concurrency import run_in_thread
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.results import RunResult
from promptiter.runs.layout_000.candidate_files import AgentYaml, link, write_candidate
from promptiter.runs.layout_000.header import FILE_NAME as HEADER
from promptiter.runs.layout_000.header import LayoutHeader, add_end
from promptiter.runs.layout_000.report import FILE_NAME as REPORT
from promptiter.runs.layout_000.report import write_report
from promptiter.runs.layout_000.rows import FILE_NAME, TRAJECTORY, TrialRow, write_rows, write_trajectory
from promptiter.runs.layout_000.trial_rows import TrialTimes, build_rows, name_candidate
from traces.files import write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutInputs:
    """What the artifacts need besides the events of a run. `names` are the paths of axes, by surface."""

    agent: AgentYaml
    header: LayoutHeader
    names: dict[str, str]
    accept_sigma: float | None = None


class Layout000:
    """An observer that writes the artifacts of one run: into `folder`, or a folder with the id of the run in `root`."""

    def __init__(self, folder: Path | None, *, root: Path, inputs: LayoutInputs, keep_best_only: bool = False) -> None:
        self.folder = folder
        self.root = root
        self.inputs = inputs
        self.keep_best_only = keep_best_only
        self.rows: list[TrialRow] = []
        self._run: ObservedRun | None = None
        self._times = TrialTimes()

    async def begin_run(self, run: ObservedRun) -> None:
        """Note what is known of a run that is resumed."""
        self._run = run
        if self.folder is None:
            self.folder = self.root / run.run_id
        await run_in_thread(self._begin)

    async def observe(self, event: Event) -> None:
        self._times.note(event)
        if event.type == "round_completed":
            await run_in_thread(lambda: self.write(self._fold()))

    async def end_run(self, run: ObservedRun) -> None:
        await run_in_thread(lambda: self.finish(fold_lazily(run.events)))

    def write(self, result: RunResult) -> None:
        """Write the rows and candidates of all trials that ended."""
        folder = self.get_folder()
        self._write_header(result)
        self.rows = build_rows(
            result,
            names=self.inputs.names,
            times=self._times,
            accept_sigma=self.inputs.accept_sigma,
            has_holdout=self.inputs.header.holdout_cases_count > 0,
        )
        best, prompt = self._write_candidates(result, folder)
        _write(folder / FILE_NAME, write_rows(self.rows))
        _write(folder / TRAJECTORY, write_trajectory(self.rows))
        link(folder / "best.yaml", best)
        if prompt is not None:
            link(folder / "best-instructions.md", prompt)

    def finish(self, result: RunResult) -> None:
        """Write everything, with the report, and remove other candidates if only the best is kept."""
        self.write(result)
        folder = self.get_folder()
        _write(folder / HEADER, add_end(self._build_header(result), result).write())
        _write(folder / REPORT, write_report(folder).encode("utf-8", "replace"))
        if self.keep_best_only:
            drop_other_candidates(folder)

    def get_folder(self) -> Path:
        """The folder of the artifacts."""
        return self.folder or self.root

    def _begin(self) -> None:
        self.get_folder().mkdir(parents=True, exist_ok=True)
        assert self._run is not None, "a run begins before its artifacts are written"
        for event in self._run.events.read():
            self._times.note(event)

    def _fold(self) -> RunResult:
        assert self._run is not None, "a run begins before its artifacts are written"
        return fold_lazily(self._run.events)

    def _build_header(self, result: RunResult) -> LayoutHeader:
        run_folder = "" if self._run is None or self._run.folder is None else str(self._run.folder)
        return self.inputs.header.model_copy(
            update={
                "run_id": result.run_id,
                "started_at": result.measured.started_at.replace("+00:00", "Z"),
                "run_folder": run_folder,
                "baseline_agent_path": _relate(self.inputs.agent.file, self.get_folder()),
            }
        )

    def _write_header(self, result: RunResult) -> None:
        if not (self.get_folder() / HEADER).exists():
            _write(self.get_folder() / HEADER, self._build_header(result).write())

    def _write_candidates(self, result: RunResult, folder: Path) -> tuple[Path, Path | None]:
        """Write the accepted candidates that are not there yet. Returns the files of the best and of its prompt."""
        structure, agent = result.structure, self.inputs.agent
        accepted: list[tuple[int, Profile]] = [(0, result.initial_profile)]
        for each in result.rounds:
            profiles = {one.profile.digest: one.profile for one in each.candidates}
            accepted += [
                (trial.number, profiles[trial.candidate])
                for trial in get_trials(each)
                if trial.is_accepted and trial.candidate in profiles
            ]
        best, prompt, prompts = folder / name_candidate(0), None, dict[str, Path]()
        for number, profile in accepted:
            best = folder / name_candidate(number)
            prompt = write_candidate(agent, profile, structure, at=best, prompts=prompts)
        return best, prompt


def drop_other_candidates(folder: Path) -> None:
    """Remove all candidates and prompts but the best."""
    kept = {path.resolve() for name in ("best.yaml", "best-instructions.md") if (path := folder / name).exists()}
    for pattern in ("candidates/iter-*.yaml", "instructions/system-prompt.iter-*.md"):
        for path in folder.glob(pattern):
            if path.resolve() not in kept:
                path.unlink()


def _relate(file: Path, folder: Path) -> str:
    """The path of a file from a folder."""
    return Path(os.path.relpath(file.absolute(), folder.absolute())).as_posix()


def _write(path: Path, raw: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(path) as file:
        file.write(raw)
