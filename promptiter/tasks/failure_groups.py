"""Failures of production, grouped by what went wrong, and a sample of them that has some of every group."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from promptiter.evaluation.result import CaseRow
from traces import ExecutionTrace

SIMILAR = 0.5
"""Texts are about the same if at least this share of their words is common to both."""

_WORD = re.compile(r"[^\W\d_]{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """A failed run: its case, what was wrong in a few words, the nodes that ran, and when it started."""

    case_id: str
    kind: str
    text: str
    nodes: frozenset[str]
    started_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureGroup:
    """Runs that failed in about the same way. `text` is that of one of them. Times are None if traces have none."""

    kind: str
    text: str
    case_ids: tuple[str, ...]
    nodes: tuple[str, ...]
    first_ns: int | None
    last_ns: int | None


def describe_failure(row: CaseRow, trace: ExecutionTrace) -> FailedRun:
    """What was wrong with a run that failed: its error, or its failed metrics with their reasons."""
    if row.error is not None:
        at = next((step.node_id for step in reversed(trace.steps) if step.error is not None), "")
        kind, text = f"{row.error.type or 'error'} in {at}" if at else row.error.type or "error", row.error.message
    else:
        failed = [score for score in row.scores if score.is_scored and not score.passed]
        kind, text = ", ".join(score.metric for score in failed), " ".join(score.reason for score in failed)
    nodes = frozenset(step.node_id for step in trace.steps)
    return FailedRun(case_id=row.case_id, kind=kind, text=text, nodes=nodes, started_ns=trace.start_ns or 0)


def group_failures(failures: Sequence[FailedRun]) -> tuple[FailureGroup, ...]:
    """Group failures of one kind on one route whose texts are similar; the largest group first."""
    groups: dict[tuple[str, frozenset[str]], list[tuple[frozenset[str], list[FailedRun]]]] = {}
    for failure in sorted(failures, key=lambda each: (each.started_ns, each.case_id)):
        words = frozenset(_WORD.findall(failure.text.lower()))
        known = groups.setdefault((failure.kind, failure.nodes), [])
        found = next((members for of, members in known if _is_similar(of, words)), None)
        if found is None:
            known.append((words, [failure]))
        else:
            found.append(failure)
    made = [_build_group(members) for known in groups.values() for _, members in known]
    return tuple(sorted(made, key=lambda group: (-len(group.case_ids), group.kind, group.text)))


def sample_failures(groups: Sequence[FailureGroup], most: int) -> frozenset[str]:
    """At most this many case ids: of each group its share, evenly spread over time, and at least one if possible."""
    total = sum(len(group.case_ids) for group in groups)
    if total <= most:
        return frozenset(case_id for group in groups for case_id in group.case_ids)
    chosen: set[str] = set()
    for at, group in enumerate(groups):
        left = most - len(chosen)
        waiting = sum(len(each.case_ids) for each in groups[at:])
        size = min(left, len(group.case_ids), max(1, round(left * len(group.case_ids) / waiting)))
        step = len(group.case_ids) / size if size else 0
        chosen |= {group.case_ids[int(number * step)] for number in range(size)}
    return frozenset(chosen)


def _is_similar(words: frozenset[str], others: frozenset[str]) -> bool:
    union = words | others
    return not union or len(words & others) >= SIMILAR * len(union)


def _build_group(members: Sequence[FailedRun]) -> FailureGroup:
    times = [each.started_ns for each in members if each.started_ns]
    return FailureGroup(
        kind=members[0].kind,
        text=members[0].text,
        case_ids=tuple(each.case_id for each in members),
        nodes=tuple(sorted(members[0].nodes)),
        first_ns=min(times, default=None),
        last_ns=max(times, default=None),
    )
