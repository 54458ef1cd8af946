"""Which cases of many to take: one of each group of near duplicates, and a share of each kind of run."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal, TypeAlias, TypeVar, get_args

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.health import make_shingles
from promptiter.evaluation.data.near_duplicates import group_near_duplicates
from promptiter.grouping import group_by

Outcome: TypeAlias = Literal["failed", "disliked", "good", "unknown"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

FEWEST_FOR_TEMPLATE = 20
"""In fewer questions, what most of them share may be chance."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftCase:
    """A case, and what decides whether it is taken. `runs` is the number of its turns."""

    case: EvalCase
    outcome: Outcome
    route: frozenset[str]
    started_ns: int
    redacted: Counter[str]

    @property
    def runs(self) -> int:
        return len(self.case.turns)


def drop_near_duplicates(drafts: Sequence[DraftCase]) -> list[DraftCase]:
    """One case of each group of near duplicates: if possible with a reference, of a run that went wrong, the latest."""
    sets = [make_shingles(_list_texts(each.case)) for each in drafts]
    equal = group_by(range(len(drafts)), lambda at: sets[at])
    kept = [_choose([drafts[at] for at in alike]) for alike in equal.values()]
    dropped: set[int] = set()
    for alike, _ in group_near_duplicates(_drop_template(list(equal))):
        best = _choose([kept[at] for at in alike])
        dropped |= {at for at in alike if kept[at] is not best}
    left = [each for at, each in enumerate(kept) if at not in dropped]
    return sorted(left, key=lambda each: each.started_ns)


def _drop_template(sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """The sets without what more than half of them share: the template of a prompt does not make questions similar."""
    if len(sets) < FEWEST_FOR_TEMPLATE:
        return list(sets)
    counts = Counter(member for members in sets for member in members)
    template = {member for member, count in counts.items() if count > len(sets) / 2}
    return [members - template or members for members in sets]


def _choose(alike: Sequence[DraftCase]) -> DraftCase:
    def rank(each: DraftCase) -> tuple[bool, int, int]:
        has_reference = any(turn.expected is not None for turn in each.case.turns)
        return has_reference, -OUTCOMES.index(each.outcome), each.started_ns

    return max(alike, key=rank)


def _list_texts(case: EvalCase) -> list[str]:
    return [*(message.content for message in case.context), *(turn.user for turn in case.turns)]


def sample_strata(drafts: list[DraftCase], most: int | None, rng: random.Random) -> list[DraftCase]:
    """At most so many cases, dealt out in turn to the strata: one of each outcome and route, then a second, …"""
    if most is None or len(drafts) <= most:
        return drafts
    strata = group_by(drafts, lambda each: (each.outcome, each.route))
    for stratum in strata.values():
        rng.shuffle(stratum)
    by_outcome = group_by(sorted(strata.values(), key=len, reverse=True), lambda stratum: stratum[0].outcome)
    in_turn = _deal([by_outcome.get(outcome, []) for outcome in OUTCOMES])
    chosen = {id(each) for each in _deal(in_turn)[:most]}
    return [each for each in drafts if id(each) in chosen]


def _deal(hands: Sequence[Sequence[_T]]) -> list[_T]:
    """The first of each hand, then the second of each, and so on."""
    return [each for row in zip_longest(*hands) for each in row if each is not None]
