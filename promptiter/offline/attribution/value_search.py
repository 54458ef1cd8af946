"""Search for a value in the steps of a trace: in inputs, tool results and outputs.

Texts are compared by meaning as far as that is certain: letter case and white space do not matter, numbers and dates
count by their value however they are written, and JSON escapes count as the characters they encode. Values are
compared whole: `12` is not in `120`, nor `A-1` in `A-17`; see `promptiter/offline/text/tokens.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property
from typing import Literal, TypeAlias

import orjson

from promptiter.backprop.step_text import json_text, snapshot_text
from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.fields import read_fields
from promptiter.offline.text.matching import contains_whole, normalize
from promptiter.offline.text.tokens import TokenKind, parse_number, tokenize
from traces import ExecutionTrace, Step
from traces.model import Json

ValueKind: TypeAlias = Literal["date", "number", "id", "address", "word", "text", "pair"]
"""An id mixes letters, digits and hyphens (`A-17`), an address is that of a mail or page, a text is several words.

A pair is a value with its name, as in `status: open`. It is found however the two are joined.
"""

_ADDRESS = re.compile(
    r"https?://[^\s<>\"']+[^\s<>\"'.,;)]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{0,64}\w", re.IGNORECASE
)
_ISO_TIME = re.compile(r"(?<=\d)t(?=\d{2}:?\d{2})", re.IGNORECASE)
_KINDS: Mapping[TokenKind, ValueKind] = {
    "date": "date",
    "number": "number",
    "id": "id",
    "word": "word",
    "script": "word",
}
_PAIR = re.compile(
    r"(?<![\w-])(?P<name>[^\W\d][\w-]{0,40})[\"'*`]{0,2}[ \t]?[:=][ \t]?[\"'*`]{0,2}(?P<value>\w[\w.%+-]*)"
    r"(?=[\"'*`]{0,2}(?:\s*(?:[,;|/)}\]&\n]|\Z)|(?<=\.)\s))"
)
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

    @staticmethod
    def pair(name: str, value: str) -> Value:
        return Value(f"{name}: {value}", "pair")

    def __post_init__(self) -> None:
        days = find_dates(self.text) if self.kind == "date" else ()
        object.__setattr__(self, "normalized", normalize(self.text))
        object.__setattr__(self, "number", parse_number(self.text) if self.kind == "number" else None)
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
    if _ADDRESS.fullmatch(text):
        return Value(text, "address")
    tokens = list(tokenize(text).tokens)
    is_one = len(tokens) == 1 and tokens[0].end - tokens[0].start == len(text)
    return Value(text, _KINDS[tokens[0].kind] if is_one else "text")


def split_values(text: str) -> Iterator[Value]:
    """The dates, addresses, ids, numbers and words of a text, in order, including repeated ones."""
    found: list[tuple[int, int, ValueKind]] = [
        *((match.start(), match.end(), "address") for match in _ADDRESS.finditer(text)),
        *((day.start, day.start + len(day.text), "date") for day in find_dates(text)),
        *((token.start, token.end, _KINDS[token.kind]) for token in tokenize(text).tokens),
    ]
    position = 0
    for start, end, kind in sorted(found, key=lambda each: (each[0], -each[1])):
        if start >= position:
            yield Value(text[start:end], kind)
            position = end


class SearchText:
    """A text that is searched many times."""

    def __init__(self, text: str) -> None:
        self.raw = text
        self._unescaped = f"{text}\n{_unescape_json(text)}" if "\\" in text else text

    def contains(self, value: Value) -> bool:
        """Whether the value is in the text, however it is written."""
        if value.number is not None:
            return value.number in self._numbers
        if value.kind == "pair":
            return value.normalized in self._pairs
        if value.days and any(str(day.year) in self.normalized for day in value.days):
            return not value.days.isdisjoint(self._days)
        return contains_whole(self.normalized, value.normalized)

    def contains_verbatim(self, value: Value) -> bool:
        """Whether the value is in the text exactly as it is written."""
        return contains_whole(self.raw, value.text)

    @cached_property
    def normalized(self) -> str:
        return normalize(self._unescaped)

    @cached_property
    def _numbers(self) -> frozenset[Decimal]:
        tokens = (token for token in tokenize(self.normalized).tokens if token.kind == "number")
        found = (parse_number(self.normalized[token.start : token.end]) for token in tokens)
        return frozenset(number for number in found if number is not None)

    @cached_property
    def _pairs(self) -> frozenset[str]:
        return frozenset(f"{name}: {value}" for name, value in read_pairs(self._unescaped))

    @cached_property
    def _days(self) -> frozenset[date]:
        return frozenset(day for each in find_dates(_ISO_TIME.sub(" ", self.normalized)) for day in each.days)


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


def read_pairs(text: str) -> Iterator[tuple[str, str]]:
    """Names with their values of one word, in lower case: `status: open`, `status=open`, `"status": "open"`."""
    for found in _PAIR.finditer(text):
        yield normalize(found["name"]), normalize(found["value"].rstrip("."))


def normalize_name(text: str) -> str:
    """The words of a name in lower case and singular, so that `orderIds` and `Order ID` are both `order id`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split()
    return " ".join(
        word[:-1] if len(word) > 2 and word[-1] == "s" and word[-2] not in "sui" else word for word in words
    )


def _unescape_json(text: str) -> str:
    """JSON escapes replaced by their characters, also where text was escaped twice."""
    for _ in range(2):
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
    return text
