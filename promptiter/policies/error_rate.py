"""What an acceptance policy promises: how often it errs in a whole run, and whether it looks at the hold-out at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from promptiter.policies.acceptance import AllOf, AnyOf, Protected
from promptiter.policies.combine import is_number, parts_of, written
from promptiter.policies.constraints import Constraint
from promptiter.policies.sigma_gain import SigmaGain


@runtime_checkable
class Promise(Protocol):
    """A policy that bounds its false accepts: the chance that it accepts a candidate that is not better, in a run."""

    @property
    def alpha(self) -> float:
        """Above 0 and below 1."""


def error_of(policy: object) -> float | None:
    """The error that a policy keeps in a whole run; None if it promises nothing.

    What accepts when one of several does may err when one of them does: their errors add up, and one that promises
    nothing spoils it. What accepts only when all do errs no more often than the strictest of them.
    """
    if isinstance(policy, AnyOf):
        errors = [error_of(part) for part in policy.policies]
        known = [error for error in errors if error is not None]
        return math.fsum(known) if len(known) == len(errors) else None
    if isinstance(policy, AllOf):
        return min((error for part in policy.policies if (error := error_of(part)) is not None), default=None)
    return policy.alpha if isinstance(policy, Promise) and is_number(policy.alpha) else None


def check_errors(policy: object, level: float) -> Iterator[str]:
    """What is wrong with the promises of a policy, for a run that may err with this chance."""
    error = error_of(policy)
    if error is None:
        yield from _broken(policy)
    elif error > level * (1 + 1e-9):
        yield (
            f"acceptance {written(policy)} may err in {error:g} of all runs, more than the {level:g} of this one; "
            f"lower the errors of its parts, join them with & instead of |, or raise alpha of the run"
        )


def _broken(policy: object) -> Iterator[str]:
    """The promises in a policy that promises nothing: each is joined by | with something that does not."""
    if isinstance(policy, AnyOf):
        kept = [part for part in policy.policies if error_of(part) is not None]
        loose = [part for part in policy.policies if error_of(part) is None]
        if kept:
            yield (
                f"acceptance {written(kept[0])} promises an error of {error_of(kept[0]):g}, and | with "
                f"{written(loose[0])}, which promises none, breaks it; join them with &, or take one of them"
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
