"""The Optimizer, which writes patches: its request and its result. The other stages are in `contracts`."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from promptiter.evaluation.score import Finding
from promptiter.llm.prices import Price
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import Surface
from promptiter.wording import shorten
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExample:
    """One step of the surface's node in one case. `expected` is the reference answer of the whole case.

    `findings` are those that this step is blamed for, and `reasons` say why the run failed, as the metrics put it; a
    passing run has neither. `answer` is that of the whole run, if the step did not give it. `case_input` is what the
    user said, `earlier` the conversation before it, if that is known.
    """

    case_id: str
    step_id: str
    input: str
    output: str
    passed: bool
    expected: str | None = None
    case_input: str = ""
    earlier: str = ""
    is_terminal: bool = False
    tool_calls: tuple[Json, ...] = ()
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    answer: str | None = None
    expected_tool_calls: tuple[Json, ...] | None = None


RejectionKind: TypeAlias = Literal["tried", "tried_together", "refused", "repeated", "vetoed"]
"""Tried alone, tried together with patches of other surfaces, refused by lint, repeated, or vetoed by a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A rejected value of a surface, and why it was rejected. `failing` are train cases that failed with it."""

    surface_id: str
    value: Json
    reason: str
    kind: RejectionKind = "tried"
    failing: tuple[StepExample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlace:
    """Where a node is in the agent, as recorded: the nodes whose outputs it read, and those that read its output.

    A node without `sources` read only the user's message. The output of one without `readers` is the answer.
    """

    sources: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeRequest:
    """One surface and its signal. `surface.value` is the current value; a new one must respect `surface.limits`.

    `siblings` are the other surfaces of its node; `edited_siblings` has the signals of those that are patched at the
    same time, by id. `rejected` are earlier values of this surface, the latest last.
    `place` is where its node is in the agent. `tool_calls` of a tool surface are some calls with their results.
    `criteria` say what the metrics look at, by name. `emphasis` says how this value should differ from others that are
    asked for with the same evidence, if several candidates are wanted. `prices` are those of the models that the
    surface may choose from, where they are known. A new value may add, remove or replace `max_changed_lines` lines.
    """

    surface: Surface
    signal: AggregateResult
    node_description: str = ""
    siblings: tuple[Surface, ...] = ()
    failing: tuple[StepExample, ...] = ()
    passing: tuple[StepExample, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    place: NodePlace | None = None
    tool_calls: tuple[Json, ...] = ()
    criteria: Mapping[str, str] = field(default_factory=dict)
    emphasis: str = ""
    edited_siblings: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)
    max_changed_lines: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """A patch, or None and the reason."""

    patch: SurfacePatch | None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.patch is not None and not isinstance(self.patch, SurfacePatch):
            raise TypeError(f"the patch of a PatchResult is {shorten(self.patch)}; give a SurfacePatch, or None")


class Optimizer(Protocol):
    """Writes one patch. Called once for each surface whose signal has enough support, concurrently."""

    def optimize(self, request: OptimizeRequest) -> Awaitable[PatchResult] | PatchResult:
        """Return a patch with a new value of the surface."""
