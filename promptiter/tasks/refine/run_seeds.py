"""Seeds of our own runs: the output of one case under the adopted profile, with its scores as they were recorded.

Of a run with a scorer, such as a file task, the seed is its files.

runs/<run-id>/refined/<case>/    run_completion.json, FINAL/, refinement_sessions/, BEST/, refinements_work/
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptiter.errors import SetupError, nearest
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.scorer import SCORER_SET
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import TraceFile
from promptiter.profile import Profile
from promptiter.runlog.payloads import CaseFinished, EvaluationStarted
from promptiter.runlog.results import RunResult
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.structure import StructureSnapshot
from promptiter.tasks.refine.agent_runner import ANSWER_FILE
from promptiter.tasks.refine.deliverables import FINAL, list_files
from promptiter.tasks.refine.iteration_guard import NodeRoles
from promptiter.tasks.refine.records import ModelPair, ObservedUse, RunRecord
from promptiter.tasks.refine.run_folder import write_run
from promptiter.tasks.refine.scored_files import SCORER_CASE, ScoredFiles, find_file_surfaces, list_texts
from promptiter.tasks.refine.scores import list_defects, list_metrics
from promptiter.tasks.refine.seeds import Seed, find_sessions
from traces import ExecutionTrace, digest
from traces.files import write_file

REFINED = "refined"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedCase:
    """A case of a run that has an output under the profile that its run adopted."""

    case: EvalCase
    row: CaseRow

    @property
    def score(self) -> float:
        """The mean of its scores; 1 without any."""
        values = [score.value for score in self.row.scores if score.value is not None]
        return sum(values) / len(values) if values else 1.0


def open_case(
    folder: Path,
    result: RunResult,
    cases: Mapping[str, EvalCase],
    *,
    case_id: str | None = None,
    weights: Mapping[str, float] | None = None,
    roles: NodeRoles | None = None,
) -> Seed:
    """The seed of a case of a run; by default the one with the lowest score. Its files are written below the run."""
    profile = result.accepted_profile
    found = _choose(_find_finished(folder, profile, cases), case_id, cases, folder)
    home = find_home(folder, found.case.id)
    traces = _read_traces(folder, found.row)
    roles = roles or NodeRoles()
    record = RunRecord(
        run_id=f"{result.run_id or folder.absolute().name}:{found.case.id}",
        task=found.case.find_question(0) or "",
        defects=list_defects(found.row.scores),
        metrics=list_metrics(found.row.scores, weights or {}),
        use=_observe(found.row, traces, roles),
        models=_find_models(result.structure, profile, roles),
    )
    write_file(home / FINAL / ANSWER_FILE, found.row.output.encode(errors="replace"))
    write_run(home, record)
    return Seed(
        home=home,
        deliverable=home / FINAL,
        record=record,
        sessions=find_sessions(home),
        case=found.case,
        profile=profile,
    )


def open_files(folder: Path, result: RunResult, files: ScoredFiles, *, task: str) -> Seed:
    """The seed of a run with a scorer: the files of its adopted profile, which are written below the run."""
    profile, structure = result.accepted_profile, result.structure
    name = folder.absolute().name
    if not find_file_surfaces(structure):
        raise SetupError(f"the run {name!r} has neither cases nor files; there is no deliverable that can be refined")
    found = _find_finished(folder, profile, SCORER_SET.by_id, needs_output=False)
    if not found:
        raise SetupError(f"the files of the run {name!r} were not measured; let it finish first")
    [measured] = found
    home = find_home(folder, SCORER_CASE.id)
    record = RunRecord(run_id=f"{result.run_id or name}:{SCORER_CASE.id}", task=task)
    record = files.describe(record, measured.row.scores, measured.row.figures)
    _write_final(home / FINAL, {path: text.encode() for path, text in list_texts(profile, structure).items()})
    write_run(home, record)
    return Seed(home=home, deliverable=home / FINAL, record=record, sessions=find_sessions(home))


def _write_final(final: Path, files: Mapping[str, bytes]) -> None:
    """Write a deliverable, unless it is there: another refinement may be reading it."""
    present = list_files(final) if final.is_dir() else []
    if present == sorted(files) and all((final / path).read_bytes() == raw for path, raw in files.items()):
        return
    shutil.rmtree(final, ignore_errors=True)
    final.mkdir(parents=True)
    for path, raw in files.items():
        write_file(final / path, raw)


def find_home(folder: Path, case_id: str) -> Path:
    """The folder of the refinements of a case, whatever characters its id has."""
    return folder / REFINED / name_case(case_id)


def name_case(case_id: str) -> str:
    """The id of a case as the name of a folder."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", case_id).strip("-")[:60]
    return plain if plain == case_id else f"{plain or 'case'}-{digest(case_id)[:8]}"


def suggest_roles(structure: StructureSnapshot) -> NodeRoles:
    """The default roles: the first model of the agent is the manager. Without models, there is none."""
    models = [node.id for node in structure.nodes if node.kind == "llm"]
    if not models:
        return NodeRoles()
    entry = structure.entry if structure.entry in models else models[0]
    return NodeRoles(managers=(entry,), prefix_node=entry)


def _find_finished(
    folder: Path, profile: Profile, cases: Mapping[str, EvalCase], *, needs_output: bool = True
) -> list[FinishedCase]:
    """The last scored run of each case under a profile, in the order of the cases. By default it has an output."""
    evaluations: set[int] = set()
    last: dict[str, tuple[int, CaseRow]] = {}
    for event in EventFile(folder / JOURNAL).read():
        match event.payload:
            case EvaluationStarted(evaluation=number, profile_digest=name):
                evaluations |= {number} if name == profile.digest else set()
            case CaseFinished(evaluation=number, row=row) if number in evaluations:
                before = last.get(row.case_id)
                is_usable = row.error is None and row.is_scored and (bool(row.output) or not needs_output)
                if is_usable and (before is None or (number, -row.repeat) > (before[0], -before[1].repeat)):
                    last[row.case_id] = number, row
            case _:
                pass
    return [FinishedCase(case=cases[name], row=row) for name, (_, row) in last.items() if name in cases]


def _choose(
    found: Sequence[FinishedCase], case_id: str | None, cases: Mapping[str, EvalCase], folder: Path
) -> FinishedCase:
    name = folder.absolute().name
    if not found:
        raise SetupError(f"the run {name!r} has no case with an output and scores; let it finish first")
    if case_id is None:
        return min(found, key=lambda each: (each.score, each.case.id))
    by_id = {each.case.id: each for each in found}
    if case_id in by_id:
        return by_id[case_id]
    if case_id in cases:
        raise SetupError(f"the case {case_id!r} has no scored output under the profile that the run adopted")
    raise SetupError(f"the run {name!r} has no case {case_id!r}{nearest(case_id, sorted(by_id))}")


def _observe(row: CaseRow, traces: Sequence[ExecutionTrace], roles: NodeRoles) -> ObservedUse:
    """What the run of a case took. Without its trace, its steps are not known."""
    steps = [step for trace in traces for step in trace.steps if step.kind == "llm"]
    return ObservedUse(
        loops=sum(roles.is_manager(step.node_id) for step in steps) if traces else None,
        workers=sum(roles.is_worker(step.node_id) for step in steps) if traces else None,
        tool_calls=sum(len(step.tool_calls) for trace in traces for step in trace.steps) if traces else None,
        tokens=row.usage.tokens or None,
        wall_time_s=row.measured.duration_s or None,
    )


def _find_models(structure: StructureSnapshot, profile: Profile, roles: NodeRoles) -> ModelPair:
    models = {
        surface.node_id: str(profile.value(surface.id, structure))
        for surface in structure.surfaces
        if surface.type == "model"
    }
    managers = [name for node, name in models.items() if roles.is_manager(node)]
    workers = list(dict.fromkeys(name for node, name in models.items() if roles.is_worker(node)))
    return ModelPair(manager=managers[0] if managers else "", worker=workers[0] if len(workers) == 1 else "")


def _read_traces(folder: Path, row: CaseRow) -> list[ExecutionTrace]:
    traces = TraceFile(folder / TRACES)
    return [traces.get(name) for name in row.trace_digests if name in traces]
