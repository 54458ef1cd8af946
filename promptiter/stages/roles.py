"""The roles of stages and searches, and a check that a part fits its role."""

from __future__ import annotations

from collections.abc import Collection

from promptiter.errors import SetupError

_ROLES = {
    "backwarder": ("backward", "attribute"),
    "aggregator": ("aggregate",),
    "optimizer": ("optimize",),
    "search": ("search",),
}
"""The parts of an engine, and the methods of which each needs one."""


def check_roles(**parts: object) -> None:
    """Raise SetupError if a stage or search does not fit its role: `check_roles(optimizer=mine)`."""
    for role, part in parts.items():
        if part is not None and not has_method(part, _ROLES[role]):
            raise SetupError(_describe_wrong_part(part, role))


def has_method(part: object, methods: Collection[str]) -> bool:
    return not isinstance(part, type) and any(callable(getattr(part, name, None)) for name in methods)


def _describe_wrong_part(part: object, role: str) -> str:
    methods = " or ".join(_ROLES[role])
    if isinstance(part, type):
        return f"{part.__name__} is a class, not {_a(role)}; create an object of it: {part.__name__}(...)"
    others = [other for other, names in _ROLES.items() if has_method(part, names)]
    if others:
        return f"{describe_part(part)} is {_a(others[0])}, not {_a(role)}; give it as {others[0]}="
    return f"{describe_part(part)} is not {_a(role)}; give an object with the method {methods}"


def _a(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def describe_part(part: object) -> str:
    """A value, or the class of an object whose repr says nothing else."""
    return (
        f"{part!r:.60}" if type(part).__repr__ is not object.__repr__ else f"an object of class {type(part).__name__}"
    )
