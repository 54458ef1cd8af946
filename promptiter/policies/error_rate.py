"""Error rates of acceptance policies: the false accepts a policy allows in a run, and whether it uses the hold-out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from promptiter.numbers import is_number
from promptiter.policies.acceptance import AllOf, AnyOf, Protected
from promptiter.policies.combine import describe_policy, iter_policies
from promptiter.policies.constraints import Constraint
from promptiter.policies.sigma_gain import SigmaGain


@runtime_checkable
class BoundsFalseAccepts(Protocol):
    """A policy that bounds its false accepts: the chance that it accepts a candidate that is not better, in a run."""

    @property
    def alpha(self) -> float:
        """Above 0 and below 1."""


def false_accept_rate(policy: object) -> float | None:
    """Return the probability that a policy accepts a candidate in a run that is not better; None if it is unbounded.

    `|` accepts when one part does, so the bounds of its parts add up, and a part without a bound removes it. `&`
    accepts only when all parts do, so the strictest bound holds.
    """
    if isinstance(policy, AnyOf):
        errors = [false_accept_rate(part) for part in policy.policies]
        known = [error for error in errors if error is not None]
        return math.fsum(known) if len(known) == len(errors) else None
    if isinstance(policy, AllOf):
        return min((error for part in policy.policies if (error := false_accept_rate(part)) is not None), default=None)
    return policy.alpha if isinstance(policy, BoundsFalseAccepts) and is_number(policy.alpha) else None


def check_false_accept_rate(policy: object, alpha: float) -> Iterator[str]:
    """Yield the problems of a policy's bound on false accepts, for a run with this alpha."""
    rate = false_accept_rate(policy)
    if rate is None:
        yield from _find_lost_bounds(policy)
    elif rate > alpha * (1 + 1e-9):
        yield (
            f"acceptance {describe_policy(policy)} allows false accepts in {rate:.0%} of runs, above this run's alpha "
            f"of {alpha:g}; lower the alpha of its parts, join them with & instead of |, or raise the run's alpha"
        )


def _find_lost_bounds(policy: object) -> Iterator[str]:
    """Yield the bounds that are lost because a part is joined by | with one that has none."""
    if isinstance(policy, AnyOf):
        rates = [(describe_policy(part), false_accept_rate(part)) for part in policy.policies]
        bounded = [(name, rate) for name, rate in rates if rate is not None]
        unbounded = [name for name, rate in rates if rate is None]
        if bounded:
            name, rate = bounded[0]
            yield (
                f"acceptance {name} bounds false accepts at {rate:.0%} per run; "
                f"| {unbounded[0]} removes the bound. Use &, or drop one"
            )
    if isinstance(policy, AnyOf | AllOf):
        for part in policy.policies:
            if false_accept_rate(part) is None:
                yield from _find_lost_bounds(part)


def ignores_holdout(policy: object) -> bool:
    """Whether a policy accepts candidates without comparing them on the hold-out.

    Protected cases and bounds on tokens do not count as a comparison: they say nothing about the gain.
    """
    skips = any(isinstance(part, SigmaGain) and part.holdout == "skip" for part in iter_policies(policy))
    return skips and not _weighs_holdout(policy)


def _weighs_holdout(policy: object) -> bool:
    if isinstance(policy, AllOf):
        return any(map(_weighs_holdout, policy.policies))
    if isinstance(policy, AnyOf):
        return all(map(_weighs_holdout, policy.policies))
    if isinstance(policy, SigmaGain):
        return policy.holdout != "skip"
    return not isinstance(policy, Protected | Constraint)
