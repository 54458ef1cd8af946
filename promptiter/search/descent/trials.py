"""Trials: candidates of coordinate descent on train, compared with the accepted profile and decided.

A trial runs all train cases under its candidate, on the same repeats as every other trial, so that answers which a
change cannot reach come from the cache. The acceptance of the run gets these rows and decides; what gains nothing on
train is not validated. Each accepted candidate is the profile that later trials start from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from promptiter.backprop.record import StagesMeasured
from promptiter.backprop.trial_record import (
    LossFigures,
    NumericProposal,
    PhaseKind,
    PhaseStarted,
    TextualProposal,
    Trial,
    TrialFinished,
    TrialMeasured,
    TrialOutcome,
    measure_loss,
)
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.power import noise_bar
from promptiter.policies.acceptance import ROUNDING, find_first_request
from promptiter.policies.combine import iter_policies
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.profile import PatchSet, Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedProfile:
    """A profile with its train evaluation."""

    profile: Profile
    evaluation: Evaluation
    figures: LossFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The phase that a trial belongs to, and its number there, from 1."""

    cycle: int
    phase: PhaseKind
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a trial proposes: patches of the accepted profile, or none and why. `surfaces` were to change.

    A joint move of a text and numbers has an `alternative`: the same numbers without the text.
    """

    surfaces: tuple[str, ...]
    patches: PatchSet = field(default_factory=PatchSet)
    numeric: NumericProposal | None = None
    textual: TextualProposal | None = None
    skipped: TrialOutcome | None = None
    reason: str = ""
    stages: StagesMeasured = field(default_factory=StagesMeasured)
    alternative: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A candidate that was run on train. `measured` includes what was run to decide about it."""

    attempt: Attempt
    profile: Profile
    evaluation: Evaluation
    figures: LossFigures | None
    measured: TrialMeasured


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """How a trial ended."""

    outcome: TrialOutcome
    reason: str
    before: LossFigures
    train: LossFigures | None = None
    gain: float | None = None
    noise_bar: float | None = None
    candidate: str | None = None
    measured: TrialMeasured = field(default_factory=TrialMeasured)


class Trials:
    """The trials of one run. `accepted` is the profile that the next ones start from; call `start` first."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.objective = session.request.objective
        self.accepted: TrainedProfile
        policy = session.request.acceptance
        first = find_first_request(policy)
        sigmas = [each.accept_sigma for each in iter_policies(policy) if isinstance(each, SigmaGain)]
        self._decides_on_train = first is not None and first.on == "train"
        self._sigma = max(sigmas, default=None)
        usual = session.evaluator.options.repeats
        wanted = max(usual, first.repeats) if first is not None and self._decides_on_train else usual
        if wanted > usual:
            session.reserve_repeats(wanted - usual)
        self._repeats = None if wanted == usual else range(wanted)
        self._losses: dict[str, float | None] = {}
        self._count = 0

    async def start(self) -> None:
        """Run the train cases under the accepted profile of the run: trials start from it.

        Called in the first round, and after another search has changed the profile.
        """
        session = self.session
        profile = session.accepted.profile
        evaluation = await session.evaluate(session.train, profile, phase="train", repeats=self._repeats)
        figures = measure_loss(evaluation, self.objective)
        if figures is None:
            raise SetupError(f"no train case could be scored: {evaluation.commonest_errors}")
        self.accepted = TrainedProfile(profile=profile, evaluation=evaluation, figures=figures)
        self._losses[profile.digest] = figures.mean

    async def begin_phase(self, cycle: int, phase: PhaseKind, study_id: str = "") -> None:
        """Record that a phase starts with this round, from the accepted profile."""
        if not self._losses:
            await self.start()
        accepted = self.accepted
        measured = TrialMeasured.of(accepted.evaluation) if not self._count else TrialMeasured()
        await self.session.note(
            PhaseStarted(cycle=cycle, phase=phase, study_id=study_id, first=accepted.figures, measured=measured)
        )

    async def record(self, attempt: Attempt, place: Place, *, outcome: TrialOutcome, gain: float | None) -> Trial:
        """Record a trial that was decided elsewhere, from the accepted profile as it was before."""
        before = self.accepted
        digest = None
        if attempt.patches:
            digest = self.session.candidate(attempt.patches, parent=before.profile).digest
        result = _Result(outcome=outcome, reason=attempt.reason, before=before.figures, gain=gain, candidate=digest)
        return await self._record(attempt, place, before.profile, result)

    async def run(self, attempts: Sequence[Attempt], places: Sequence[Place]) -> list[Trial]:
        """Run a batch of trials from the accepted profile, decide on each, and record them.

        Those with the lowest loss are decided first: what they gain, the others must exceed. A candidate that was run
        before is not run again.
        """
        session, parent = self.session, self.accepted
        candidates: dict[int, Profile] = {}
        for number, attempt in enumerate(attempts):
            if attempt.patches and not attempt.skipped:
                profile = session.candidate(attempt.patches, parent=parent.profile)
                if profile.digest not in self._losses and profile not in candidates.values():
                    candidates[number] = await session.propose(attempt.patches, parents=[parent.profile])
        ran = await self._evaluate([*candidates.values()])
        tried = {
            number: self._note(attempts[number], profile, evaluation)
            for (number, profile), evaluation in zip(candidates.items(), ran, strict=True)
        }
        for number, each in tried.items():
            tried[number] = await self._leave_out_idle_text(each)
        results: dict[int, _Result] = {}
        for number in sorted(tried, key=lambda number: (_rank(tried[number].figures), number)):
            results[number] = await self._decide(tried[number])
        if not candidates:
            reasons = [each.reason or "its values were tried before" for each in attempts]
            await session.skip_round("; ".join(dict.fromkeys(reasons)))
        trials = []
        for number, (given, place) in enumerate(zip(attempts, places, strict=True)):
            attempt = tried[number].attempt if number in tried else given
            result = results.get(number) or self._explain(attempt)
            trials.append(await self._record(attempt, place, parent.profile, result))
        return trials

    def find_loss(self, patches: PatchSet, parent: Profile) -> float | None:
        """The loss of a candidate that was run; None if it failed."""
        return self._losses.get(self.session.candidate(patches, parent=parent).digest)

    async def _evaluate(self, profiles: Sequence[Profile]) -> list[Evaluation]:
        if not profiles:
            return []
        pairs = [(self.session.train, profile) for profile in profiles]
        return await self.session.evaluate_many(pairs, phase="trial", repeats=self._repeats)

    def _note(self, attempt: Attempt, profile: Profile, evaluation: Evaluation) -> _Tried:
        figures = measure_loss(evaluation, self.objective)
        self._losses[profile.digest] = None if figures is None or not figures.is_reliable else figures.mean
        measured = TrialMeasured.of(evaluation)
        return _Tried(attempt=attempt, profile=profile, evaluation=evaluation, figures=figures, measured=measured)

    async def _leave_out_idle_text(self, joint: _Tried) -> _Tried:
        """If a joint move gains more than noise, run its numbers alone: if these do as well, the text is left out."""
        session, parent, other = self.session, self.accepted, joint.attempt.alternative
        if other is None or not other.patches or joint.figures is None or not joint.figures.is_reliable:
            return joint
        profile = session.candidate(other.patches, parent=parent.profile)
        if self._does_as_well(parent.figures, joint.figures) or profile.digest in self._losses:
            return joint
        await session.propose(other.patches, parents=[parent.profile])
        [evaluation] = await self._evaluate([profile])
        alone = self._note(other, profile, evaluation)
        measured = joint.measured + alone.measured
        if not self._does_as_well(alone.figures, joint.figures):
            await session.reject(profile, "the numbers alone gain less than together with the text")
            return replace(joint, measured=measured)
        await session.reject(joint.profile, "its numbers alone do as well, so the text stays as it was")
        return replace(alone, measured=measured)

    def _does_as_well(self, one: LossFigures | None, other: LossFigures) -> bool:
        """Whether the loss of one is at most that of the other, or higher by less than the noise."""
        if one is None or not one.is_reliable:
            return False
        bar = 0.0 if self._sigma is None else noise_bar(one.runs, other.runs, sigma=self._sigma)
        return one.mean - other.mean < max(bar - ROUNDING, ROUNDING)

    async def _decide(self, tried: _Tried) -> _Result:
        """Let the acceptance of the run decide, unless the train cases already say no."""
        session, before, candidate = self.session, self.accepted, tried.profile
        evaluation, train, measured = tried.evaluation, tried.figures, tried.measured
        if train is None or not train.is_reliable:
            outcome: TrialOutcome = "failed" if train is None else "unreliable"
            reason = f"too many train runs failed: {evaluation.commonest_errors}"
            await session.reject(candidate, reason)
            return _Result(
                outcome=outcome,
                reason=reason,
                before=before.figures,
                train=train,
                candidate=candidate.digest,
                measured=measured,
            )
        gain = round(before.figures.mean - train.mean, 12) + 0.0
        bar = None if self._sigma is None else noise_bar(before.figures.runs, train.runs, sigma=self._sigma)
        on_train = _describe_gain(gain, bar)
        if gain <= ROUNDING and not self._decides_on_train:
            decision = await session.reject(candidate, on_train)
        else:
            decision = await session.validate(candidate, train=(before.evaluation, evaluation))
        outcome = "accepted"
        if decision.accepted:
            self.accepted = TrainedProfile(profile=candidate, evaluation=evaluation, figures=train)
        elif gain <= ROUNDING:
            outcome = "no_gain"
        else:
            outcome = "noise" if bar is not None and gain < bar - ROUNDING else "holdout"
        return _Result(
            outcome=outcome,
            reason=f"{on_train}; not accepted on validation" if outcome == "holdout" else on_train,
            before=before.figures,
            train=train,
            gain=gain,
            noise_bar=None if bar is None else round(bar, 12),
            candidate=candidate.digest,
            measured=measured,
        )

    def _explain(self, attempt: Attempt) -> _Result:
        """The result of an attempt without a candidate of its own."""
        reason = attempt.reason or "its values were tried before"
        return _Result(outcome=attempt.skipped or "repeated", reason=reason, before=self.accepted.figures)

    async def _record(self, attempt: Attempt, place: Place, parent: Profile, result: _Result) -> Trial:
        self._count += 1
        trial = Trial(
            number=self._count,
            place=place.number,
            cycle=place.cycle,
            phase=place.phase,
            parent=parent.digest,
            surfaces=attempt.surfaces,
            changed=tuple(sorted(attempt.patches.surface_ids)),
            candidate=result.candidate,
            numeric=attempt.numeric,
            textual=attempt.textual,
            before=result.before,
            train=result.train,
            gain=result.gain,
            noise_bar=result.noise_bar,
            outcome=result.outcome,
            reason=self.session.redact(result.reason),
            measured=replace(result.measured, stages=attempt.stages),
        )
        return (await self.session.note(TrialFinished(trial=trial))).trial


def _rank(figures: LossFigures | None) -> float:
    return float("inf") if figures is None else figures.mean


def _describe_gain(gain: float, bar: float | None) -> str:
    if gain <= ROUNDING:
        return "train gains nothing" if gain >= -ROUNDING else f"train loses {-gain:.3f}"
    if bar is None:
        return f"train gains {gain:.3f}"
    return f"train gains {gain:.3f}, {'below' if gain < bar - ROUNDING else 'which clears'} its noise of {bar:.3f}"
