"""What a search learned from its validation cases, and what alpha that leaves to test them for new cases.

Validation cases are not new to a search that selected its result on them. But if only decisions reached the search, no
score, no case and no text, there are few results that it can have reached: one for each sequence of answers. Each
sequence gets its share of alpha in advance, p for each acceptance and 1 - p for each rejection. The shares of all
sequences that can end a search add up to at most alpha, so the probability that any of their results passes by chance
is at most alpha (a union bound with the weights of a prefix code). The result that was reached is tested at its share.

Every answer that validation gave counts: a stop policy that read a validation score is one more bit and costs a factor
of 2. No patch is refused because of a validation case: that would be one too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from promptiter.wording import plural

FEW_ROUNDS = 2
BIT_SHARE = 0.5


def find_acceptance_share(max_rounds: int) -> float:
    """The share of alpha for an acceptance, fixed before the search.

    With 1/4, one acceptance after 7 rejections costs a factor of 30, and not 256 as with 1/2. But one without any
    rejection costs a factor of 4, and not 2, which a search of one or two rounds would rather pay.
    """
    return 0.5 if max_rounds <= FEW_ROUNDS else 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationUse:
    """The answers that validation gave to a search: decisions on candidates, and to stop or not by the score.

    `acceptance_share` is p. It is fixed before the search, see `find_acceptance_share`.
    """

    acceptance_share: float = 0.25
    accepted: int = 0
    rejected: int = 0
    stops_by_score: int = 0

    def add_decision(self, *, accepted: bool) -> ValidationUse:
        if accepted:
            return replace(self, accepted=self.accepted + 1)
        return replace(self, rejected=self.rejected + 1)

    def add_stop_by_score(self) -> ValidationUse:
        """Count a stop decision that looked at the score: one bit per acceptance, because only these change it."""
        return replace(self, stops_by_score=self.accepted)

    @property
    def share(self) -> float:
        """The share of alpha that is left for a test of new cases."""
        decisions = self.acceptance_share**self.accepted * (1 - self.acceptance_share) ** self.rejected
        return float(decisions * BIT_SHARE**self.stops_by_score)

    def find_alpha(self, alpha: float) -> float:
        """The alpha at which the validation cases may be tested for new cases."""
        return alpha * self.share

    def describe(self) -> str:
        """`2 accepted, 5 rejected`: what the search learned from validation."""
        stops = [plural(self.stops_by_score, "stop decision")] if self.stops_by_score else []
        return ", ".join([f"{self.accepted} accepted", f"{self.rejected} rejected", *stops])
