"""Losses: failed scores on the steps of a trace, where the backward pass starts. `backprop.loss` extracts them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from promptiter.errors import nearest
from promptiter.evaluation.score import Finding

Severity: TypeAlias = Literal["P0", "P1", "P2", "P3"]
"""P0 is the worst."""

Category: TypeAlias = Literal[
    "response", "format", "wrong_tool", "wrong_arguments", "route", "knowledge", "error", "other"
]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What was wrong at one step: a failed score, or a remark. `expected` is the reference answer, if there is one.

    `criterion` says what the metric looks at, such as `JSON, only order_id; passes at 0.8`.
    """

    text: str
    metric: str = ""
    step_id: str = ""
    severity: Severity = "P1"
    category: Category = "response"
    score: float | None = None
    expected: str | None = None
    findings: tuple[Finding, ...] = ()
    criterion: str = ""

    @property
    def report(self) -> str:
        """What was wrong, after the name of the metric, unless the text begins with that name."""
        is_named = not self.metric or self.text.startswith((f"{self.metric}: ", f"{self.metric} "))
        return self.text if is_named else f"{self.metric}: {self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLoss:
    """The losses of one trace: one turn of one run of one case.

    `input` is what the user said, `earlier` the conversation before it.
    """

    case_id: str
    repeat: int = 0
    turn: int = 0
    input: str = ""
    trace_digest: str
    losses: tuple[Loss, ...]
    earlier: str = ""

    @property
    def severity(self) -> Severity:
        return min(loss.severity for loss in self.losses)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlacement:
    """Failures of this metric belong to this node: its last visit gets the loss."""

    metric: str
    node_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LossHint:
    """The user's remark on a failed metric of a case: a text that is added to the loss, and its severity."""

    case_id: str
    metric: str
    text: str = ""
    severity: Severity | None = None


def check_placements(
    placements: Iterable[LossPlacement], *, metrics: Collection[str], node_ids: Collection[str] | None = None
) -> list[str]:
    """Return the problems of loss placements, one sentence each. Without `node_ids`, nodes are not checked."""
    problems = []
    for placement in placements:
        if placement.metric not in metrics:
            problems.append(f"a loss placement names {_describe_unknown('metric', placement.metric, metrics)}")
        if node_ids is not None and placement.node_id not in node_ids:
            unknown = _describe_unknown("node", placement.node_id, node_ids)
            problems.append(f"the loss placement of {placement.metric!r} names {unknown}")
    return problems


def check_hints(hints: Iterable[LossHint], *, metrics: Collection[str], case_ids: Collection[str]) -> list[str]:
    """Return the problems of loss hints, one sentence each."""
    problems = []
    for hint in hints:
        if hint.case_id not in case_ids:
            problems.append(f"a loss hint names {_describe_unknown('case', hint.case_id, case_ids)}")
        if hint.metric not in metrics:
            unknown = _describe_unknown("metric", hint.metric, metrics)
            problems.append(f"the loss hint of case {hint.case_id!r} names {unknown}")
        if hint.severity not in (None, *SEVERITIES):
            problems.append(f"the loss hint of case {hint.case_id!r} has severity {hint.severity!r}; use P0 to P3")
    return problems


def _describe_unknown(what: str, name: str, known: Collection[str]) -> str:
    return f"the {what} {name!r}, which does not exist{nearest(name, known)}"
