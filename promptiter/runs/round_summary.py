"""The rounds of a run as plain data: scores, candidates, what was rejected, and the blame behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from promptiter.backprop.iteration_record import Iteration, get_iteration, get_reflection
from promptiter.backprop.record import (
    StagesMeasured,
    describe_dropped,
    describe_unmerged,
    explain_missing_patches,
    get_passes,
)
from promptiter.evaluation.result import Evaluation, merge_evaluations
from promptiter.grouping import group_by
from promptiter.policies.figures import average_figures
from promptiter.profile import PatchSet, Profile, SurfaceChange
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult, SearchNote
from promptiter.runs.blame_summary import (
    BlameBySurface,
    BlameReason,
    BlameSummary,
    ChangeReasons,
    LastSignals,
    MissingBlame,
)
from promptiter.runs.candidate_pool import CandidatePool, PoolSummary
from promptiter.runs.trial_phases import DescentSummary, TrialPhases
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_sentences

UNDECIDED = "ended before a decision"
"""Why a candidate has no decision."""


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

    `figures` are what a scorer measured in its own units, in its order. `eval_sets` has the same for each eval set, if
    the cases come from several.
    """

    score: float | None
    passed: int
    cases: int
    repeats: int = 1
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    figures: Mapping[str, float] = field(default_factory=dict)
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
class PassSummary:
    """One pass of a round: the surfaces it patched, and the failed train cases under all patches so far, if known."""

    patched: tuple[str, ...]
    rerun: EvaluationSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSummary:
    """One round, its candidates, and the passes that wrote patches.

    `skipped` says why it has no candidate; `notes` are the search's own events. `iteration` is what a search that keeps
    a pool recorded of the round, `reflection` what the models of its stages cost.
    """

    round: int
    train: EvaluationSummary | None
    blamed: tuple[str, ...]
    candidates: tuple[CandidateSummary, ...]
    passes: tuple[PassSummary, ...] = ()
    skipped: str = ""
    notes: tuple[SearchNote, ...] = ()
    iteration: Iteration | None = None
    reflection: StagesMeasured = field(default_factory=StagesMeasured)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """All rounds of a run, its pool, and its phases. `reasons` gives, by surface, the reason for each accepted patch.

    `no_blame` says why no surface was blamed, if rounds ran without blaming any; `problems` are what the user should
    know about the stages.
    """

    rounds: tuple[RoundSummary, ...] = ()
    blame: tuple[BlameSummary, ...] = ()
    rejections: tuple[RejectionSummary, ...] = ()
    reasons: Mapping[str, tuple[BlameReason, ...]] = field(default_factory=dict)
    no_blame: str = ""
    problems: tuple[str, ...] = ()
    pool: PoolSummary = field(default_factory=PoolSummary)
    descent: DescentSummary = field(default_factory=DescentSummary)


def summarize_rounds(result: RunResult) -> SearchSummary:
    """Summarize the rounds in a single pass: a journal may hold ten thousand of them."""
    rounds: list[RoundSummary] = []
    rejections: list[RejectionSummary] = []
    blame = BlameBySurface(result)
    reasons = ChangeReasons(result.initial_profile)
    no_blame = MissingBlame()
    signals = LastSignals()
    pool = CandidatePool(result)
    phases = TrialPhases()
    profiles = {each.number: each.profile_digest for each in result.evaluations}
    train: Evaluation | None = None
    dropped = 0
    unmerged: dict[str, AggregateResult] = {}
    for each in result.rounds:
        dropped += sum(one.dropped for one in get_passes(each))
        failed = (signal for one in get_passes(each) for signal in (*one.signals, *one.below_support) if signal.error)
        unmerged |= {signal.surface_id: signal for signal in failed}
        signals.add(each)
        train = each.train or train
        profiles |= {one.number: one.profile_digest for one in each.all_evaluations}
        rounds.append(_summarize_round(each, train, profiles, result.structure))
        rejections.extend(_rejections(each, result.structure))
        blame.add(each)
        no_blame.add(each)
        reasons.add(each, signals)
        pool.add(each)
        phases.add(each)
    blamed, descent = blame.summaries(), phases.summarize()
    return SearchSummary(
        rounds=tuple(rounds),
        blame=blamed,
        rejections=tuple(rejections),
        reasons=reasons.accepted,
        no_blame="" if blamed or result.goal.kind != "score" or descent.trials else no_blame.reason,
        problems=tuple(
            problem
            for problem in (describe_dropped(dropped) if dropped else None, describe_unmerged(tuple(unmerged.values())))
            if problem is not None
        ),
        pool=pool.summarize(),
        descent=descent,
    )


def find_candidate(result: RunResult) -> Evaluation | None:
    """The evaluation of the best candidate on the cases of the search, also if it was not adopted; None without one."""
    digest = result.working_profile.digest
    if digest == result.initial_profile.digest:
        return None
    if result.accepted is not None and result.accepted.profile_digest == digest:
        return result.accepted
    return merge_phase(result, "final_test", result.working_profile)


def merge_phase(result: RunResult, phase: str, profile: Profile) -> Evaluation | None:
    """All that the final test or the test set measured of a profile."""
    return merge_evaluations(
        each for each in result.evaluations if each.phase == phase and each.profile_digest == profile.digest
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
        figures=average_figures(evaluation.rows),
    )


def _summarize_round(
    each: RoundResult, train: Evaluation | None, profiles: Mapping[int | None, str], structure: StructureSnapshot
) -> RoundSummary:
    """Summarize a round. A round after a rejection uses the `train` results of an earlier one.

    `profiles` are those of the evaluations so far, by number.
    """
    return RoundSummary(
        round=each.round,
        train=summarize_evaluation(train),
        blamed=tuple(dict.fromkeys(signal.surface_id for one in get_passes(each) for signal in one.signals)),
        candidates=tuple(_summarize_candidate(candidate, profiles) for candidate in each.candidates),
        passes=tuple(_summarize_passes(each, structure)),
        skipped=each.skipped or ("" if each.candidates else explain_missing_patches(get_passes(each))),
        notes=each.notes,
        iteration=get_iteration(each),
        reflection=get_reflection(each),
    )


def _summarize_passes(each: RoundResult, structure: StructureSnapshot) -> Iterator[PassSummary]:
    """Summarize the passes with patches. Their re-runs are found by the profile that the patches so far give."""
    reruns = {one.profile_digest: one for one in each.all_evaluations if one.phase == "rerun"}
    patches = PatchSet()
    for one in get_passes(each):
        if one.patches:
            patches = patches.compose(one.patches)
            rerun = reruns.get(each.input_profile.apply(patches, structure).digest) if reruns else None
            yield PassSummary(patched=tuple(sorted(one.patches.surface_ids)), rerun=summarize_evaluation(rerun))


def _summarize_candidate(candidate: CandidateResult, profiles: Mapping[int | None, str]) -> CandidateSummary:
    decision = candidate.decision
    others = group_by(candidate.evaluations, lambda each: each.phase)
    seen = [] if candidate.evidence is None else sorted(candidate.evidence.accepted)
    return CandidateSummary(
        digest=candidate.profile.digest,
        parents=candidate.parents,
        patched=tuple(sorted(candidate.patches.surface_ids)),
        proposal=join_sentences(patch.reason for patch in candidate.patches),
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
