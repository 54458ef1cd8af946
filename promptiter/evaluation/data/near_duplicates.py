"""Find near duplicates among sets of features without comparing all pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

NEAR = 0.8
"""Cases whose shingles have at least this Jaccard similarity are near duplicates."""

MAX_COMPARED = 100
"""Upper bound on the comparisons of one set, so that the time is not quadratic."""


def group_near_duplicates(sets: Sequence[frozenset[int]]) -> Iterator[tuple[list[int], float]]:
    """Groups of sets that are linked by a similarity of at least NEAR, with the lowest similarity that links them.

    Two sets that are this similar share one of their rarest members (prefix filtering, Chaudhuri et al. 2006), so only
    sets that do are compared. Each is compared with at most MAX_COMPARED others, starting with those that share its
    rarest members and are nearest in size. Below that limit the groups are exact.
    """
    frequency = Counter(member for members in sets for member in members)
    group_of = list(range(len(sets)))
    groups: dict[int, tuple[list[int], float]] = {number: ([number], 1.0) for number in group_of}
    holders: dict[int, list[int]] = {}
    for number in sorted(group_of, key=lambda number: (len(sets[number]), number)):
        members = sets[number]
        rare_first = sorted(members, key=lambda member: (frequency[member], member))
        prefix = rare_first[: len(members) - math.ceil(NEAR * len(members) - 1e-9) + 1]
        for other in _find_candidates(prefix, holders, sets, at_least=NEAR * len(members) - 1e-9):
            if group_of[other] == group_of[number]:
                continue
            shared = len(members & sets[other])
            similarity = shared / (len(members) + len(sets[other]) - shared)
            if similarity >= NEAR:
                small, large = sorted((group_of[number], group_of[other]), key=lambda group: len(groups[group][0]))
                moved, lowest = groups.pop(small)
                for one in moved:
                    group_of[one] = large
                numbers, lowest_before = groups[large]
                numbers.extend(moved)
                groups[large] = (numbers, min(lowest, lowest_before, similarity))
        for member in prefix:
            holders.setdefault(member, []).append(number)
    yield from sorted((sorted(numbers), lowest) for numbers, lowest in groups.values() if len(numbers) > 1)


def _find_candidates(
    prefix: Iterable[int], holders: Mapping[int, Sequence[int]], sets: Sequence[frozenset[int]], *, at_least: float
) -> Iterator[int]:
    seen: set[int] = set()
    for member in prefix:
        for other in reversed(holders.get(member, ())):  # larger ones were added later
            if len(sets[other]) < at_least or len(seen) >= MAX_COMPARED:
                break
            if other not in seen:
                seen.add(other)
                yield other
