"""The rows of results.jsonl: one per candidate, with its status, raw figures, constraints, and what it changed.

{"iteration": 3, "status": "keep", "score": 0.75, "metrics": {...}, "reason": "score is 0.75, was 0.5: ...", ...}
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.policies.crashes import has_crashed
from promptiter.policies.figures import average_figures
from promptiter.profile import Profile
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult
from promptiter.structure import StructureSnapshot
from promptiter.tasks.files.task import TaskConstraint
from promptiter.tasks.files.workspace import find_path
from promptiter.wording import plural
from traces import digest
from traces.model import Json

Status: TypeAlias = Literal["keep", "discard", "crash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """How a candidate changes an artifact of the profile that it was made from."""

    path: str
    before: str
    after: str

    @property
    def diff(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(keepends=True), self.after.splitlines(keepends=True), self.path, self.path
        )
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    @property
    def summary(self) -> str:
        """`skills/writing/SKILL.md +3 -1`."""
        lines = self.diff.splitlines()[2:]
        added, removed = (sum(line.startswith(sign) for line in lines) for sign in "+-")
        return f"{self.path} +{added} -{removed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedCandidate:
    """A row, and the files of the candidate."""

    row: dict[str, Json]
    changes: tuple[FileChange, ...] = ()


def log_baseline(run: RunResult, *, primary: str, constraints: Sequence[TaskConstraint]) -> LoggedCandidate | None:
    """The row of the files as they are, with their hashes; None before they were measured."""
    if run.baseline is None:
        return None
    figures = average_figures(run.baseline.rows)
    hashes = {
        path: digest(str(run.initial_profile.value(each, run.structure)))[:16]
        for each in run.structure.surface_ids
        if (path := find_path(each)) is not None
    }
    row = _build_row(
        0,
        "keep" if figures else "crash",
        figures,
        reason="the files as they are",
        primary=primary,
        constraints=constraints,
        rows=run.baseline.rows,
        evaluations=(run.baseline,),
    )
    return LoggedCandidate(row={**row, "hashes": hashes})


def log_round(
    found: RoundResult,
    run: RunResult,
    *,
    first: int,
    primary: str,
    constraints: Sequence[TaskConstraint],
) -> Iterator[LoggedCandidate]:
    """The rows of a round, numbered from `first`: one for each candidate, or one that says why there is none."""
    for number, each in enumerate(found.candidates, start=first):
        changes = list_changes(each, found.input_profile, run.structure)
        evaluation = find_evaluation(each)
        rows = () if evaluation is None else evaluation.rows
        figures = average_figures(rows)
        status = find_status(each)
        row = _build_row(
            number,
            status,
            figures,
            reason=_find_reason(each, rows, status),
            primary=primary,
            constraints=constraints,
            rows=rows,
            evaluations=each.evaluations,
        )
        files = [change.path for change in changes]
        shown = "; ".join(change.summary for change in changes) or "no change"
        yield LoggedCandidate(
            row={
                **row,
                "round": found.round,
                "files": files,
                "diff": f"{plural(len(files), 'file')}: {shown}",
                "candidate": each.profile.digest[:16],
            },
            changes=changes,
        )
    if not found.candidates and found.skipped:
        row = _build_row(first, "discard", {}, reason=found.skipped, primary=primary, constraints=(), rows=())
        yield LoggedCandidate(row={**row, "round": found.round, "files": [], "diff": "no candidate"})


def find_status(candidate: CandidateResult) -> Status:
    """What became of a candidate. It crashed if too many of its runs failed."""
    if candidate.decision is not None and candidate.decision.accepted:
        return "keep"
    evaluation = find_evaluation(candidate)
    return "crash" if evaluation is not None and has_crashed(evaluation) else "discard"


def find_evaluation(candidate: CandidateResult) -> Evaluation | None:
    """The runs of a candidate that its decision rests on; those of one that crashed are of the search itself."""
    return candidate.validation or next(reversed(candidate.evaluations), None)


def list_changes(candidate: CandidateResult, parent: Profile, structure: StructureSnapshot) -> tuple[FileChange, ...]:
    """The artifacts that a candidate changes."""
    return tuple(
        FileChange(path=path, before=str(change.before), after=str(change.after))
        for change in parent.changes(candidate.profile, structure)
        if (path := find_path(change.surface_id)) is not None
    )


def check_constraints(figures: Mapping[str, float], constraints: Sequence[TaskConstraint]) -> list[Json]:
    """Each constraint with the figure, and whether it holds; None if the figure is unknown."""
    return [
        {
            "metric": each.metric,
            "op": each.op,
            "value": each.value,
            "actual": figures.get(each.metric),
            "holds": each.holds(figures[each.metric]) if each.metric in figures else None,
        }
        for each in constraints
    ]


def _build_row(
    iteration: int,
    status: Status,
    figures: Mapping[str, float],
    *,
    reason: str,
    primary: str,
    constraints: Sequence[TaskConstraint],
    rows: Sequence[CaseRow],
    evaluations: Sequence[Evaluation] = (),
) -> dict[str, Json]:
    """A row. Its time is that of all `evaluations`: the rows that decide may be taken from an earlier one."""
    details = next((score.reason for row in rows for score in row.scores if score.reason), "")
    return {
        "iteration": iteration,
        "status": status,
        "score": figures.get(primary),
        "metrics": dict(figures),
        "constraints": check_constraints(figures, constraints) if figures else [],
        "reason": reason,
        "details": details,
        "measured": {"seconds": round(sum(row.measured.duration_s for each in evaluations for row in each.rows), 3)},
    }


def _find_reason(candidate: CandidateResult, rows: Sequence[CaseRow], status: Status) -> str:
    if status == "crash":
        return next(str(row.error) for row in rows if row.error is not None)
    return "" if candidate.decision is None else candidate.decision.reason
