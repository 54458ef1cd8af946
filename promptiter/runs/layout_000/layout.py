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
from promptiter.runlog.fold import build_result
from promptiter.runlog.observation import ObservedRun
from promptiter.runlog.payloads import RoundCompleted, RoundStarted, RunStarted
from promptiter.runlog.results import RunResult
from promptiter.runlog.run_state import RunState
from promptiter.runs.layout_000.candidate_files import AgentYaml, link, write_candidate
from promptiter.runs.layout_000.header import FILE_NAME as HEADER
from promptiter.runs.layout_000.header import LayoutHeader, add_end
from promptiter.runs.layout_000.report import FILE_NAME as REPORT
from promptiter.runs.layout_000.report import write_report
from promptiter.runs.layout_000.rows import FILE_NAME, TRAJECTORY, TrialRow, write_rows, write_trajectory
from promptiter.runs.layout_000.trial_rows import RowBuilder, name_candidate
from traces.files import write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutInputs:
    """What the artifacts need besides the events of a run. `names` are the paths of axes, by surface.

    `repeats` are the sweeps that decide on a candidate. `has_holdout` is false if the run never uses its hold-out.
    """

    agent: AgentYaml
    header: LayoutHeader
    names: dict[str, str]
    accept_sigma: float | None = None
    repeats: int | None = None
    has_holdout: bool = True


class Layout000:
    """An observer that writes the artifacts of one run: into `folder`, or a folder with the id of the run in `root`.

    Of each round only the new events are read. `rows` are those of all trials so far.
    """

    def __init__(self, folder: Path | None, *, root: Path, inputs: LayoutInputs, keep_best_only: bool = False) -> None:
        self.folder = folder
        self.root = root
        self.inputs = inputs
        self.keep_best_only = keep_best_only
        self.rows: list[TrialRow] = []
        self._run: ObservedRun
        self._state = RunState()
        self._builder = RowBuilder(
            inputs.names,
            accept_sigma=inputs.accept_sigma,
            repeats=inputs.repeats,
            has_holdout=inputs.has_holdout,
        )
        self._next = 0
        self._is_open = False
        self._prompts: dict[str, Path] = {}
        self._best: tuple[Path, Path | None]

    async def begin_run(self, run: ObservedRun) -> None:
        """Note the run. What it recorded before is read with its next round."""
        self._run = run
        if self.folder is None:
            self.folder = self.root / run.run_id

    async def observe(self, event: Event) -> None:
        if event.type == RoundCompleted.event_type:
            await run_in_thread(self._write)

    async def end_run(self, run: ObservedRun) -> None:  # noqa: ARG002 - there is one
        await run_in_thread(self._finish)

    def get_folder(self) -> Path:
        """The folder of the artifacts."""
        return self.folder or self.root

    def _write(self, *, is_over: bool = False) -> None:
        """Write the rows and candidates of all trials that ended."""
        folder = self.get_folder()
        for event in self._run.events.read(self._next):
            self._take(event)
        if is_over and self._is_open:
            self._add_round()
        if not (folder / HEADER).exists():
            write_file(folder / HEADER, self._build_header(self._state.run).write())
        write_file(folder / FILE_NAME, write_rows(self.rows))
        write_file(folder / TRAJECTORY, write_trajectory(self.rows))
        best, prompt = self._best
        link(folder / "best.yaml", best)
        if prompt is not None:
            link(folder / "best-instructions.md", prompt)

    def _finish(self) -> None:
        """Write everything, with the report, and remove other candidates if only the best is kept."""
        self._write(is_over=True)
        folder, result = self.get_folder(), build_result(self._state, self._run.events)
        write_file(folder / HEADER, add_end(self._build_header(result), result).write())
        write_file(folder / REPORT, write_report(folder).encode("utf-8", "replace"))
        if self.keep_best_only:
            drop_other_candidates(folder)

    def _take(self, event: Event) -> None:
        """Take an event of the run, and add a round once it is complete."""
        self._next = event.seq + 1
        self._state.take(event)
        self._builder.times.note(event)
        if event.type == RunStarted.event_type:
            self._write_candidate(0, self._state.run.initial_profile)
        elif event.type == RoundStarted.event_type:
            self._is_open = True
        elif event.type == RoundCompleted.event_type:
            self._add_round()

    def _add_round(self) -> None:
        """Add the rows of the current round, and write the candidates that it accepted."""
        self._is_open = False
        each = self._state.round
        assert each is not None, "a round has started"
        self.rows += self._builder.build(each, self._state.run)
        profiles = {one.profile.digest: one.profile for one in each.candidates}
        for trial in get_trials(each):
            if trial.is_accepted and trial.candidate in profiles:
                self._write_candidate(trial.number, profiles[trial.candidate])

    def _write_candidate(self, number: int, profile: Profile) -> None:
        """Write an accepted candidate: the best so far, with the file of its prompt."""
        file = self.get_folder() / name_candidate(number)
        structure = self._state.run.structure
        prompt = write_candidate(self.inputs.agent, profile, structure, at=file, prompts=self._prompts)
        self._best = file, prompt

    def _build_header(self, result: RunResult) -> LayoutHeader:
        run_folder = "" if self._run.folder is None else str(self._run.folder)
        return self.inputs.header.model_copy(
            update={
                "run_id": result.run_id,
                "started_at": result.measured.started_at.replace("+00:00", "Z"),
                "run_folder": run_folder,
                "baseline_agent_path": _relate(self.inputs.agent.file, self.get_folder()),
            }
        )


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
