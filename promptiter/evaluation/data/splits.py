"""Splitting an eval set into train, validation and test, and proving that sets do not overlap.

Cases are alike when they say the same to the agent in the same context, whatever their ids, references, case and
whitespace: one that is in train must not be in validation, or validation measures memory.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from traces import digest

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Three eval sets that do not overlap; a part whose share is 0 has no cases."""

    train: EvalSet
    validation: EvalSet
    test: EvalSet


def split(eval_set: EvalSet, *, train: float, validation: float, test: float = 0.0, seed: int) -> Split:
    """Deal the cases out by their shares of the whole; what the shares leave over is in no part.

    Who goes where, and in which order, depends on the seed and the cases' content alone. Cases that are alike stay
    together and count as one.
    """
    shares = {"train": train, "validation": validation, "test": test}
    _check_shares(shares)
    groups = _shuffle_groups(eval_set.cases, seed)
    counts = _count_cases(shares, len(groups), eval_set.id)
    parts: dict[str, EvalSet] = {}
    dealt = 0
    for name, count in counts.items():
        cases = tuple(case for group in groups[dealt : dealt + count] for case in group)
        parts[name] = replace(eval_set, id=f"{eval_set.id}-{name}", cases=cases)
        dealt += count
    return Split(train=parts["train"], validation=parts["validation"], test=parts["test"])


def check_disjoint(train: EvalSet, validation: EvalSet, test: EvalSet | None = None) -> None:
    """Raise EvalSetError when two of the sets have cases that are alike."""
    sets = {"train": train, "validation": validation} | ({} if test is None else {"test": test})
    problems = [
        _describe_overlap(first, second, names=(first_name, second_name))
        for (first_name, first), (second_name, second) in combinations(sets.items(), 2)
    ]
    if found := [problem for problem in problems if problem]:
        raise EvalSetError(f"{'; '.join(found)}; keep each case in one of the sets")


def digest_input(case: EvalCase) -> str:
    """A hash that cases share when they are alike: of what is said to the agent, with case and whitespace folded."""
    said = [_fold(turn.user) for turn in case.turns or case.actual]
    scenario = case.scenario and [_fold(case.scenario.starting_prompt), _fold(case.scenario.plan)]
    return digest([said, scenario, case.context, case.state])


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _check_shares(shares: Mapping[str, float]) -> None:
    for name, share in shares.items():
        if not math.isfinite(share) or share < 0:
            raise EvalSetError(f"the share of {name} is {share!r}; it must be a number from 0 to 1")
    total = math.fsum(shares.values())
    if total > 1 + 1e-9:
        raise EvalSetError(
            f"the shares of train, validation and test add up to {total:g}; make them at most 1 together"
        )
    if total == 0:
        raise EvalSetError("the shares of train, validation and test are all 0; give at least one of them some")


def _shuffle_groups(cases: Sequence[EvalCase], seed: int) -> list[list[EvalCase]]:
    groups: dict[str, list[EvalCase]] = {}
    for case in cases:
        groups.setdefault(digest_input(case), []).append(case)
    for group in groups.values():
        group.sort(key=lambda case: (case.content_digest, case.id))
    return [groups[key] for key in sorted(groups, key=lambda key: hashlib.sha256(f"{seed}:{key}".encode()).digest())]


def _count_cases(shares: Mapping[str, float], total: int, set_id: str) -> dict[str, int]:
    """Whole numbers nearest to the shares (largest remainder first), with at least one for every positive share."""
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
            donor = max(counts, key=lambda name: (counts[name], name == ""))  # of equals, what is left over gives first
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
    listed = ", ".join(repr(one) if one == other else f"{one!r} = {other!r}" for one, other in pairs[:_SHOWN])
    more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
    return f"{names[0]} and {names[1]} share {len(pairs)} case{'s' if len(pairs) > 1 else ''}: {listed}{more}"
