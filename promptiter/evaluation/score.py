"""Score and Finding: the judgement of one run, in a form that later stages can use."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, TypeAlias

from traces.model import Json, escape_surrogates

FindingKind: TypeAlias = Literal["missing", "wrong", "unexpected", "violated"]

RUN_LIMITS = frozenset(("max_duration_s", "max_cost_usd"))
"""Predicates about what the whole run takes, not about its output."""

JUDGE_FAILED = "the judge of "
"""How the error of a score begins if a judge failed or gave no usable answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One part of a failure: something expected is missing, something is wrong, or a predicate is violated.

    `where` is a place inside the output: a JSON path, `characters 4-9`, `tool call 2`. `predicate` names the rule that
    was violated (`max_length`, `regex`, `json_schema`, `tool_name`, …) and `expected` is its parameter.
    """

    kind: FindingKind
    expected: Json = None
    actual: Json = None
    where: str = ""
    predicate: str = ""
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A metric's judgement of one case run: a value with its reason, or unscored with an error, never 0 for a failure.

    `value` is the mean over turns; `passed` compares it with the threshold. None: unscored. It `is_outage` if that is
    because a service failed, such as that of a judge. `turn_reasons` are those of each turn of a conversation, in
    order; empty if it has a single turn or the metric does not tell them apart.
    """

    metric: str
    value: float | None
    threshold: float = 1.0
    reason: str = ""
    error: str | None = None
    findings: tuple[Finding, ...] = ()
    is_outage: bool = False
    turn_reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", share_text(self.metric))
        object.__setattr__(self, "reason", share_text(escape_surrogates(self.reason)))
        if self.error is not None:
            object.__setattr__(self, "error", escape_surrogates(self.error))

    @property
    def is_scored(self) -> bool:
        return self.value is not None

    @property
    def passed(self) -> bool:
        return self.value is not None and self.value >= self.threshold


def share_text(text: str) -> str:
    """Texts that are equal, as one object in memory, as long as it is used: runs of a case have many in common."""
    return sys.intern(text) if type(text) is str else text
