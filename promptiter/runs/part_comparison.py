"""Whether a part can be built again from the arguments that it stored.

`self.limit = limit * 2` stores an argument that would be doubled once more, so the resumed run would have another part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def find_difference(value: Any, positional: Sequence[Any], named: Mapping[str, Any]) -> str:
    """How a part differs from one that its class builds with the arguments that it stored; "" if it does not."""
    kind: type = type(value)
    if kind.__module__.startswith("promptiter."):
        return ""
    try:
        again, third = (kind(*positional, **named) for _ in range(2))
    except Exception as error:  # noqa: BLE001 - the user's constructor
        return f"cannot be built again from the arguments that it stored: {type(error).__name__}: {error}"
    by_chance = _find_changed(again, third)  # such as the time, which the arguments do not decide
    changed = [name for name in _find_changed(value, again) if name not in by_chance]
    return f"would differ in {', '.join(changed)} if built again from the arguments that it stored" if changed else ""


def _find_changed(one: Any, other: Any) -> list[str]:
    """The names of the attributes that differ, sorted."""
    first, second, seen = _read_state(one), _read_state(other), frozenset([id(one)])
    return [name for name in sorted({*first, *second}) if not _is_alike(first.get(name), second.get(name), seen)]


def _is_alike(one: Any, other: Any, seen: frozenset[int]) -> bool:
    """Whether two values have the same content. Objects without any, such as locks, only need the same type.

    `seen` are the objects that contain the first one, by id.
    """
    if one is other or id(one) in seen:
        return True
    if type(one) is not type(other):
        return False
    within = seen | {id(one)}
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_is_alike(*pair, within) for pair in zip(one, other, strict=True))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_alike(each, other[key], within) for key, each in one.items())
    if not hasattr(one, "__dict__") and any("__eq__" in vars(kind) for kind in type(one).__mro__[:-1]):
        try:
            return bool(one == other)
        except Exception:  # noqa: BLE001 - such as of an array
            return False
    return _is_alike(_read_state(one), _read_state(other), within)


def _read_state(value: Any) -> dict[str, Any]:
    """The attributes of an object, which has them in its dictionary or in slots."""
    slots = [name for kind in type(value).__mro__ for name in _list_slots(kind) if hasattr(value, name)]
    return {**{name: getattr(value, name) for name in slots}, **getattr(value, "__dict__", {})}


def _list_slots(kind: type) -> Sequence[str]:
    slots = kind.__dict__.get("__slots__", ())
    return [slots] if isinstance(slots, str) else [name for name in slots if name not in ("__dict__", "__weakref__")]
