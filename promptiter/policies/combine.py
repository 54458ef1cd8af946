"""What acceptance and stop policies share: several as one, and how each is written down."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from promptiter.errors import SetupError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Combined(Generic[T]):
    """Several policies as one, in the order in which they were written; a chain of one sign is one flat list."""

    policies: tuple[T, ...]
    sign: ClassVar[str]

    def __init__(self, *policies: T) -> None:
        flat: list[T] = []
        for policy in policies:
            flat += policy.policies if isinstance(policy, type(self)) else [policy]
        if wrong := [policy for policy in flat if isinstance(policy, type) or not hasattr(policy, "decide")]:
            raise SetupError(f"{wrong[0]!r} is no policy; give an object with the method `decide`")
        if not flat:
            raise SetupError(f"{type(self).__name__}() combines nothing; give at least one policy")
        object.__setattr__(self, "policies", tuple(flat))

    def __repr__(self) -> str:
        in_brackets = Combined if self.sign == "&" else ()
        parts = (f"({part!r})" if isinstance(part, in_brackets) else written(part) for part in self.policies)
        return f" {self.sign} ".join(parts)


def parts_of(policy: object) -> Iterator[object]:
    """The single policies that a policy is made of, in the order in which they were written."""
    if not isinstance(policy, Combined):
        yield policy
        return
    for part in policy.policies:
        yield from parts_of(part)


def written(policy: object) -> str:
    """A policy as the code that makes it. Never with an address in memory, which would differ from run to run."""
    return as_call(policy) if type(policy).__repr__ is object.__repr__ else repr(policy)


def as_call(policy: Any) -> str:
    """`MinGain(0.005)`: the class and its fields; of a class that is no dataclass, the name alone."""
    values = [repr(getattr(policy, field.name)) for field in fields(policy)] if is_dataclass(policy) else []
    return f"{type(policy).__name__}({', '.join(values)})"


def is_number(value: object, *, least: float = -math.inf) -> bool:
    """Whether a value is a finite number of at least so much; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least
