"""PairedGain: an exact test for each candidate, with one false-positive budget for the whole run.

A run that tries twenty candidates at 5% each accepts a useless one in most runs. So candidate number n gets only
alpha / (n (n + 1)) of the budget: a half, a sixth, a twelfth. These shares add up to at most alpha, however many
candidates there will be, and they fall no faster than they must: with 100 cases or more, the twentieth candidate can
still be accepted. With few cases only large gains pass; there, a lenient policy and one final test find more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import Block, decide_for_these_cases
from promptiter.numbers import is_number
from promptiter.policies.acceptance import ComposablePolicy
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence, pair_scores

MAX_BLOCKS = 5


@dataclass(frozen=True, slots=True, repr=False)
class PairedGain(ComposablePolicy):
    """Accepts a candidate whose gain exceeds run noise; at most a share `alpha` of runs accepts a useless one.

    It looks after each block of `repeats` of every case. It accepts if the p-value of the within-case permutation test
    is within the look's part of the candidate's share, and rejects if there is no gain. Parts are proportional to the
    repeats so far, so later looks may spend more. A look ignores later repeats, whichever policy asked for them. Meant
    for 100 cases or more.
    """

    alpha: float = 0.05
    repeats: tuple[int, ...] = (2, 2, 2)

    def __post_init__(self) -> None:
        if not is_number(self.alpha, least=0) or not 0 < self.alpha < 1:
            raise SetupError(f"alpha is {self.alpha!r}; give a false-positive rate above 0 and below 1, such as 0.05")
        blocks: tuple[object, ...] = tuple(self.repeats)
        if not 1 <= len(blocks) <= MAX_BLOCKS or not all(isinstance(each, int) and each >= 1 for each in blocks):
            advice = f"give 1 to {MAX_BLOCKS} blocks of at least 1 repeat, such as (2, 2, 2)"
            raise SetupError(f"repeats is {self.repeats!r}; {advice}")
        object.__setattr__(self, "repeats", blocks)

    def share(self, candidate: int) -> float:
        """The share of alpha that candidate number 1, 2, 3, … may spend."""
        return self.alpha / (candidate * (candidate + 1))

    def decide(self, evidence: Evidence) -> Answer:
        if evidence.problem is not None:
            return evidence.reject(evidence.problem)
        share = self.share(evidence.candidates_tried)
        cases = pair_scores(evidence.accepted, evidence.candidate, evidence.objective)
        result = decide_for_these_cases(cases, blocks=self._blocks(share))
        if result.outcome == "open":
            return MoreEvidence(repeats=result.needed_repeats, reason=result.reason)
        reason = (
            f"{result.reason}; candidate {evidence.candidates_tried} may spend {share:.2g} of alpha = {self.alpha:g}"
        )
        return evidence.accept_if(result.is_shown, reason)

    def _blocks(self, share: float) -> list[Block]:
        seen = list(accumulate(self.repeats))
        whole = math.fsum(seen)
        return [
            Block(repeats=repeats, alpha=share * so_far / whole)
            for repeats, so_far in zip(self.repeats, seen, strict=True)
        ]
