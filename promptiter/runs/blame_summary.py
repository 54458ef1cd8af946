"""Blame over all rounds of a run: which surfaces, for which reasons, with which result, and why each was changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.backprop.record import (
    NO_BLAME,
    NO_TRACE,
    BackpropDetails,
    PassResult,
    describe_no_blame,
    get_passes,
)
from promptiter.profile import PatchEdit, Profile
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.stages.contracts import AggregateResult

BlameOutcome: TypeAlias = Literal["adopted", "not_adopted", "rejected", "undecided", "no_patch", "below_support"]
"""The result of blaming a surface: its patch was adopted, accepted but not adopted, rejected, or not decided on because
the search ended; or it got no patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReason:
    """Why one passage of a text was changed: the numbers of the points of the signal that it answers, and their cases.

    `reason` says it in words. Without points, cases and reason, the optimizer did not say what the edit is for.
    """

    before: str
    after: str
    reason: str = ""
    points: tuple[int, ...] = ()
    case_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameReason:
    """Why a surface was blamed: the signal of one pass, and the cases behind it.

    The reason for a change also has that of the optimizer (`patch_reason`) and those of single `edits`, if known. What
    one of them says, the others do not repeat.
    """

    round: int
    text: str
    case_ids: tuple[str, ...] = ()
    patch_reason: str = ""
    edits: tuple[EditReason, ...] = ()


def find_main_reason(reasons: Sequence[BlameReason]) -> BlameReason | None:
    """The reason with the most cases, and the latest of several; None if there is none."""
    return max(reversed(reasons), key=lambda reason: len(reason.case_ids), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameSummary:
    """One blamed surface: the cases behind the blame, the signals by round, the largest support, and the result."""

    surface_id: str
    case_ids: tuple[str, ...]
    reasons: tuple[BlameReason, ...]
    outcome: BlameOutcome
    support: float = 0.0


class LastSignals:
    """The signals of the last rounds with blame of their own, which later rounds may refer to.

    Of the passes of a round, the signal that was patched counts, and of several the one with the most cases.
    """

    def __init__(self) -> None:
        self._by_surface: dict[str, AggregateResult] = {}

    def add(self, each: RoundResult) -> None:
        passes = get_passes(each)
        is_own = isinstance(each.details, BackpropDetails) and each.details.blamed_in in (None, each.round)
        if is_own:
            self._by_surface = {}
        ranked: dict[str, tuple[tuple[bool, int], AggregateResult]] = {}
        for one in passes:
            for signal in one.signals:
                rank = (signal.surface_id in one.patches.surface_ids, len(signal.case_ids))
                if signal.surface_id not in ranked or rank > ranked[signal.surface_id][0]:
                    ranked[signal.surface_id] = rank, signal
        self._by_surface |= {surface_id: signal for surface_id, (_, signal) in ranked.items()}

    def get(self, surface_id: str) -> AggregateResult | None:
        return self._by_surface.get(surface_id)


class ChangeReasons:
    """The reasons for what candidates changed, by surface, since the initial profile: a child has those of its parents.

    Patches are the changes to the first parent, so a surface without a patch has that parent's reasons.
    """

    def __init__(self, initial: Profile) -> None:
        self._by_candidate: dict[str, dict[str, tuple[BlameReason, ...]]] = {}
        self._accepted = initial.digest

    def add(self, each: RoundResult, signals: LastSignals) -> None:
        for candidate in each.candidates:
            found = dict(self._by_candidate.get((*candidate.parents, self._accepted)[0], {}))
            for patch in candidate.patches:
                signal = signals.get(patch.surface_id)
                text = signal.text if signal is not None and signal.text else patch.reason
                if text:
                    cases = patch.evidence.cases if signal is None else signal.case_ids
                    edits = tuple(_explain_edit(edit, signal, known=text) for edit in patch.edits)
                    is_said = patch.reason in (text, *(edit.reason for edit in edits if not edit.points))
                    reason = BlameReason(
                        round=each.round,
                        text=text,
                        case_ids=cases,
                        patch_reason="" if is_said else patch.reason,
                        edits=edits,
                    )
                    found[patch.surface_id] = (*found.get(patch.surface_id, ()), reason)
            self._by_candidate[candidate.profile.digest] = found
        if each.decision is not None and each.decision.accepted and each.candidate is not None:
            self._accepted = each.candidate.profile.digest

    @property
    def accepted(self) -> dict[str, tuple[BlameReason, ...]]:
        """The reasons for what the accepted profile changes."""
        return self._by_candidate.get(self._accepted, {})


def _explain_edit(edit: PatchEdit, signal: AggregateResult | None, *, known: str) -> EditReason:
    """The reason for an edit, unless it is `known`. It answers the points whose gradients are all behind it."""
    gradients = set(edit.evidence.gradients)
    numbered = list(enumerate(signal.points, start=1)) if signal is not None and _has_numbers(signal) else []
    return EditReason(
        before=edit.before,
        after=edit.after,
        reason="" if edit.reason == known else edit.reason,
        points=tuple(
            number for number, each in numbered if each.gradient_ids and gradients.issuperset(each.gradient_ids)
        ),
        case_ids=edit.evidence.cases,
    )


def _has_numbers(signal: AggregateResult) -> bool:
    """Whether the text of a signal numbers its points."""
    return all(f"{number}. {each.text}" in signal.text for number, each in enumerate(signal.points, start=1))


class BlameBySurface:
    """Blame by surface, that of the most cases first."""

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
        found = [
            BlameSummary(
                surface_id=surface_id,
                case_ids=tuple(sorted({case_id for reason in reasons for case_id in reason.case_ids})),
                reasons=tuple(reasons),
                outcome=self._outcome(surface_id),
                support=self._support[surface_id],
            )
            for surface_id, reasons in self._reasons.items()
        ]
        return tuple(sorted(found, key=lambda each: len(each.case_ids), reverse=True))

    def _outcome(self, surface_id: str) -> BlameOutcome:
        if surface_id in self._adopted:
            return "adopted"
        if surface_id in self._accepted:
            return "not_adopted"
        if surface_id in self._patched:
            return "rejected" if surface_id in self._decided else "undecided"
        return "no_patch" if surface_id in self._supported else "below_support"


class MissingBlame:
    """Why no surface was blamed, judging by the train cases of all rounds."""

    def __init__(self) -> None:
        self._no_blame = NO_BLAME
        self._has_train = self._has_failures = self._has_losses = self._has_traces = False
        self._is_searched = False

    def add(self, each: RoundResult) -> None:
        self._has_losses = self._has_losses or any(one.losses for one in get_passes(each))
        self._is_searched = self._is_searched or bool(each.candidates)
        if self._no_blame == NO_BLAME:
            self._no_blame = describe_no_blame(blame for one in get_passes(each) for blame in one.blames)
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
            return self._no_blame
        if self._is_searched:  # by a search that proposes candidates without blaming anything
            return ""
        if not self._has_traces:
            return NO_TRACE
        return "the runs failed with errors that no prompt can fix"
