"""Which qualified predicates are asked for together: all that are needed, none that follows from another.

The specific come before the general. The first choice holds what explains the failures; the next are for when it was
rejected in every phrasing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from promptiter.offline.rules.predicates import Support, enough_cases
from promptiter.offline.text.fields import field_name

GENERAL = frozenset(
    ("json_object", "all_fields_carried", "verbatim", "max_length", "min_length", "keyword", "forbidden", "calculation")
)
"""Families that hold by accident more often than others: they are asked only about what no other explains."""

MOST_FIELDS = 4
"""Above so many lost fields, asking for all fields is the better rule."""

ABOUT_AS_MUCH = 0.75


def choices(supports: Sequence[Support]) -> Iterator[tuple[Support, ...]]:
    """Sets of predicates to ask for together: first all that are needed, then what is left, as the next to try."""
    left = list(supports)
    while chosen := _choice(left):
        yield chosen
        left = [support for support in left if support not in chosen]


def _choice(supports: Sequence[Support]) -> tuple[Support, ...]:
    """All specific predicates that no other makes needless, then general ones for what is still not explained."""
    general = [support for support in supports if _is_general(support)]
    specific = _with_all_fields([support for support in supports if support not in general], general)
    needed = [one for one in specific if not any(_makes_needless(other, one) for other in specific)]
    explained = {case_id for support in needed for case_id in support.explained}
    chosen = [one for one in needed if one.explained or not explained.isdisjoint(one.unseen)]
    for support in general:
        is_needless = any(_makes_needless(other, support) for other in chosen)
        more = set(support.explained) - explained
        if not is_needless and len(more) >= enough_cases(support.failing):
            chosen.append(support)
            explained |= set(support.explained)
    return tuple(chosen)


def _is_general(support: Support) -> bool:
    """Whether a rule may well hold by accident: so do first words that are no heading, such as `It is`."""
    family, parameters = support.predicate.family, support.predicate.parameters
    return family in GENERAL or (family == "prefix" and parameters[0][-1].isalnum())


def _with_all_fields(specific: list[Support], general: Sequence[Support]) -> list[Support]:
    """Where many fields are lost, the rule to carry all of them in their place."""
    lost = [support for support in specific if support.predicate.family == "field_carried"]
    whole = [support for support in general if support.predicate.family == "all_fields_carried"]
    if len(lost) <= MOST_FIELDS or not whole:
        return specific
    return [*whole, *(support for support in specific if support not in lost)]


def _makes_needless(one: Support, other: Support) -> bool:
    """Whether the second is a mere consequence of the first, which explains about as much."""
    if one is other or len(one.explained) < ABOUT_AS_MUCH * len(other.explained):
        return False
    first, second = one.predicate, other.predicate
    if (first.family, second.family) == ("json_keys", "field_carried"):
        return any(_are_alike(field_name(key), second.subject) for key in first.parameters)
    if (first.family, second.family) == ("tool_order", "call_tool"):
        return second.subject in first.parameters
    if first.family == second.family == "max_length":
        return first.parameters[1] == "sentences"
    return second.family in _NEEDLESS.get(first.family, ())


def _are_alike(key: str, name: str) -> bool:
    """Whether a key is filled from the field of that name: `id` from `order id`."""
    words, others = set(key.split()), set(name.split())
    return words <= others or others <= words


_LENGTHS = frozenset(("max_length", "min_length"))
_WORDS = frozenset(("prefix", "suffix", "keyword", "forbidden"))
_CASES = frozenset(("upper_case", "lower_case", "title_case"))
_LISTS = frozenset(("bullets", "numbered", "comma_separated", "items"))

_NEEDLESS: Mapping[str, frozenset[str]] = {
    "yes_no": frozenset(("enumeration", "label_cue", "value_only", "language")) | _LENGTHS | _WORDS | _CASES,
    "field_only": frozenset(("enumeration", "label_cue", "value_only", "field_carried", "all_fields_carried", "unit"))
    | frozenset(("unit_named", "verbatim", "language"))
    | _LENGTHS
    | _WORDS
    | _LISTS,
    "enumeration": frozenset(("value_only", "language", "field_carried")) | _LENGTHS | _WORDS | _CASES | _LISTS,
    "value_only": frozenset(("all_fields_carried", "language")) | _LENGTHS | _WORDS,
    "unknown_text": frozenset(("unknown", "keyword")),
    "json_keys": frozenset(("json_object", "all_fields_carried", "value_only")) | _LENGTHS | _WORDS | _LISTS,
    "bullets": _LENGTHS | _WORDS,
    "numbered": _LENGTHS | _WORDS,
    "comma_separated": _LENGTHS | _WORDS | frozenset(("value_only",)),
    "field_carried": _LENGTHS | frozenset(("all_fields_carried", "keyword", "forbidden", "calculation")),
    "all_fields_carried": _LENGTHS | frozenset(("field_carried", "keyword", "forbidden", "calculation")),
    "language": _LENGTHS | _WORDS,
    "upper_case": _WORDS,
    "lower_case": _WORDS | frozenset(("title_case",)),
    "title_case": _WORDS,
    "prefix": _LENGTHS | frozenset(("keyword", "forbidden")),
    "suffix": _LENGTHS | frozenset(("keyword", "forbidden")),
    "cite": _LENGTHS | frozenset(("cite_number", "suffix", "keyword")),
    "cite_number": _LENGTHS | frozenset(("suffix", "keyword")),
    "quote": _LENGTHS | frozenset(("keyword", "forbidden")),
    "calculation_shown": _LENGTHS | frozenset(("calculation", "prefix", "keyword", "forbidden")),
    "calculation": frozenset(("keyword", "forbidden")) | _LENGTHS,
    "unit_named": frozenset(("unit", "suffix", "keyword")),
    "unit": frozenset(("suffix", "keyword")),
    "date_format": frozenset(("verbatim",)),
    **dict.fromkeys(
        ("call_tool", "call_tool_when", "no_tool", "tool_order", "argument_source", "argument_domain", "argument_date"),
        frozenset(("field_carried", "all_fields_carried", "value_only", "field_only", "unit", "unit_named"))
        | frozenset(("calculation", "verbatim", "argument_date", "argument_domain"))
        | _LENGTHS
        | _WORDS,
    ),
}
"""What follows from a rule, or comes about by it: not asked for beside it."""
