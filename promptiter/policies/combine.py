"""What acceptance and stop policies share: combining several into one, and describing them as code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, Generic, TypeVar

from promptiter.errors import SetupError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, init=False, repr=False)
class CombinedPolicy(Generic[T]):
    """Several policies as one, in the order of the code; a chain of one operator is a flat list."""

    policies: tuple[T, ...]
    sign: ClassVar[str]

    def __init__(self, *policies: T) -> None:
        flat: list[T] = []
        for policy in policies:
            flat += policy.policies if isinstance(policy, type(self)) else [policy]
        if wrong := [policy for policy in flat if isinstance(policy, type) or not hasattr(policy, "decide")]:
            raise SetupError(f"{wrong[0]!r} is not a policy; give an object with the method `decide`")
        if not flat:
            raise SetupError(f"{type(self).__name__}() combines no policies; give at least one")
        object.__setattr__(self, "policies", tuple(flat))

    def __repr__(self) -> str:
        in_brackets = CombinedPolicy if self.sign == "&" else ()
        parts = (f"({part!r})" if isinstance(part, in_brackets) else describe_policy(part) for part in self.policies)
        return f" {self.sign} ".join(parts)


def iter_policies(policy: object) -> Iterator[object]:
    """Yield the single policies that a policy combines, in the order of the code."""
    if not isinstance(policy, CombinedPolicy):
        yield policy
        return
    for part in policy.policies:
        yield from iter_policies(part)


def describe_policy(policy: object) -> str:
    """Return a policy as the code that creates it, never with a memory address, which differs between runs."""
    return format_call(policy) if type(policy).__repr__ is object.__repr__ else repr(policy)


def format_call(policy: Any) -> str:
    """Return `MinGain(0.005)`: the class and its fields, or only the name if it is not a dataclass."""
    values = [repr(getattr(policy, field.name)) for field in fields(policy)] if is_dataclass(policy) else []
    return f"{type(policy).__name__}({', '.join(values)})"
