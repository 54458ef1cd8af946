"""The replaceable stages of the backward pass: the request and the result of each.

A Backwarder sees one step, an Attributor one trace (step by step, or in one call), an Aggregator all gradients of one
surface, an Optimizer one surface and its signal. Each has one method, which is async, or synchronous and called in a
thread. All requests are plain data.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.score import Finding
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.stages.losses import CATEGORIES, SEVERITIES, CaseLoss, Category, Loss, Severity
from promptiter.stages.routes import MissedRoute
from promptiter.structure import StructureSnapshot, Surface
from promptiter.wording import shorten
from traces import ExecutionTrace, Step, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPacket:
    """Blame on its way upstream, from the step `source` (empty for a loss) to the step `target`.

    `reasons` are the reports that it explains, in the words of the metrics; empty: all of the run.
    """

    source: str
    target: str
    text: str
    severity: Severity = "P1"
    category: Category = "other"
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_words("a packet", text=self.text, severity=self.severity, category=self.category)


BlameVerdict: TypeAlias = Literal["unchecked", "supported", "unsupported", "unknown"]
"""The result of a replay: correcting the step raises the score, does not raise it, or could not be tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceGradient:
    """How one surface should change, as seen at one step of one case. `confidence` is from 0 to 1.

    `reasons` are the reports that it explains, in the words of the metrics; empty: all of the run.
    `findings` are those of these reports.
    `id` is its name in the record, which patches refer to; a stage leaves it empty. `check` is the verdict of the
    gradient check, if the gradient was in its sample. `trust` is how sure it is that the step led to the failure: less
    than 1 where edges of the trace were guessed. `confidence` contains it.
    """

    surface_id: str
    case_id: str
    step_id: str
    text: str
    severity: Severity = "P1"
    category: Category = "other"
    repeat: int = 0
    turn: int = 0
    confidence: float = 1.0
    findings: tuple[Finding, ...] = ()
    reasons: tuple[str, ...] = ()
    check: BlameVerdict = "unchecked"
    id: str = ""
    trust: float = 1.0

    def __post_init__(self) -> None:
        _check_words("a gradient", text=self.text, severity=self.severity, category=self.category)
        if not 0 <= self.confidence <= 1:
            raise ValueError(f"the confidence of a gradient is {self.confidence!r}; give a number from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRequest:
    """One step, with everything needed to explain what went wrong in it.

    `surfaces` are those of the step's node, with their current values; `blamable` names those that may be blamed:
    targets that the step read. `predecessors` are the steps that packets may go to. `losses` are those of the whole
    run, one for each thing that was wrong, and `reasons` are their texts. `input` is what the user said, `earlier` the
    conversation before it. `readers` are the nodes of the steps that packets came from, by step id. `calls_seen` has,
    by surface, a call of each tool that the step did not call, made by its node elsewhere.

    `missed_routes` are the branches that the run did not take after this step, or after a predecessor that led to this
    step instead. `absent_owners` has the expected tools that only nodes have which did not run, with these nodes.
    """

    case_id: str
    step: Step
    incoming: tuple[GradientPacket, ...]
    surfaces: tuple[Surface, ...] = ()
    blamable: tuple[str, ...] = ()
    predecessors: tuple[Step, ...] = ()
    repeat: int = 0
    turn: int = 0
    input: str = ""
    earlier: str = ""
    expected: str | None = None
    reasons: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    readers: Mapping[str, str] = field(default_factory=dict)
    calls_seen: Mapping[str, ToolCall] = field(default_factory=dict)
    missed_routes: tuple[MissedRoute, ...] = ()
    absent_owners: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardResult:
    """The gradients and packets of one step. `dropped` counts unknown ids in the answer; `error` says why it failed.

    `note` is an Attributor's remark on the trace: which method it chose, and why. `diagnosis` says what went wrong, if
    nothing is blamed for it.
    """

    step_id: str
    gradients: tuple[SurfaceGradient, ...] = ()
    packets: tuple[GradientPacket, ...] = ()
    dropped: int = 0
    error: str | None = None
    note: str = ""
    diagnosis: str = ""

    def __post_init__(self) -> None:
        _check_items("gradients", self.gradients, SurfaceGradient)
        _check_items("packets", self.packets, GradientPacket)


def _check_words(what: str, *, text: object, severity: str, category: str = "other") -> None:
    if severity in SEVERITIES and category in CATEGORIES and isinstance(text, str):
        return
    for name, value, known in (("severity", severity, SEVERITIES), ("category", category, CATEGORIES)):
        if value not in known:
            raise ValueError(f"the {name} of {what} is {value!r}; give one of {', '.join(known)}")
    if not isinstance(text, str):
        raise TypeError(f"the text of {what} is {shorten(text)}; give a str")


def _check_items(name: str, items: object, kind: type) -> None:
    if not isinstance(items, list | tuple):
        raise TypeError(f"the {name} of a BackwardResult are {shorten(items)}; give a tuple of {kind.__name__}")
    for each in items:
        if not isinstance(each, kind):
            raise TypeError(f"the {name} of a BackwardResult hold {shorten(each)}; give a tuple of {kind.__name__}")


@runtime_checkable
class NamesModel(Protocol):
    """A stage that names the model it calls, for the forecast; None if it calls none."""

    @property
    def model(self) -> str | None: ...


@runtime_checkable
class CallsModel(NamesModel, Protocol):
    """A stage that calls its model through its own gateway, or through that of the run if it has none."""

    @property
    def gateway(self) -> Gateway | None: ...


class Backwarder(Protocol):
    """Blames one step. Called once for each step with packets, concurrently; a ModelError skips only that step."""

    def backward(self, request: BackwardRequest) -> Awaitable[BackwardResult] | BackwardResult:
        """Return gradients on the step's blamable surfaces and packets to its predecessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another run of the same round for comparison: its trace, what was expected of it, and whether it passed."""

    case_id: str
    trace: ExecutionTrace
    passed: bool
    expected: str | None = None
    expected_tool_calls: tuple[ExpectedToolCall, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeRequest:
    """One failed trace, the surfaces that may be blamed, and some runs of other cases under the same profile."""

    case_loss: CaseLoss
    trace: ExecutionTrace
    snapshot: StructureSnapshot
    profile: Profile
    targets: frozenset[str]
    peers: tuple[Peer, ...] = ()


@runtime_checkable
class Attributor(Protocol):
    """Attributes the losses of one trace to surfaces. Called once for each failed trace, concurrently."""

    def attribute(self, request: AttributeRequest) -> Awaitable[list[BackwardResult]] | list[BackwardResult]:
        """Return the results of the examined steps, in the order of the trace."""


@runtime_checkable
class BatchAttributor(Attributor, Protocol):
    """An Attributor that can also attribute several traces at once. It is then called with some traces at a time."""

    def attribute_batch(
        self, requests: Sequence[AttributeRequest]
    ) -> Awaitable[list[list[BackwardResult]]] | list[list[BackwardResult]]:
        """Return the results of each request, in their order. An error counts for all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateRequest:
    """All gradients of one surface, sorted; `surface.value` is its current value.

    `failed_cases` of `all_cases` failed in this round, whichever surface was blamed. `criteria` say what the metrics
    look at, by name.
    """

    surface: Surface
    gradients: tuple[SurfaceGradient, ...]
    failed_cases: int = 0
    all_cases: int = 0
    criteria: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalPoint:
    """One change that a signal asks for, with the cases and the gradients (by their ids) behind it."""

    text: str
    case_ids: tuple[str, ...] = ()
    gradient_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateResult:
    """The signal of a surface. `support` is the number of cases behind it, weighted by confidence; 0: as counted.

    `points` are the parts of the text, if the aggregator can tell them apart. An optimizer names those that an edit
    answers, so that each edit is traced to its gradients.
    """

    surface_id: str
    text: str
    severity: Severity = "P1"
    categories: Mapping[Category, int] = field(default_factory=dict)
    case_ids: tuple[str, ...] = ()
    support: float = 0.0
    error: str | None = None
    points: tuple[SignalPoint, ...] = ()

    def __post_init__(self) -> None:
        _check_words("a signal", text=self.text, severity=self.severity)
        if not 0 <= self.support < math.inf:
            raise ValueError(f"the support of a signal is {self.support!r}; give a number of cases, or 0 to count them")


class Aggregator(Protocol):
    """Merges the gradients of one surface. Called once for each blamed surface, concurrently."""

    def aggregate(self, request: AggregateRequest) -> Awaitable[AggregateResult] | AggregateResult:
        """Return the signal of the surface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameCheck:
    """The check of one surface blamed in one failed run: do corrected outputs of the blamed steps move its score?"""

    surface_id: str
    case_id: str
    step_ids: tuple[str, ...]
    verdict: BlameVerdict
    reason: str
    repeat: int = 0
    turn: int = 0
