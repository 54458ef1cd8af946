"""Search for a value in the steps of a trace: in inputs, tool results and outputs.

Texts are compared by meaning as far as that is certain: letter case and white space do not matter, numbers and dates
count by their value however they are written, and JSON escapes count as the characters they encode. Words and numbers
have boundaries: `12` is not in `120`, nor `A-1` in `A-17`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Literal, TypeAlias, cast

import orjson

from promptiter.backprop.step_text import json_text, snapshot_text
from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.fields import read_fields
from promptiter.offline.text.matching import WORD_END, WORD_START, contains_whole, normalize
from traces import ExecutionTrace, Step
from traces.model import Json

ValueKind: TypeAlias = Literal["date", "number", "id", "address", "word", "text"]
"""An id mixes letters, digits and hyphens (`A-17`), an address is that of a mail or page, a text is several words."""

# Neither inside a name (`v1.2`, `A-17`) nor a part of a date, a time or a range.
_NUMBER = rf"{WORD_START}(?<!\.)(?<!\w[-/:])[-+−]?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]?\d+)?{WORD_END}(?![-/:]\d)"
_ADDRESS = r"(?:https?://[^\s<>\"']+[^\s<>\"'.,;)]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{0,64}\w)"
_ID = (
    rf"{WORD_START}(?=[a-z_-]{{0,40}}\d)[a-z0-9]+(?:[-_][a-z0-9]+)+{WORD_END}"
    rf"|{WORD_START}(?:[a-z]+\d|\d+[a-z])[a-z0-9]*{WORD_END}"
)
_WORD = r"[^\W\d_\u3040-\u9fff]+(?:['’][^\W\d_\u3040-\u9fff]+)*|[\u3040-\u9fff]+"
_NUMBERS = re.compile(_NUMBER, re.IGNORECASE)
_PARTS = re.compile(rf"(?P<address>{_ADDRESS})|(?P<id>{_ID})|(?P<number>{_NUMBER})|(?P<word>{_WORD})", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": " ", "t": " ", "r": " ", "b": " ", "f": " "}


@dataclass(frozen=True, slots=True)
class Value:
    """Something to search for, as it is written, with what it means."""

    text: str
    kind: ValueKind = "text"
    normalized: str = field(init=False)
    number: Decimal | None = field(init=False)
    days: frozenset[date] = field(init=False)

    def __post_init__(self) -> None:
        days = find_dates(self.text) if self.kind == "date" else ()
        object.__setattr__(self, "normalized", normalize(self.text))
        object.__setattr__(self, "number", _parse_number(self.text) if self.kind == "number" else None)
        object.__setattr__(self, "days", days[0].days if days else frozenset())

    @property
    def key(self) -> tuple[str, str]:
        """Equal for values that are found in the same texts."""
        if self.number is not None:
            return self.kind, str(hash(self.number))  # 5 and 5.0 have one hash, and it is the same in every process
        return self.kind, str(min(self.days)) if self.days else self.normalized


def read_value(thing: Json) -> Value:
    """The value of a JSON leaf or a short text, of the kind that all of it has."""
    if isinstance(thing, bool) or thing is None:
        return Value(orjson.dumps(thing).decode(), "word")
    if isinstance(thing, int | float):
        return Value(f"{Decimal(repr(thing)):f}", "number")
    text = " ".join(str(thing).split())
    if any(day.text == text for day in find_dates(text)):
        return Value(text, "date")
    found = _PARTS.fullmatch(text)
    return Value(text, _read_kind(found) if found else "text")


def split_values(text: str) -> Iterator[Value]:
    """The dates, addresses, ids, numbers and words of a text, in order, including repeated ones."""
    position = 0
    for day in (*find_dates(text), None):
        at = len(text) if day is None else text.index(day.text, position)
        yield from (Value(found[0], _read_kind(found)) for found in _PARTS.finditer(text, position, at))
        if day is not None:
            yield Value(day.text, "date")
            position = at + len(day.text)


class SearchText:
    """A text that is searched many times."""

    def __init__(self, text: str) -> None:
        self.raw = text
        self.normalized = normalize(f"{text}\n{_unescape_json(text)}" if "\\" in text else text)

    def contains(self, value: Value) -> bool:
        """Whether the value is in the text, however it is written."""
        if value.number is not None:
            return value.number in self._numbers
        if value.days and any(str(day.year) in self.normalized for day in value.days):
            return not value.days.isdisjoint(self._days) or value.normalized in self.normalized  # 2026-03-02T10:00
        return contains_whole(self.normalized, value.normalized)

    def contains_verbatim(self, value: Value) -> bool:
        """Whether the value is in the text exactly as it is written."""
        return contains_whole(self.raw, value.text)

    @cached_property
    def _numbers(self) -> frozenset[Decimal]:
        found = (_parse_number(match[0]) for match in _NUMBERS.finditer(self.normalized))
        return frozenset(number for number in found if number is not None)

    @cached_property
    def _days(self) -> frozenset[date]:
        return frozenset(day for each in find_dates(self.normalized) for day in each.days)


class TraceTexts:
    """The texts of a trace's steps, normalized when they are first needed."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self._steps = {step.id: step for step in trace.steps}
        self._texts: dict[tuple[str, str], SearchText] = {}

    def input(self, step_id: str) -> SearchText:
        return self._get("input", step_id, lambda step: snapshot_text(step.input))

    def output(self, step_id: str) -> SearchText:
        return self._get("output", step_id, lambda step: snapshot_text(step.output))

    def tool_results(self, step_id: str) -> SearchText:
        """The results of the tools that the step called."""
        return self._get("tools", step_id, lambda step: "\n".join(json_text(call.result) for call in step.tool_calls))

    def sources_with(self, value: Value, step: Step) -> tuple[str, ...]:
        """The steps that a step read and whose outputs contain the value."""
        return tuple(source for source in step.sources if self.output(source).contains(value))

    def _get(self, kind: str, step_id: str, read: Callable[[Step], str]) -> SearchText:
        if (kind, step_id) not in self._texts:
            self._texts[kind, step_id] = SearchText(read(self._steps[step_id]))
        return self._texts[kind, step_id]


def find_field_name(value: Value, text: str) -> str:
    """The name that a text has for a value: `order id` in `order_id: A-17` or `my order id is A-17`; else empty."""
    if not SearchText(text).contains(value):
        return ""
    fields = read_fields(text)
    exact = (name for name, values in fields.items() if any(normalize(each) == value.normalized for each in values))
    inside = (name for name, values in fields.items() if any(SearchText(each).contains(value) for each in values))
    return next(exact, "") or next(inside, "")


def normalize_name(text: str) -> str:
    """The words of a name in lower case and singular, so that `orderIds` and `Order ID` are both `order id`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split()
    return " ".join(
        word[:-1] if len(word) > 2 and word[-1] == "s" and word[-2] not in "sui" else word for word in words
    )


def _read_kind(found: re.Match[str]) -> ValueKind:
    return cast(ValueKind, found.lastgroup)  # the groups are named after the kinds


def _parse_number(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("−", "-"))
    except ArithmeticError:  # an exponent beyond what a Decimal can hold
        return None


def _unescape_json(text: str) -> str:
    """JSON escapes replaced by their characters, also where text was escaped twice."""
    for _ in range(2):
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
    return text
