"""The replaceable stages of the backward pass: what each is asked, and what it answers.

A Backwarder looks at one step, an Attributor at one trace (over a Backwarder, or in one go), an Aggregator at all
gradients of one surface, an Optimizer at one surface and its signal. Each is one method; all requests are plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from promptiter.evaluation.score import Finding
from promptiter.profile import Profile, SurfacePatch
from promptiter.stages.losses import CaseLoss, Category, Severity
from promptiter.structure import StructureSnapshot, Surface
from traces import ExecutionTrace, Step
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPacket:
    """Blame on its way upstream: from the step that sent it (empty: a loss itself) to the step that gets it."""

    source: str
    target: str
    text: str
    severity: Severity = "P1"
    category: Category = "other"
    findings: tuple[Finding, ...] = ()


BlameVerdict: TypeAlias = Literal["unchecked", "supported", "unsupported", "unknown"]
"""What a replay said of blame: the score rises once the step is corrected, it does not, or nobody could tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceGradient:
    """How one surface should change, as one step of one case shows it. `confidence` is from 0 to 1.

    `check` is what the gradient check found out about it, if it was in its sample.
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
    check: BlameVerdict = "unchecked"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardRequest:
    """One step, with all that a person would need to say what went wrong in it.

    `surfaces` are those of the step's node, with their current values; `blamable` names the ones that may be blamed:
    they are targets, and the step read them. `predecessors` are the steps that packets may go to.
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
    expected: str | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardResult:
    """What one step answered. `dropped` counts ids that it made up; `error` says why it could not answer.

    `note` is what an Attributor has to say about the trace: how it was looked at, and why so.
    """

    step_id: str
    gradients: tuple[SurfaceGradient, ...] = ()
    packets: tuple[GradientPacket, ...] = ()
    dropped: int = 0
    error: str | None = None
    note: str = ""


@runtime_checkable
class NamesModel(Protocol):
    """A stage that names the model it asks; None if it asks none. A forecast needs to know."""

    @property
    def model(self) -> str | None: ...


class Backwarder(Protocol):
    """Blames one step. Called once for each step with packets, many at once; a ModelError skips that step alone."""

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        """Gradients on the step's blamable surfaces, and packets to its predecessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Another run of the same round, to compare with: its trace, its reference answer, and whether it passed."""

    case_id: str
    trace: ExecutionTrace
    passed: bool
    expected: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeRequest:
    """One failed trace, what may be blamed for it, and some runs of other cases under the same profile."""

    case_loss: CaseLoss
    trace: ExecutionTrace
    snapshot: StructureSnapshot
    profile: Profile
    targets: frozenset[str]
    peers: tuple[Peer, ...] = ()


@runtime_checkable
class Attributor(Protocol):
    """Carries the losses of one trace to the surfaces behind them. Called once for each failed trace, many at once."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        """The results of the steps that were looked at, in the order of the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateRequest:
    """All gradients of one surface, sorted; `surface.value` is its current value.

    `failed_cases` of `all_cases` failed in this round, whatever surface was blamed.
    """

    surface: Surface
    gradients: tuple[SurfaceGradient, ...]
    failed_cases: int = 0
    all_cases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateResult:
    """The one signal of a surface. `support` counts the cases behind it, weighted by their confidence."""

    surface_id: str
    text: str
    severity: Severity = "P1"
    categories: Mapping[Category, int] = field(default_factory=dict)
    case_ids: tuple[str, ...] = ()
    support: float = 0.0
    error: str | None = None


class Aggregator(Protocol):
    """Merges the gradients of one surface. Called once for each blamed surface, many at once."""

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        """One signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepExample:
    """What one step of the surface's node did in one case. `expected` is the reference answer of the whole case.

    `findings` are those that blame put on this step; of a step in a passing run there are none.
    """

    case_id: str
    step_id: str
    input: str
    output: str
    passed: bool
    expected: str | None = None
    case_input: str = ""
    is_terminal: bool = False
    tool_calls: tuple[Json, ...] = ()
    findings: tuple[Finding, ...] = ()
    expected_tool_calls: tuple[Json, ...] | None = None


RejectionKind: TypeAlias = Literal["tried", "tried_together", "refused", "vetoed"]
"""Tried alone or with patches of other surfaces, refused by lint before that, or vetoed by a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A value for a surface that was not kept, and why."""

    surface_id: str
    value: Json
    reason: str
    kind: RejectionKind = "tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeRequest:
    """One surface and its signal. `surface.value` is the current value, `surface.limits` what a new one must respect.

    `siblings` are the other surfaces of its node; `rejected` is what was tried for this surface before, latest last.
    """

    surface: Surface
    signal: AggregateResult
    node_description: str = ""
    siblings: tuple[Surface, ...] = ()
    failing: tuple[StepExample, ...] = ()
    passing: tuple[StepExample, ...] = ()
    rejected: tuple[Rejection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeResult:
    """A patch, or None with the reason why there is none."""

    patch: SurfacePatch | None
    reason: str = ""


class Optimizer(Protocol):
    """Writes one patch. Called once for each surface whose signal has enough support, many at once."""

    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        """A new value for the surface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameCheck:
    """One surface that one failed run was blamed on: do corrected outputs of the blamed steps move its score?"""

    surface_id: str
    case_id: str
    step_ids: tuple[str, ...]
    verdict: BlameVerdict
    reason: str
    repeat: int = 0
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameChecks:
    """The checks of one pass, and how many replays they took: runs of a case from a corrected step on."""

    checks: tuple[BlameCheck, ...] = ()
    replays: int = 0
