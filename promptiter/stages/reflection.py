"""What a reflection model sees: cases of a mini-batch as records, the component to rewrite, and the others.

A record shows a case the way a person would look at it: turn by turn, with what was expected, what the agent answered,
its tool calls, the verdict of each metric, and the steps of the component's own node, if the agent records them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from promptiter.llm.prices import Price
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import Rejection
from promptiter.structure import Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step of the component's node: what it was given and gave, and its error."""

    input: str
    output: str
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """One turn of a case. `tools` are its tool calls and `verdict` what each metric says, one text each."""

    user: str
    expected: str | None = None
    response: str = ""
    tools: tuple[str, ...] = ()
    verdict: tuple[str, ...] = ()
    steps: tuple[StepRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRecord:
    """One case. `overall` is the verdict on all its turns and repeats, if it has several.

    `history` are the best answers to it so far, each with its score, the best first.
    """

    case_id: str
    score: float
    turns: tuple[TurnRecord, ...]
    overall: tuple[str, ...] = ()
    history: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectRequest:
    """A component to rewrite. `others` are the components that keep their text, or are rewritten at the same time.

    `signal` is what a backward pass says should change about the component, if there was one. `criteria` say what the
    metrics look at, by name. `prices` are those of the models that the component may choose from, where they are known.
    `rejected` are earlier values of the component, the latest last. A new value may add, remove or replace
    `max_changed_lines` lines.
    """

    surface: Surface
    records: tuple[CaseRecord, ...]
    others: tuple[Surface, ...] = ()
    signal: AggregateResult | None = None
    criteria: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    max_changed_lines: int | None = None
