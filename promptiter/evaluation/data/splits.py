"""Split an eval set into train, validation and test sets, and check that sets do not overlap.

Two cases are alike when the agent is given the same input in the same context. Ids, references, letter case and
whitespace do not count. If a case in train is also in validation, validation measures memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.grouping import group_by
from promptiter.wording import join_names, plural
from traces import digest

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Three eval sets that do not overlap. A set whose share is 0 has no cases."""

    train: EvalSet
    validation: EvalSet
    test: EvalSet


def split(eval_set: EvalSet, *, train: float, validation: float, test: float = 0.0, seed: int) -> Split:
    """Split the cases by the share of each set. If the shares add up to less than 1, some cases are in no set.

    The result depends only on the seed and on the content of the cases, not on their order. Cases that are alike stay
    together and count as one.
    """
    shares = {"train": train, "validation": validation, "test": test}
    _check_shares(shares)
    groups = _shuffle_groups(eval_set.cases, seed)
    counts = _count_cases(shares, len(groups), eval_set.id)
    parts: dict[str, EvalSet] = {}
    taken = 0
    for name, count in counts.items():
        cases = tuple(case for group in groups[taken : taken + count] for case in group)
        parts[name] = replace(eval_set, id=f"{eval_set.id}-{name}", cases=cases)
        taken += count
    return Split(train=parts["train"], validation=parts["validation"], test=parts["test"])


def check_disjoint(train: EvalSet, validation: EvalSet, test: EvalSet | None = None) -> None:
    """Raise EvalSetError if two of the sets have cases that are alike."""
    sets = {"train": train, "validation": validation} | ({} if test is None else {"test": test})
    if found := find_overlaps(sets):
        raise EvalSetError(f"{'; '.join(found)}; keep each case in one of the sets")


def find_overlaps(sets: Mapping[str, EvalSet]) -> list[str]:
    """Say which two of the sets, by name, have cases that are alike, and which cases."""
    problems = [
        _describe_overlap(first, second, names=(first_name, second_name))
        for (first_name, first), (second_name, second) in combinations(sets.items(), 2)
    ]
    return [problem for problem in problems if problem]


def digest_input(case: EvalCase) -> str:
    """A hash of the input of a case. Cases that are alike have the same one."""
    messages = [_fold(turn.user) for turn in case.turns or case.actual]
    scenario = case.scenario and [_fold(case.scenario.starting_prompt), _fold(case.scenario.plan)]
    return digest([messages, scenario, case.context, case.state])


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _check_shares(shares: Mapping[str, float]) -> None:
    for name, share in shares.items():
        if not math.isfinite(share) or share < 0:
            raise EvalSetError(f"the share of {name} is {share!r}; give a number from 0 to 1")
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise EvalSetError(
            f"the shares of train, validation and test add up to {total:g}; make them add up to at most 1"
        )
    if total == 0:
        raise EvalSetError("the shares of train, validation and test are all 0; give at least one of them a share")


def _shuffle_groups(cases: Sequence[EvalCase], seed: int) -> list[list[EvalCase]]:
    groups = group_by(cases, digest_input)
    for group in groups.values():
        group.sort(key=lambda case: (case.content_digest, case.id))
    return [groups[key] for key in sorted(groups, key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())]


def _count_cases(shares: Mapping[str, float], total: int, set_id: str) -> dict[str, int]:
    """How many groups each set gets: rounded by largest remainder, at least one for every positive share."""
    wanted = [name for name, share in shares.items() if share > 0]
    if total < len(wanted):
        raise EvalSetError(
            f"eval set {set_id!r} has {total} different cases, too few for {len(wanted)} parts ({', '.join(wanted)}); "
            "add cases, or set a share to 0"
        )
    left_over = max(0.0, 1 - math.fsum(shares.values()))
    exact = {name: share * total for name, share in shares.items()} | {"": left_over * total}
    counts = {name: math.floor(quota + 1e-9) for name, quota in exact.items()}
    by_remainder = sorted(exact, key=lambda name: counts[name] - exact[name])
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    for name in wanted:
        if counts[name] == 0:
            donor = max(
                counts, key=lambda name: (counts[name], name == "")
            )  # on a tie, take from the cases that are in no set
            counts[donor] -= 1
            counts[name] = 1
    return {name: counts[name] for name in shares}


def _describe_overlap(first: EvalSet, second: EvalSet, *, names: tuple[str, str]) -> str:
    known: dict[str, str] = {}
    for case in first.cases:
        known.setdefault(digest_input(case), case.id)
    pairs = [(known[key], case.id) for case in second.cases if (key := digest_input(case)) in known]
    if not pairs:
        return ""
    cases = [repr(one) if one == other else f"{one!r} = {other!r}" for one, other in pairs]
    shared = join_names(cases, limit=_SHOWN)
    return f"{names[0]} and {names[1]} share {plural(len(pairs), 'case')}: {shared}"
