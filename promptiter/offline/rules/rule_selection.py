"""The qualified predicates to ask for together: all that are needed, none that follows from another.

Specific predicates come before general ones. The first choice explains the failures; the next ones are for the case
that it was rejected in every phrasing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promptiter.offline.rules.predicates import Support, count_needed_cases
from promptiter.offline.text.fields import spell_field_name

GENERAL = frozenset(("json_object", "all_fields_carried", "verbatim", "max_length", "min_length", "keyword"))
"""Families that are often true by accident: they are used only for failures that no other family explains."""

MAX_FIELDS = 4
"""If more fields are lost, asking for all fields is the better rule."""

ABOUT_AS_MUCH = 0.75


def iterate_choices(supports: Sequence[Support]) -> Iterator[tuple[Support, ...]]:
    """Sets of predicates to ask for together: first all that are needed, then the rest, for later attempts."""
    left = list(supports)
    while chosen := _choose(left):
        yield chosen
        left = [support for support in left if support not in chosen]


def _choose(supports: Sequence[Support]) -> tuple[Support, ...]:
    """All specific predicates that no other makes redundant, then general ones for failures not explained yet."""
    general = [support for support in supports if _is_general(support)]
    specific = _merge_fields([support for support in supports if support not in general], general)
    needed = [one for one in specific if not any(_makes_redundant(other, one) for other in specific)]
    explained = {case_id for support in needed for case_id in support.explained}
    chosen = [one for one in needed if one.explained or not explained.isdisjoint(one.unseen)]
    for support in general:
        is_redundant = any(_makes_redundant(other, support) for other in chosen)
        more = set(support.explained) - explained
        if not is_redundant and len(more) >= count_needed_cases(support.failing):
            chosen.append(support)
            explained |= set(support.explained)
    return tuple(chosen)


def _is_general(support: Support) -> bool:
    """Whether a rule may be true by accident, as first words without a colon are, such as `It is`."""
    family, parameters = support.predicate.family, support.predicate.parameters
    return family in GENERAL or (family == "prefix" and parameters[0][-1].isalnum())


def _merge_fields(specific: list[Support], general: Sequence[Support]) -> list[Support]:
    """If many fields are lost, the rule to carry all fields replaces their rules."""
    lost = [support for support in specific if support.predicate.family == "field_carried"]
    whole = [support for support in general if support.predicate.family == "all_fields_carried"]
    if len(lost) <= MAX_FIELDS or not whole:
        return specific
    return [*whole, *(support for support in specific if support not in lost)]


def _makes_redundant(one: Support, other: Support) -> bool:
    """Whether the second follows from the first, which explains about as much."""
    if one is other or len(one.explained) < ABOUT_AS_MUCH * len(other.explained):
        return False
    first, second = one.predicate, other.predicate
    if (first.family, second.family) == ("json_keys", "field_carried"):
        return any(_are_alike(spell_field_name(key), second.subject) for key in first.parameters)
    if (first.family, second.family) == ("tool_order", "call_tool"):
        return second.subject in first.parameters
    if first.family == second.family == "max_length":
        return first.parameters[1] == "sentences"
    return second.family in _REDUNDANT.get(first.family, ())


def _are_alike(key: str, name: str) -> bool:
    """Whether a key can be filled from a field: `id` from `order id`."""
    words, others = set(key.split()), set(name.split())
    return words <= others or others <= words


_LENGTHS = frozenset(("max_length", "min_length"))
_WORDS = frozenset(("prefix", "suffix", "keyword"))

_REDUNDANT: Mapping[str, frozenset[str]] = {
    "enumeration": _LENGTHS | _WORDS | {"value_only", "language", "field_carried", "upper_case"},
    "field_only": _LENGTHS | _WORDS | {"value_only", "field_carried", "all_fields_carried", "language"},
    "value_only": _LENGTHS | _WORDS | {"all_fields_carried", "language"},
    "json_keys": _LENGTHS | _WORDS | {"json_object", "all_fields_carried", "value_only"},
    "field_carried": _LENGTHS | {"all_fields_carried", "keyword"},
    "all_fields_carried": _LENGTHS | {"field_carried", "keyword"},
    "language": _LENGTHS | _WORDS,
    "upper_case": _WORDS,
    "prefix": _LENGTHS | {"keyword"},
    "suffix": _LENGTHS | {"keyword"},
    "cite": _LENGTHS | {"suffix", "keyword"},
    "date_format": frozenset(("verbatim",)),
    "use_tool_when": frozenset(("use_tool",)),
    **dict.fromkeys(
        ("call_tool", "call_tool_when", "no_tool", "tool_order", "argument_source"),
        _LENGTHS | _WORDS | {"field_carried", "all_fields_carried", "value_only", "verbatim"},
    ),
}
"""The families that follow from a rule and are not asked for along with it."""
