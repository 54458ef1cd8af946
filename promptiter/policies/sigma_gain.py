"""SigmaGain: the gain on train must clear the noise of repeated sweeps, and the hold-out may lose no more than its own.

A sweep is one repeat of every case; its score is the mean over the cases. The bar is `accept_sigma` times the spread of
the sweeps of both profiles: the measured noise, whatever the size of the eval set. This is lenient and not a test: with
three sweeps the spread is itself a rough estimate, so candidates that change nothing pass quite often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Literal, TypeAlias, get_args

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.power import noise_bar
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ROUNDING, ComposablePolicy
from promptiter.policies.combine import iter_policies
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence
from promptiter.policies.pairing import pair_scores
from promptiter.wording import plural

Holdout: TypeAlias = Literal["on_train_improve", "every_trial", "skip", "k_fold"]
"""When validation is run: only if train improves, always, or never; or train and validation are pooled."""

SKIPPED = "; the hold-out was not used, so it may be overfitted"
"""What the decision to accept a candidate adds if validation is never run."""


@dataclass(frozen=True, slots=True, repr=False)
class SigmaGain(ComposablePolicy):
    """Accepts a candidate that gains at least its noise bar on train and loses at most its noise bar on validation.

    Both are measured in `repeats` repeats of every case under both profiles. With one repeat there is no spread, and
    any gain is enough. With holdout `skip` validation is never run, and the run risks overfitting; the decision says
    so. With `k_fold` train and validation cases are pooled and split into `folds` by the `seed`; each fold in turn is
    the hold-out of the others, and all must agree. Then no gain depends on a few cases, but the candidate is judged by
    the cases that it was made from, too.
    """

    accept_sigma: float = 1.0
    repeats: int = 3
    holdout: Holdout = "on_train_improve"
    folds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_number(self.accept_sigma, least=0):
            raise SetupError(f"accept_sigma is {self.accept_sigma!r}; give a number that is not negative, such as 1.0")
        for name, least in (("repeats", 1), ("folds", 2), ("seed", -(2**63))):
            value: object = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise SetupError(f"{name} is {value!r}; give a whole number" + f" of at least {least}" * (least > 0))
        if self.holdout not in get_args(Holdout):
            raise SetupError(f"holdout is {self.holdout!r}; give one of {', '.join(get_args(Holdout))}")

    @property
    def first_request(self) -> MoreEvidence:
        return MoreEvidence(repeats=self.repeats, on="train", reason=f"train needs {plural(self.repeats, 'sweep')}")

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        train = self._collect_sweeps(evidence.train, on="train")
        if isinstance(train, MoreEvidence):
            return train
        gains, on_train = self._check_gain(train, "train")
        if self.holdout == "skip":
            return evidence.accept_if(gains, f"{on_train}{SKIPPED * gains}")
        if self.holdout == "on_train_improve" and not gains:
            return evidence.reject(on_train)
        held = self._collect_sweeps(evidence, on="validation")
        if isinstance(held, MoreEvidence):
            return replace(held, reason=f"{on_train}; {held.reason}")
        if self.holdout == "k_fold":
            return self._decide_by_folds(evidence, train, held)
        holds, on_holdout = self._check_loss(held, "the hold-out")
        return evidence.accept_if(gains and holds, f"{on_train}; {on_holdout}")

    def _collect_sweeps(
        self, evidence: Evidence | None, *, on: Literal["validation", "train"]
    ) -> tuple[PairedScores, ...] | MoreEvidence:
        """Return the sweeps of an eval set, or a request for those that are missing."""
        cases: tuple[PairedScores, ...] = ()
        if evidence is not None and evidence.has_validation:
            cases = pair_scores(evidence.accepted, evidence.candidate, evidence.objective)
        if (missing := self.repeats - min((case.repeats for case in cases), default=0)) > 0:
            return MoreEvidence(repeats=missing, on=on, reason=f"{on} needs {plural(missing, 'sweep')}")
        return cases

    def _decide_by_folds(
        self, evidence: Evidence, train: Sequence[PairedScores], held: Sequence[PairedScores]
    ) -> Answer:
        folds = self._split_into_folds([*train, *held])
        for number, fold in enumerate(folds, start=1):
            rest = [case for other in folds if other is not fold for case in other]
            gains, on_rest = self._check_gain(rest, "the rest")
            holds, on_fold = self._check_loss(fold, "the fold")
            if not gains or not holds:
                return evidence.reject(f"fold {number} of {len(folds)}: {on_rest if not gains else on_fold}")
        _, on_pool = self._check_gain([*train, *held], f"the pool of {len(train) + len(held)} cases")
        return evidence.accept(f"{on_pool}, and so do the cases outside each of {len(folds)} folds")

    def _split_into_folds(self, pool: list[PairedScores]) -> list[list[PairedScores]]:
        Random(self.seed).shuffle(pool)
        count = min(self.folds, len(pool))
        return [pool[start::count] for start in range(count)]

    def _check_gain(self, cases: Sequence[PairedScores], name: str) -> tuple[bool, str]:
        gain, bar = self._measure(cases)
        if gain <= ROUNDING:
            return False, f"{name} {'gains nothing' if gain >= -ROUNDING else f'loses {-gain:.3f}'}"
        clears = gain >= bar - ROUNDING
        sign = "which clears" if clears else "which is below"
        return clears, f"{name} gains {gain:.3f}, {sign} its noise of {bar:.3f} ({self.accept_sigma:g} sigma)"

    def _check_loss(self, cases: Sequence[PairedScores], name: str) -> tuple[bool, str]:
        gain, bar = self._measure(cases)
        if gain >= -ROUNDING:
            return True, f"{name} gains {max(gain, 0.0):.3f}"
        holds = -gain <= bar + ROUNDING
        return holds, f"{name} loses {-gain:.3f}, {'within' if holds else 'more than'} its noise of {bar:.3f}"

    def _measure(self, cases: Sequence[PairedScores]) -> tuple[float, float]:
        """Return the gain of the sweeps, and the bar set by their spread."""
        before, after = average_sweeps(cases, self.repeats)
        return fmean(after) - fmean(before), noise_bar(before, after, sigma=self.accept_sigma)


def average_sweeps(cases: Sequence[PairedScores], repeats: int) -> tuple[list[float], list[float]]:
    """The mean over the cases in each of the first sweeps, under both profiles. Each case needs this many repeats."""
    before = [fmean(case.before[repeat] for case in cases) for repeat in range(repeats)]
    after = [fmean(case.after[repeat] for case in cases) for repeat in range(repeats)]
    return before, after


def skips_holdout(policy: object) -> bool:
    """Whether a policy, or one that it combines, never runs the hold-out."""
    return any(isinstance(each, SigmaGain) and each.holdout == "skip" for each in iter_policies(policy))
