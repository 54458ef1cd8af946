"""Where a value shows in the steps of a trace: in what went in, in tool results, in what came out.

Texts are searched by meaning as far as that is certain: letter case and white space do not matter, numbers and dates
count by their value however they are written, and JSON-escaped text counts as what it stands for. Words and numbers
have borders: `12` does not show in `120`, nor `A-1` in `A-17`.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias, cast

import orjson

from promptiter.offline.text.dates import dates_in
from promptiter.offline.text.fields import read_fields
from traces import ExecutionTrace, Snapshot, Step
from traces.model import Json

ValueKind: TypeAlias = Literal["date", "number", "id", "address", "word", "text"]
"""An id mixes letters, digits and hyphens (`A-17`), an address is that of a mail or page, a text is more than one."""

_LETTER = r"[^\W\u3040-\u9fff]"  # Chinese and Japanese put no spaces between words, so their characters end one
_START, _END = rf"(?<!{_LETTER})", rf"(?!{_LETTER})"
# Neither inside a name (`v1.2`, `A-17`) nor a part of a date, a time or a range.
_NUMBER = rf"{_START}(?<!\.)(?<!\w[-/:])[-+−]?\d+(?:,\d{{3}})*(?:\.\d+)?(?:e[-+]?\d+)?{_END}(?![-/:]\d)"
_ADDRESS = r"(?:https?://[^\s<>\"']+[^\s<>\"'.,;)]|(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{0,64}\w)"
_ID = rf"{_START}(?=[a-z_-]{{0,40}}\d)[a-z0-9]+(?:[-_][a-z0-9]+)+{_END}|{_START}(?:[a-z]+\d|\d+[a-z])[a-z0-9]*{_END}"
_WORD = r"[^\W\d_\u3040-\u9fff]+(?:['’][^\W\d_\u3040-\u9fff]+)*|[\u3040-\u9fff]+"
_NUMBERS = re.compile(_NUMBER, re.IGNORECASE)
_PARTS = re.compile(rf"(?P<address>{_ADDRESS})|(?P<id>{_ID})|(?P<number>{_NUMBER})|(?P<word>{_WORD})", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))")
_ESCAPED = {"n": " ", "t": " ", "r": " ", "b": " ", "f": " "}


@dataclass(frozen=True, slots=True)
class Value:
    """Something to look for, as it is written, with what it stands for."""

    text: str
    kind: ValueKind = "text"
    folded: str = field(init=False)
    number: Decimal | None = field(init=False)
    days: frozenset[date] = field(init=False)

    def __post_init__(self) -> None:
        days = dates_in(self.text) if self.kind == "date" else ()
        object.__setattr__(self, "folded", fold(self.text))
        object.__setattr__(self, "number", _number(self.text) if self.kind == "number" else None)
        object.__setattr__(self, "days", days[0].days if days else frozenset())

    @property
    def key(self) -> tuple[str, str]:
        """Equal for values that show in the same texts."""
        if self.number is not None:
            return self.kind, str(hash(self.number))  # 5 and 5.0 have one hash, and it is the same in every process
        return self.kind, str(min(self.days)) if self.days else self.folded


def from_plain(thing: Json) -> Value:
    """The value of a JSON leaf or a short text, of the kind that all of it is."""
    if isinstance(thing, bool) or thing is None:
        return Value(orjson.dumps(thing).decode(), "word")
    if isinstance(thing, int | float):
        return Value(f"{Decimal(repr(thing)):f}", "number")
    text = " ".join(str(thing).split())
    if any(day.text == text for day in dates_in(text)):
        return Value(text, "date")
    found = _PARTS.fullmatch(text)
    return Value(text, _kind(found) if found else "text")


def parts_of(text: str) -> Iterator[Value]:
    """The dates, addresses, ids, numbers and words of a text, in its order, repeated ones included."""
    position = 0
    for day in (*dates_in(text), None):
        at = len(text) if day is None else text.index(day.text, position)
        yield from (Value(found[0], _kind(found)) for found in _PARTS.finditer(text, position, at))
        if day is not None:
            yield Value(day.text, "date")
            position = at + len(day.text)


def fold(text: str) -> str:
    """A text without what does not matter: letter case, the sort and amount of white space, typographic forms."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


class FoldedText:
    """A text to be searched, many times."""

    def __init__(self, text: str) -> None:
        self.raw = text
        self.folded = fold(f"{text}\n{_unescaped(text)}" if "\\" in text else text)

    def shows(self, value: Value) -> bool:
        """Whether the value stands in the text, in whatever writing."""
        if value.number is not None:
            return value.number in self._numbers
        if value.days and any(str(day.year) in self.folded for day in value.days):
            return not value.days.isdisjoint(self._days) or value.folded in self.folded  # as in 2026-03-02T10:00
        return _holds(self.folded, value.folded)

    def writes(self, value: Value) -> bool:
        """Whether the value stands in the text exactly as it is written."""
        return _holds(self.raw, value.text)

    @cached_property
    def _numbers(self) -> frozenset[Decimal]:
        found = (_number(match[0]) for match in _NUMBERS.finditer(self.folded))
        return frozenset(number for number in found if number is not None)

    @cached_property
    def _days(self) -> frozenset[date]:
        return frozenset(day for each in dates_in(self.folded) for day in each.days)


class TraceTexts:
    """The texts of a trace's steps, folded when they are first asked for."""

    def __init__(self, trace: ExecutionTrace) -> None:
        self._steps = {step.id: step for step in trace.steps}
        self._inputs: dict[str, FoldedText] = {}
        self._outputs: dict[str, FoldedText] = {}
        self._results: dict[str, FoldedText] = {}

    def input(self, step_id: str) -> FoldedText:
        if step_id not in self._inputs:
            self._inputs[step_id] = FoldedText(snapshot_text(self._steps[step_id].input))
        return self._inputs[step_id]

    def output(self, step_id: str) -> FoldedText:
        if step_id not in self._outputs:
            self._outputs[step_id] = FoldedText(snapshot_text(self._steps[step_id].output))
        return self._outputs[step_id]

    def results(self, step_id: str) -> FoldedText:
        """What the tools answered that the step called."""
        if step_id not in self._results:
            calls = self._steps[step_id].tool_calls
            self._results[step_id] = FoldedText("\n".join(json_text(call.result) for call in calls))
        return self._results[step_id]

    def handed_by(self, step: Step, value: Value) -> tuple[str, ...]:
        """The predecessors whose outputs show the value."""
        return tuple(source for source in step.predecessors if self.output(source).shows(value))


def snapshot_text(snapshot: Snapshot) -> str:
    """A snapshot as text; structured data as JSON."""
    parts = [snapshot.text] if snapshot.text is not None else []
    if snapshot.data is not None:
        parts.append(json_text(snapshot.data))
    return "\n".join(parts)


def json_text(value: Json) -> str:
    """Text as it is, anything else as JSON; nothing of None."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return orjson.dumps(value, default=repr).decode()
    except TypeError:  # a number beyond 64 bits, half a surrogate pair
        return json.dumps(value, default=repr)


def field_of(value: Value, text: str) -> str:
    """What a text calls a value: `order id` in `order_id: A-17` or `my order id is A-17`; empty: nothing."""
    if not FoldedText(text).shows(value):
        return ""
    fields = read_fields(text)
    exact = (name for name, values in fields.items() if any(fold(each) == value.folded for each in values))
    inside = (name for name, values in fields.items() if any(FoldedText(each).shows(value) for each in values))
    return next(exact, "") or next(inside, "")


def plain_words(text: str) -> str:
    """The words of a text in small letters and singular, so that `order id` is found in `orderIds` and `Order ID`."""
    parted = re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", text).casefold().split()
    return " ".join(
        word[:-1] if len(word) > 2 and word[-1] == "s" and word[-2] not in "sui" else word for word in parted
    )


def _kind(found: re.Match[str]) -> ValueKind:
    return cast(ValueKind, found.lastgroup)  # the groups are named after the kinds


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(text.replace(",", "").replace("−", "-"))
    except ArithmeticError:  # an exponent beyond what a Decimal can hold
        return None


def _unescaped(text: str) -> str:
    """JSON escapes as what they stand for, also where text was escaped twice."""
    for _ in range(2):
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPED.get(found[2], found[2]), text)
    return text


def _holds(text: str, part: str) -> bool:
    return bool(part) and part in text and _bordered(part).search(text) is not None


@lru_cache(maxsize=1024)
def _bordered(text: str) -> re.Pattern[str]:
    """The text between borders, where it begins or ends in a letter or digit."""
    before = _START if re.match(_LETTER, text[0]) else ""
    after = _END if re.match(_LETTER, text[-1]) else ""
    if after and any(character.isdigit() for character in text):
        after += rf"(?![-.]{_LETTER})"  # A-17 is not A-17-B
    return re.compile(before + re.escape(text) + after)
