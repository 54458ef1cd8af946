"""The record of a backprop round: the passes from losses to patches, and the events that they are built from."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from promptiter.llm.ledger import NOTHING, LedgerSnapshot
from promptiter.profile import PatchSet
from promptiter.runlog.details import DetailsPayload, RoundDetails, round_details
from promptiter.runlog.events import event_type
from promptiter.runlog.results import RoundResult
from promptiter.stages.contracts import AggregateResult, BackwardResult, BlameCheck, SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.stages.optimizer import Rejection
from promptiter.wording import join_names, plural
from traces.text import cut_at_word

SEARCH_ROLES = frozenset(("backwarder", "corrector", "aggregator", "optimizer", "critic", "applier"))
"""The roles of the models that a search asks. Those of agent, judges and simulated user belong to evaluations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagesMeasured:
    """What model calls of the search itself cost: those of its stages and of a reflection model.

    The tokens of `uncounted_calls` are unknown and not among the others.
    """

    calls: int = 0
    uncounted_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0

    @staticmethod
    def between(before: LedgerSnapshot, after: LedgerSnapshot) -> StagesMeasured:
        """What was spent between two moments of a ledger."""
        spent = sum((each.spent for each in (after - before).entries if each.role in SEARCH_ROLES), NOTHING)
        return StagesMeasured(
            calls=spent.calls,
            uncounted_calls=spent.uncounted_calls,
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cost_usd=spent.cost_usd,
        )

    def __add__(self, other: StagesMeasured) -> StagesMeasured:
        """The sum. Its cost is that of what is known, and unknown if nothing is."""
        known = [each.cost_usd for each in (self, other) if each.calls and each.cost_usd is not None]
        return StagesMeasured(
            calls=self.calls + other.calls,
            uncounted_calls=self.uncounted_calls + other.uncounted_calls,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost_usd=sum(known) if known or not self.calls + other.calls else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBlame:
    """The blame for the losses of one trace, step by step."""

    case_id: str
    repeat: int = 0
    turn: int = 0
    results: tuple[BackwardResult, ...] = ()
    error: str | None = None

    @property
    def gradients(self) -> tuple[SurfaceGradient, ...]:
        return tuple(gradient for result in self.results for gradient in result.gradients)

    @property
    def has_no_cause(self) -> bool:
        """Whether no surface is to blame, although the stage answered every question."""
        return self.error is None and not any(result.gradients or result.error for result in self.results)

    @property
    def dropped(self) -> int:
        """How many gradients and packets were thrown away, because they named an unknown surface, step or case."""
        return sum(result.dropped for result in self.results)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """One pass of a round from losses to patches. `below_support` are signals with too little support for a patch.

    Signals are ordered by the loss that a patch may remove, relative to the cost of running the cases that read the
    surface. `checks` are the results of the gradient check, and `replays` the case runs that it took. `refused` are
    patches that lint or a reviewer refused, with the reason; `notes` explain missing patches.
    """

    losses: tuple[CaseLoss, ...] = ()
    blames: tuple[TraceBlame, ...] = ()
    checks: tuple[BlameCheck, ...] = ()
    replays: int = 0
    signals: tuple[AggregateResult, ...] = ()
    below_support: tuple[AggregateResult, ...] = ()
    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def gradients(self) -> tuple[SurfaceGradient, ...]:
        """All gradients, trace by trace, before the gradient check."""
        return tuple(gradient for blame in self.blames for gradient in blame.gradients)

    @property
    def dropped(self) -> int:
        """How many gradients and packets were thrown away, because they named an unknown surface, step or case."""
        return sum(blame.dropped for blame in self.blames)


@round_details("backprop")
@dataclass(frozen=True, slots=True, kw_only=True)
class BackpropDetails(RoundDetails):
    """The passes of a round. `blamed_in` is the round whose train results and blame the first pass uses.

    After a rejection the input profile is the same, so the next round takes them from an earlier one: its own first
    pass then has patches, but neither losses nor signals. `measured` is what the calls of its stages cost.
    """

    passes: tuple[PassResult, ...] = ()
    blamed_in: int | None = None
    measured: StagesMeasured = field(default_factory=StagesMeasured, compare=False)

    def add_to_last(self, **fields: Any) -> BackpropDetails:
        """These details with more of their last pass."""
        passes = self.passes or (PassResult(),)
        return replace(self, passes=(*passes[:-1], replace(passes[-1], **fields)))


def get_passes(result: RoundResult) -> tuple[PassResult, ...]:
    """The passes of a round; none if another search made it."""
    return result.details.passes if isinstance(result.details, BackpropDetails) else ()


class _PassPayload(DetailsPayload):
    """A payload that is part of the last pass."""

    __slots__ = ()

    @property
    def spent(self) -> StagesMeasured:
        """What its calls cost."""
        return StagesMeasured()

    def add_to(self, details: RoundDetails | None) -> RoundDetails:
        added = self.add_to_pass(details if isinstance(details, BackpropDetails) else BackpropDetails())
        return replace(added, measured=added.measured + self.spent)

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class _StagePayload(_PassPayload):
    """The work of a stage."""

    measured: StagesMeasured = field(default_factory=StagesMeasured)

    @property
    def spent(self) -> StagesMeasured:
        return self.measured


@event_type("losses")
@dataclass(frozen=True, slots=True, kw_only=True)
class LossesExtracted(_PassPayload):
    """The losses that a pass starts from."""

    losses: tuple[CaseLoss, ...] = ()

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        return replace(details, passes=(*details.passes, PassResult(losses=self.losses)))


@event_type("backward")
@dataclass(frozen=True, slots=True, kw_only=True)
class LossesAttributed(_StagePayload):
    blames: tuple[TraceBlame, ...] = ()

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        return details.add_to_last(blames=self.blames)


@event_type("gradient_check")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsChecked(_StagePayload):
    checks: tuple[BlameCheck, ...] = ()
    replays: int = 0

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        return details.add_to_last(checks=self.checks, replays=self.replays)


@event_type("aggregation")
@dataclass(frozen=True, slots=True, kw_only=True)
class GradientsMerged(_StagePayload):
    signals: tuple[AggregateResult, ...] = ()
    below_support: tuple[AggregateResult, ...] = ()

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        return details.add_to_last(signals=self.signals, below_support=self.below_support)


@event_type("patches")
@dataclass(frozen=True, slots=True, kw_only=True)
class PatchesWritten(_StagePayload):
    """The patches of a pass. `blamed_in` is the round that its signals come from."""

    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()
    blamed_in: int = 0

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        known = details if details.blamed_in is not None else replace(details, blamed_in=self.blamed_in)
        return known.add_to_last(patches=self.patches, refused=self.refused, notes=self.notes)


@event_type("patch_variants")
@dataclass(frozen=True, slots=True, kw_only=True)
class VariantsWritten(_StagePayload):
    """Several sets of patches for the same signals, of which one is chosen. It follows as PatchesWritten."""

    variants: tuple[PatchesWritten, ...] = ()

    def add_to_pass(self, details: BackpropDetails) -> BackpropDetails:
        return details


def explain_missing_patches(passes: Sequence[PassResult]) -> str:
    """Why a round has no candidate, as far as its passes say."""
    if notes := [note for each in passes for note in each.notes]:
        return f"no patch: {'; '.join(notes)}"
    if any(each.signals for each in passes):
        return "ended before patches were written"
    if any(each.below_support for each in passes):
        return "no patch: the blame is too uncertain"
    return "no patch: no surface was blamed" if passes else "ended before a candidate was proposed"


def describe_unmerged(signals: Sequence[AggregateResult]) -> str | None:
    """Say for which surfaces the aggregator failed, so that a signal lists their blame unmerged; None if for none."""
    errors = {signal.surface_id: signal.error for signal in signals if signal.error}
    if not errors:
        return None
    names, why = join_names(sorted(errors), limit=4), cut_at_word(" ".join(next(iter(errors.values())).split()), 200)
    return f"the aggregator gave no usable answer for {names}, so the blame was not merged by it: {why}"


NO_BLAME = "no surface could be blamed for the failures"

SHOWN_DIAGNOSIS = 300
"""Maximum number of characters of a model's diagnosis in a message."""


def describe_no_blame(blames: Iterable[TraceBlame]) -> str:
    """Say that nothing was blamed, with the first diagnosis of a model, if there is one."""
    diagnoses = (result.diagnosis for blame in blames for result in blame.results if result.diagnosis)
    diagnosis = textwrap.shorten(next(diagnoses, ""), SHOWN_DIAGNOSIS, placeholder=" …")
    return f"{NO_BLAME}: {diagnosis}" if diagnosis else NO_BLAME


NO_TRACE = (
    "no trace was recorded, so no surface could be blamed; record one with `traces.record(...)`, and return "
    "AgentRun(output=..., trace=recording.trace)"
)
"""Why nothing is blamed for the failures of an agent that returns answers only."""


def describe_dropped(count: int) -> str:
    """Say that answers of blaming stages were thrown away, and why."""
    return (
        f"{plural(count, 'answer')} of the blaming stage {'was' if count == 1 else 'were'} thrown away: the named "
        "surface was not read at that step, or the surface, step or case does not exist"
    )
