"""The sentences that ask for each predicate: what the rule-based optimizer writes into a prompt.

Each family has several phrasings in plain English, the most natural first; after a rejection the next one is tried.
They are written for any model. Nothing here knows how the simulated model reads, and a test keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from promptiter.offline.rules.content_templates import CONTENT_PHRASINGS
from promptiter.offline.rules.form_templates import FORM_PHRASINGS
from promptiter.offline.text.dates import example_date

PHRASINGS: Mapping[str, tuple[str, ...]] = {**CONTENT_PHRASINGS, **FORM_PHRASINGS}
"""The templates by family. The names are those of the predicates."""

Slots: TypeAlias = Mapping[str, str]


def phrase(family: str, parameters: Sequence[str] = ()) -> tuple[str, ...]:
    """The sentences that ask for a predicate of that family, the most natural first."""
    slots = _SLOTS.get(family, _none)(tuple(parameters))
    return tuple(template.format_map(slots) for template in PHRASINGS[family])


def spoken_list(items: Sequence[str], *, joint: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {joint} {items[-1]}"


def with_article(name: str) -> str:
    """`the order id`."""
    return f"the {name}"


def _none(_: tuple[str, ...]) -> Slots:
    return {}


def _named(*names: str) -> Callable[[tuple[str, ...]], Slots]:
    return lambda parameters: dict(zip(names, parameters, strict=True))


def _fields(parameters: tuple[str, ...]) -> Slots:
    return {"fields": spoken_list([with_article(name) for name in parameters])}


def _keys(parameters: tuple[str, ...]) -> Slots:
    quoted = [f'"{key}"' for key in parameters]
    return {"keys": spoken_list(quoted), "bare": ", ".join(parameters), "word": "key" if len(quoted) == 1 else "keys"}


def _labels(parameters: tuple[str, ...]) -> Slots:
    return {"labels": ", ".join(parameters), "either": spoken_list(parameters, joint="or")}


def _length(parameters: tuple[str, ...]) -> Slots:
    count, unit = parameters
    return {"length": f"one {unit.removesuffix('s')}" if count == "1" else f"{count} {unit}"}


def _places(parameters: tuple[str, ...]) -> Slots:
    (count,) = parameters
    if count == "1":
        return {"places": "one decimal place", "digits": "one digit", "decimals": "one decimal"}
    return {"places": f"{count} decimal places", "digits": f"{count} digits", "decimals": f"{count} decimals"}


def _date(parameters: tuple[str, ...]) -> Slots:
    (format_name,) = parameters
    return {"format": format_name, "example": example_date(format_name)}


def _tools(parameters: tuple[str, ...]) -> Slots:
    first, *others = parameters
    return {"order": ", ".join(parameters), "first": first, "then": ", then ".join(others), "last": parameters[-1]}


def _domain(parameters: tuple[str, ...]) -> Slots:
    tool, argument, *choices = parameters
    either = spoken_list(choices, joint="or")
    return {"tool": tool, "argument": argument, "choices": ", ".join(choices), "either": either}


def _argument(parameters: tuple[str, ...]) -> Slots:
    tool, argument, name = parameters
    return {"tool": tool, "argument": argument, "field": with_article(name)}


def _argument_date(parameters: tuple[str, ...]) -> Slots:
    tool, argument, format_name = parameters
    return {"tool": tool, "argument": argument, **_date((format_name,))}


_SLOTS: Mapping[str, Callable[[tuple[str, ...]], Slots]] = {
    "field_carried": _fields,
    "field_only": _fields,
    "json_keys": _keys,
    "prefix": _named("text"),
    "suffix": _named("text"),
    "max_length": _length,
    "min_length": _length,
    "date_format": _date,
    "decimals": _places,
    "currency": _named("mark", "name", "example"),
    "unit_named": _named("unit"),
    "language": _named("language"),
    "enumeration": _labels,
    "label_cue": _named("label", "cue"),
    "items": _named("count", "items"),
    "unknown_text": _named("text"),
    "keyword": _named("word"),
    "forbidden": _named("word"),
    "call_tool": _named("tool"),
    "call_tool_when": _named("tool", "condition"),
    "no_tool": _named("tool"),
    "tool_order": _tools,
    "argument_source": _argument,
    "argument_domain": _domain,
    "argument_date": _argument_date,
    "use_tool_when": _named("condition"),
    "rubric": _named("text"),
}
"""How the parameters of a family fill its slots; a family that is not here has none."""
