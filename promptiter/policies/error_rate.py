"""Error rates of acceptance policies: the false accepts a policy allows in a run, and whether it uses the hold-out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from promptiter.policies.acceptance import AllOf, AnyOf, Protected
from promptiter.policies.combine import is_number, parts_of, written
from promptiter.policies.constraints import Constraint
from promptiter.policies.sigma_gain import SigmaGain


@runtime_checkable
class BoundsFalseAccepts(Protocol):
    """A policy that bounds its false accepts: the chance that it accepts a candidate that is not better, in a run."""

    @property
    def alpha(self) -> float:
        """Above 0 and below 1."""


def error_of(policy: object) -> float | None:
    """The probability that a policy accepts, in a run, a candidate that is not better; None if it is not bounded.

    `|` accepts when one part does, so the bounds of its parts add up, and a part without a bound removes it. `&`
    accepts only when all parts do, so the strictest bound holds.
    """
    if isinstance(policy, AnyOf):
        errors = [error_of(part) for part in policy.policies]
        known = [error for error in errors if error is not None]
        return math.fsum(known) if len(known) == len(errors) else None
    if isinstance(policy, AllOf):
        return min((error for part in policy.policies if (error := error_of(part)) is not None), default=None)
    return policy.alpha if isinstance(policy, BoundsFalseAccepts) and is_number(policy.alpha) else None


def check_errors(policy: object, level: float) -> Iterator[str]:
    """The problems of a policy's bound on false accepts, for a run with this alpha."""
    error = error_of(policy)
    if error is None:
        yield from _broken(policy)
    elif error > level * (1 + 1e-9):
        yield (
            f"acceptance {written(policy)} allows false accepts in {error:.0%} of runs, above this run's alpha of "
            f"{level:g}; lower the alpha of its parts, join them with & instead of |, or raise the run's alpha"
        )


def _broken(policy: object) -> Iterator[str]:
    """The bounds that are lost because a part is joined by | with one that has none."""
    if isinstance(policy, AnyOf):
        kept = [part for part in policy.policies if error_of(part) is not None]
        loose = [part for part in policy.policies if error_of(part) is None]
        if kept:
            yield (
                f"acceptance {written(kept[0])} bounds false accepts at {error_of(kept[0]):.0%} per run; "
                f"| {written(loose[0])} removes the bound. Use &, or drop one"
            )
    if isinstance(policy, AnyOf | AllOf):
        for part in policy.policies:
            if error_of(part) is None:
                yield from _broken(part)


def ignores_holdout(policy: object) -> bool:
    """Whether a policy accepts what was never compared on the hold-out, because that is skipped.

    Guards do not count: protected cases that hold, or a bound on tokens, say nothing of the gain.
    """
    skips = any(isinstance(part, SigmaGain) and part.holdout == "skip" for part in parts_of(policy))
    return skips and not _weighs_holdout(policy)


def _weighs_holdout(policy: object) -> bool:
    if isinstance(policy, AllOf):
        return any(map(_weighs_holdout, policy.policies))
    if isinstance(policy, AnyOf):
        return all(map(_weighs_holdout, policy.policies))
    if isinstance(policy, SigmaGain):
        return policy.holdout != "skip"
    return not isinstance(policy, Protected | Constraint)
