"""SigmaGain: the gain on train must clear the noise of repeated sweeps, and the hold-out may lose no more than its own.

A sweep is one repeat of every case, its figure the mean over the cases. The bar is `accept_sigma` times the spread of
the sweeps, of both profiles together: at any size of the eval set it is the noise that was measured. It is lenient, and
no test: with three sweeps the spread is itself a guess, so candidates that change nothing pass it quite often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean
from typing import Literal, TypeAlias, get_args

from promptiter.errors import SetupError
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.power import noise_bar
from promptiter.policies.acceptance import NOTHING, Policy
from promptiter.policies.combine import is_number
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence, pair_scores

Holdout: TypeAlias = Literal["on_train_improve", "every_trial", "skip", "k_fold"]
"""When validation is run: only if train improves, always, never; or train and validation are one pool."""


@dataclass(frozen=True, slots=True, repr=False)
class SigmaGain(Policy):
    """Accepts a candidate that gains at least its noise bar on train and loses at most its noise bar on validation.

    Both are looked at in `repeats` repeats of every case under both profiles. With one repeat there is no spread, and
    any gain is enough. With holdout `skip` validation is never run: the decision says so, and the run risks
    overfitting. With `k_fold` train and validation cases are pooled and dealt into `folds` by the `seed`; each fold in
    turn is the hold-out of the others, and all must agree. Then no gain hangs on a few cases, but cases that the
    candidate was made from are among those that it is judged by.
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
    def opening(self) -> MoreEvidence:
        return MoreEvidence(repeats=self.repeats, on="train", reason=f"{self.repeats} sweeps of train are to be run")

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        train = self._swept(evidence.train, on="train")
        if isinstance(train, MoreEvidence):
            return train
        gains, told = self._improves(train, "train")
        if self.holdout == "skip":
            told += "; the hold-out was not looked at, so it may be overfitted"
            return evidence.accept(told) if gains else evidence.reject(told)
        if self.holdout == "on_train_improve" and not gains:
            return evidence.reject(told)
        held = self._swept(evidence, on="validation")
        if isinstance(held, MoreEvidence):
            return replace(held, reason=f"{told}; {held.reason}")
        if self.holdout == "k_fold":
            return self._in_turn(evidence, train, held)
        holds, also = self._holds(held, "the hold-out")
        return evidence.accept(f"{told}; {also}") if gains and holds else evidence.reject(f"{told}; {also}")

    def _swept(
        self, evidence: Evidence | None, *, on: Literal["validation", "train"]
    ) -> tuple[PairedScores, ...] | MoreEvidence:
        """The sweeps of a set, or those that are still to be run."""
        cases: tuple[PairedScores, ...] = ()
        if evidence is not None and evidence.has_validation:
            cases = pair_scores(evidence.baseline, evidence.candidate, evidence.objective)
        if (missing := self.repeats - min((case.repeats for case in cases), default=0)) > 0:
            return MoreEvidence(repeats=missing, on=on, reason=f"{missing} sweeps of {on} are to be run")
        return tuple(case.first(self.repeats) for case in cases)

    def _in_turn(self, evidence: Evidence, train: Sequence[PairedScores], held: Sequence[PairedScores]) -> Answer:
        folds = list(self._dealt([*train, *held]))
        for number, fold in enumerate(folds, start=1):
            rest = [case for other in folds if other is not fold for case in other]
            gains, told = self._improves(rest, "the rest")
            holds, also = self._holds(fold, "the fold")
            if not gains or not holds:
                return evidence.reject(f"fold {number} of {len(folds)}: {told if not gains else also}")
        _, told = self._improves([*train, *held], f"the pool of {len(train) + len(held)} cases")
        return evidence.accept(f"{told}, and so does what each of {len(folds)} folds leaves")

    def _dealt(self, pool: list[PairedScores]) -> Iterator[list[PairedScores]]:
        Random(self.seed).shuffle(pool)
        count = min(self.folds, len(pool))
        return (pool[start::count] for start in range(count))

    def _improves(self, cases: Sequence[PairedScores], name: str) -> tuple[bool, str]:
        gain, bar = self._figures(cases)
        if gain <= NOTHING:
            return False, f"{name} {'gains nothing' if gain >= -NOTHING else f'loses {-gain:.3f}'}"
        clears = gain >= bar - NOTHING
        sign = "which clears" if clears else "which is below"
        return clears, f"{name} gains {gain:.3f}, {sign} its noise of {bar:.3f} ({self.accept_sigma:g} sigma)"

    def _holds(self, cases: Sequence[PairedScores], name: str) -> tuple[bool, str]:
        gain, bar = self._figures(cases)
        if gain >= -NOTHING:
            return True, f"{name} gains {max(gain, 0.0):.3f}"
        holds = -gain <= bar + NOTHING
        return holds, f"{name} loses {-gain:.3f}, {'within' if holds else 'more than'} its noise of {bar:.3f}"

    def _figures(self, cases: Sequence[PairedScores]) -> tuple[float, float]:
        """The gain of the sweeps, and the bar that their spread makes."""
        before = [fmean(case.before[repeat] for case in cases) for repeat in range(self.repeats)]
        after = [fmean(case.after[repeat] for case in cases) for repeat in range(self.repeats)]
        return fmean(after) - fmean(before), noise_bar(before, after, sigma=self.accept_sigma)
