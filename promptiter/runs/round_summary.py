"""The rounds of a run as plain data: scores, blame, why each surface changed, and what was rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.record import (
    NO_BLAME,
    NO_TRACE,
    BackpropDetails,
    PassResult,
    describe_dropped,
    explain_missing_patches,
    get_passes,
)
from promptiter.evaluation.result import Evaluation, merge_evaluations
from promptiter.grouping import group_by
from promptiter.profile import Profile, SurfaceChange
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult, SearchNote
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import StructureSnapshot

BlameOutcome: TypeAlias = Literal["adopted", "not_adopted", "rejected", "undecided", "no_patch", "below_support"]
"""The result of blaming a surface: its patch was adopted, accepted but not adopted, rejected, or not decided on because
the search ended; or it got no patch."""

UNDECIDED = "ended before a decision"
"""Why a candidate has no decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReason:
    """Why a surface was blamed: the signal of one pass, and the cases behind it."""

    round: int
    text: str
    case_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameSummary:
    """One blamed surface: the cases behind the blame, the signals by round, the largest support, and the result."""

    surface_id: str
    case_ids: tuple[str, ...]
    reasons: tuple[BlameReason, ...]
    outcome: BlameOutcome
    support: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionSummary:
    """A patch or candidate that was not accepted, and what it would have changed about the accepted profile."""

    round: int
    reason: str
    surface_ids: tuple[str, ...] = ()
    changes: tuple[SurfaceChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSummary:
    """The mean score of an evaluation, the mean of each metric, and how many of its cases pass in all `repeats`.

    `eval_sets` has the same for each eval set, if the cases come from several.
    """

    score: float | None
    passed: int
    cases: int
    repeats: int = 1
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    eval_sets: Mapping[str, EvaluationSummary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSummary:
    """One candidate, why it was proposed, and its evaluations by phase besides the validation.

    `accepted` is None if the round ended before a decision. `compared_with` is the profile that was accepted at that
    time, if the candidate was compared with it.
    """

    digest: str
    parents: tuple[str, ...]
    patched: tuple[str, ...]
    proposal: str
    evaluations: Mapping[str, EvaluationSummary]
    validation: EvaluationSummary | None
    accepted: bool | None
    reason: str
    compared_with: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """One round and its candidates. `skipped` says why it has none; `notes` are the search's own events."""

    round: int
    train: EvaluationSummary | None
    blamed: tuple[str, ...]
    candidates: tuple[CandidateSummary, ...]
    skipped: str = ""
    notes: tuple[SearchNote, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """All rounds of a run. `reasons` gives, by surface, the reason for each accepted patch.

    `no_blame` says why no surface was blamed, if rounds ran without blaming any; `problems` are what the user should
    know about the stages.
    """

    rounds: tuple[RoundSummary, ...] = ()
    blame: tuple[BlameSummary, ...] = ()
    rejections: tuple[RejectionSummary, ...] = ()
    reasons: Mapping[str, tuple[BlameReason, ...]] = field(default_factory=dict)
    no_blame: str = ""
    problems: tuple[str, ...] = ()


def summarize_rounds(result: RunResult) -> SearchSummary:
    """Summarize the rounds in a single pass: a journal may hold ten thousand of them."""
    rounds: list[RoundSummary] = []
    rejections: list[RejectionSummary] = []
    blame = _BlameBySurface(result)
    reasons = _Reasons(result.initial_profile)
    no_blame = _NoBlame()
    signals = _Signals()
    profiles = {each.number: each.profile_digest for each in result.evaluations}
    train: Evaluation | None = None
    dropped = 0
    for each in result.rounds:
        dropped += sum(one.dropped for one in get_passes(each))
        signals.add(each)
        train = each.train or train
        profiles |= {one.number: one.profile_digest for one in each.all_evaluations}
        rounds.append(_summarize_round(each, train, profiles))
        rejections.extend(_rejections(each, result.structure))
        blame.add(each)
        no_blame.add(each)
        reasons.add(each, signals)
    blamed = blame.summaries()
    return SearchSummary(
        rounds=tuple(rounds),
        blame=blamed,
        rejections=tuple(rejections),
        reasons=reasons.accepted,
        no_blame="" if blamed or result.goal.kind != "score" else no_blame.reason,
        problems=(describe_dropped(dropped),) if dropped else (),
    )


def summarize_evaluation(evaluation: Evaluation | None) -> EvaluationSummary | None:
    """The figures of an evaluation, if there is one."""
    if evaluation is None:
        return None
    parts = evaluation.by_eval_set
    return replace(
        _summarize_rows(evaluation),
        eval_sets={name: _summarize_rows(part) for name, part in parts.items()} if len(parts) > 1 else {},
    )


def _summarize_rows(evaluation: Evaluation) -> EvaluationSummary:
    return EvaluationSummary(
        score=evaluation.mean_score,
        passed=sum(case.passed for case in evaluation.cases),
        cases=len(evaluation.cases),
        repeats=max(Counter(row.case_id for row in evaluation.rows).values(), default=1),
        metrics=evaluation.metric_means,
    )


def _summarize_round(each: RoundResult, train: Evaluation | None, profiles: Mapping[int | None, str]) -> RoundSummary:
    """Summarize a round. A round after a rejection uses the `train` results of an earlier one.

    `profiles` are those of the evaluations so far, by number.
    """
    return RoundSummary(
        round=each.round,
        train=summarize_evaluation(train),
        blamed=tuple(dict.fromkeys(signal.surface_id for one in get_passes(each) for signal in one.signals)),
        candidates=tuple(_summarize_candidate(candidate, profiles) for candidate in each.candidates),
        skipped=each.skipped or ("" if each.candidates else explain_missing_patches(get_passes(each))),
        notes=each.notes,
    )


def _summarize_candidate(candidate: CandidateResult, profiles: Mapping[int | None, str]) -> CandidateSummary:
    decision = candidate.decision
    others = group_by(candidate.evaluations, lambda each: each.phase)
    seen = [] if candidate.evidence is None else sorted(candidate.evidence.accepted)
    return CandidateSummary(
        digest=candidate.profile.digest,
        parents=candidate.parents,
        patched=tuple(sorted(candidate.patches.surface_ids)),
        proposal="; ".join(dict.fromkeys(patch.reason for patch in candidate.patches if patch.reason)),
        evaluations={
            phase: figures
            for phase, found in others.items()
            if phase != "validation" and (figures := summarize_evaluation(merge_evaluations(found))) is not None
        },
        validation=summarize_evaluation(candidate.validation),
        accepted=None if decision is None else decision.accepted,
        reason=UNDECIDED if decision is None else decision.reason,
        compared_with=profiles.get(seen[0], "") if seen else "",
    )


class _Signals:
    """The signals of the last rounds with blame of their own, which later rounds may refer to."""

    def __init__(self) -> None:
        self._by_surface: dict[str, AggregateResult] = {}

    def add(self, each: RoundResult) -> None:
        passes = get_passes(each)
        is_own = isinstance(each.details, BackpropDetails) and each.details.blamed_in in (None, each.round)
        if is_own:
            self._by_surface = {}
        for one in passes:
            self._by_surface |= {signal.surface_id: signal for signal in one.signals}

    def get(self, surface_id: str) -> AggregateResult | None:
        return self._by_surface.get(surface_id)


class _Reasons:
    """The reasons for what candidates changed, by surface, since the initial profile: a child has those of its parents.

    Patches are the changes to the first parent, so a surface without a patch has that parent's reasons.
    """

    def __init__(self, initial: Profile) -> None:
        self._by_candidate: dict[str, dict[str, tuple[BlameReason, ...]]] = {}
        self._accepted = initial.digest

    def add(self, each: RoundResult, signals: _Signals) -> None:
        for candidate in each.candidates:
            found = dict(self._by_candidate.get((*candidate.parents, self._accepted)[0], {}))
            for patch in candidate.patches:
                signal = signals.get(patch.surface_id)
                text = signal.text if signal is not None and signal.text else patch.reason
                if text:
                    cases = patch.evidence.cases if signal is None else signal.case_ids
                    reason = BlameReason(round=each.round, text=text, case_ids=cases)
                    found[patch.surface_id] = (*found.get(patch.surface_id, ()), reason)
            self._by_candidate[candidate.profile.digest] = found
        if each.decision is not None and each.decision.accepted and each.candidate is not None:
            self._accepted = each.candidate.profile.digest

    @property
    def accepted(self) -> dict[str, tuple[BlameReason, ...]]:
        """The reasons for what the accepted profile changes."""
        return self._by_candidate.get(self._accepted, {})


def _rejections(each: RoundResult, structure: StructureSnapshot) -> Iterator[RejectionSummary]:
    for one in get_passes(each):
        for refused in one.refused:
            before = each.input_profile.value(refused.surface_id, structure)
            yield RejectionSummary(
                round=each.round,
                surface_ids=(refused.surface_id,),
                reason=refused.reason,
                changes=(SurfaceChange(refused.surface_id, before, refused.value),),
            )
        for note in one.notes:
            yield RejectionSummary(round=each.round, reason=f"no patch: {note}")
    for candidate in each.candidates:
        if candidate.decision is None or not candidate.decision.accepted:
            patched = tuple(sorted(candidate.patches.surface_ids))
            reason = UNDECIDED if candidate.decision is None else candidate.decision.reason
            changes = each.input_profile.changes(candidate.profile, structure)
            yield RejectionSummary(round=each.round, surface_ids=patched, reason=reason, changes=changes)
    if each.skipped:
        yield RejectionSummary(round=each.round, reason=each.skipped)


class _BlameBySurface:
    """Blame by surface, in the order in which surfaces were first blamed."""

    def __init__(self, result: RunResult) -> None:
        self._adopted = {change.surface_id for change in result.changes}
        working = result.initial_profile.changes(result.working_profile, result.structure)
        self._accepted = {change.surface_id for change in working}
        self._patched: set[str] = set()
        self._decided: set[str] = set()
        self._supported: set[str] = set()
        self._reasons: dict[str, list[BlameReason]] = {}
        self._support: dict[str, float] = {}

    def add(self, each: RoundResult) -> None:
        for candidate in each.candidates:
            self._patched |= candidate.patches.surface_ids
            self._decided |= candidate.patches.surface_ids if candidate.decision is not None else set()
        for one in get_passes(each):
            self._patched |= one.patches.surface_ids
            self._decided |= one.patches.surface_ids if each.skipped else set()
            self._add_pass(each.round, one)

    def _add_pass(self, number: int, pass_result: PassResult) -> None:
        self._supported.update(signal.surface_id for signal in pass_result.signals)
        for signal in (*pass_result.signals, *pass_result.below_support):
            reasons = self._reasons.setdefault(signal.surface_id, [])
            self._support[signal.surface_id] = max(signal.support, self._support.get(signal.surface_id, 0.0))
            if not any(reason.text == signal.text and reason.case_ids == signal.case_ids for reason in reasons):
                reasons.append(BlameReason(round=number, text=signal.text, case_ids=signal.case_ids))

    def summaries(self) -> tuple[BlameSummary, ...]:
        return tuple(
            BlameSummary(
                surface_id=surface_id,
                case_ids=tuple(sorted({case_id for reason in reasons for case_id in reason.case_ids})),
                reasons=tuple(reasons),
                outcome=self._outcome(surface_id),
                support=self._support[surface_id],
            )
            for surface_id, reasons in self._reasons.items()
        )

    def _outcome(self, surface_id: str) -> BlameOutcome:
        if surface_id in self._adopted:
            return "adopted"
        if surface_id in self._accepted:
            return "not_adopted"
        if surface_id in self._patched:
            return "rejected" if surface_id in self._decided else "undecided"
        return "no_patch" if surface_id in self._supported else "below_support"


class _NoBlame:
    """Why no surface was blamed, judging by the train cases of all rounds."""

    def __init__(self) -> None:
        self._has_train = self._has_failures = self._has_losses = self._has_traces = False

    def add(self, each: RoundResult) -> None:
        self._has_losses = self._has_losses or any(one.losses for one in get_passes(each))
        if each.train is not None:
            self._has_train = True
            self._has_failures = self._has_failures or each.train.pass_rate != 1.0
            self._has_traces = self._has_traces or any(row.trace_digests for row in each.train.rows)

    @property
    def reason(self) -> str:
        if not self._has_train:
            return ""
        if not self._has_failures:
            return "no train case failed"
        if self._has_losses:
            return NO_BLAME
        if not self._has_traces:
            return NO_TRACE
        return "the runs failed with errors that no prompt can fix"
