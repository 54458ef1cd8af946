"""The fields of a step's input: named values, however they are written.

`order id: A-17` on a line or in brackets, JSON keys, `name=value`, rows of a table, `my order id is A-17`, documents
as `[D2] …`. What has no name but a kind of its own (an e-mail address, a date, an amount of money) is a field of that
kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType

from promptiter.offline.text.dates import dates_in
from traces.model import Json

LONGEST_NAME_WORDS = 4
MOST_VALUES = 20
MOST_FAILURES = 20
"""After so many brackets that open no JSON, no more is looked for in a text."""


@lru_cache(maxsize=4096)
def read_fields(text: str) -> Mapping[str, tuple[str, ...]]:
    """The values of each field, by its name in small letters: `order_id`, `orderId` and `Order ID` are `order id`."""
    found: dict[str, list[str]] = {}
    rest = _take(found, _json_fields(text), text)
    for read in (_tables, _inline_fields, _documents, _lines, _pairs, _said):
        rest = _take(found, read(rest), rest)
    named = {value for values in found.values() for value in values}
    for name, value, _ in _kinds(text):
        if not any(value in known for known in named):
            found.setdefault(name, []).append(value)
    return MappingProxyType({name: tuple(dict.fromkeys(values))[:MOST_VALUES] for name, values in found.items()})


def field_name(raw: str) -> str:
    """A name as it is spoken: `orderId` is `order id`."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_*`\"'.]+", " ", raw)
    return " ".join(parted.split()).lower()


def question_of(text: str) -> str:
    """The first question of a text, empty without one."""
    found = re.search(r"[^\s.!?:;{}\"][^.!?:\n{}\"]{8,300}\?", text)
    return found[0].strip() if found else ""


_Field = tuple[str, str, tuple[int, int] | None]
"""A name, a value, and the part of the text that is told by it, which later readings do not see."""


def _take(found: dict[str, list[str]], fields: Iterator[_Field], text: str) -> str:
    """Keep the fields, and give back the text without the parts that they came from."""
    spans = []
    for raw, value, span in fields:
        name, value = field_name(raw), " ".join(value.split()).strip(" \"'`*").rstrip(" .;,")
        if name and value and len(name.split()) <= LONGEST_NAME_WORDS:
            found.setdefault(name, []).append(value)
        if span is not None:
            spans.append(span)
    kept, position = [], 0
    for start, end in sorted(set(spans)):
        kept.append(text[position : max(start, position)])
        position = max(end, position)
    return "".join((*kept, text[position:]))


def _json_fields(text: str) -> Iterator[_Field]:
    decoder = json.JSONDecoder()
    position = 0
    failures = 0
    for opening in re.finditer(r"[{\[](?=\s?[\"{\[\]}\d\n])", text):
        if opening.start() < position or failures > MOST_FAILURES:
            continue
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            failures += 1
            continue
        if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value)):
            span = opening.start(), position
            yield from ((name, leaf, span) for name, leaf in _leaves(value))


def _leaves(value: Json) -> Iterator[tuple[str, str]]:
    """Names and values; an inner name follows the one around it unless it says as much itself."""
    waiting: list[tuple[str, Json]] = [("", value)]
    while waiting:
        name, each = waiting.pop()
        if isinstance(each, dict):
            inner = [(_joined(name, str(key)), below) for key, below in each.items()]
            waiting += reversed(inner)
        elif isinstance(each, list):
            waiting += reversed([(name, item) for item in each])
        elif each is not None:
            yield name, as_written(each)


def as_written(value: Json) -> str:
    """A JSON value as people write it."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _joined(outer: str, inner: str) -> str:
    spoken, around = field_name(inner), field_name(outer)
    is_told = not around or set(around.split()) <= set(spoken.split()) or len(f"{around} {spoken}".split()) > 3
    return spoken if is_told else f"{around} {spoken}"


_ROW = re.compile(r"^[ \t]*\|(.+)\|[ \t]*$", re.MULTILINE)


def _tables(text: str) -> Iterator[_Field]:
    """Rows of a Markdown table under their headers; a table of two columns called field and value names its own."""
    header: list[str] = []
    end = -1
    for row in _ROW.finditer(text):
        cells = [cell.strip() for cell in row[1].split("|")]
        if row.start() > end + 2 or len(cells) != len(header):
            header = cells
        elif not all(set(cell) <= set("-: ") for cell in cells):
            is_paired = len(cells) == 2 and header[1].lower() in ("value", "values", "content")
            pairs = [(cells[0], cells[1])] if is_paired else list(zip(header, cells, strict=True))
            yield from ((name, value, (row.start(), row.end())) for name, value in pairs)
        end = row.end()


_INLINE = re.compile(r"\(([^()\n]{1,1000})\)")
_KEY = r"\*{0,2}([^\W\d][\w/ '-]{0,40}?)\*{0,2}"


def _inline_fields(text: str) -> Iterator[_Field]:
    """`(order id: A-17; city: Berlin)`"""
    for group in _INLINE.finditer(text):
        pairs = [re.fullmatch(rf"\s*{_KEY}\s*(?::\s|=)\s*(\S.*?)\s*", part) for part in group[1].split(";")]
        yield from ((pair[1], pair[2], group.span()) for pair in pairs if pair)


_DOCUMENT = re.compile(r"^[ \t]*(\[[\w.#-]{1,24}\][ \t]+\S.*)$", re.MULTILINE)


def _documents(text: str) -> Iterator[_Field]:
    """`[D2] The map room is closed.`, several of which are the documents."""
    found = list(_DOCUMENT.finditer(text))
    if len(found) > 1:
        yield from (("documents", line[1], line.span()) for line in found)


_LINE = re.compile(rf"^[ \t]*(?:[-*•]\s+|\d+[.)]\s+)?{_KEY}\s*(?::[ \t]+|[ \t]=[ \t])(\S.*)$", re.MULTILINE)
_PROSE = re.compile(r"\b(?:is|are|was|i|you|we|please|this|note)\b", re.IGNORECASE)


def _lines(text: str) -> Iterator[_Field]:
    """`order id: A-17` on a line of its own."""
    for line in _LINE.finditer(text):
        if len(line[1].split()) <= LONGEST_NAME_WORDS and not _PROSE.search(line[1]):
            yield line[1], line[2], (line.start(), line.end())


_PAIR = re.compile(r"(?<![\w.])([A-Za-z_][\w-]{0,40})=(\"[^\"\n]{0,200}\"|'[^'\n]{0,200}'|[^\s;,&)]+)")
_SPOKEN = re.compile(
    r"\b(?:my|the|your|our|his|her|its|their|whose|and|with)\s+((?:[a-z]+\s){0,2}(?:id|number|code|status|name|city|size|"
    r"colou?r|amount|price|total|address|date|plan|country|version|account|quantity|phone|e-?mail))"
    r"\s+(?:is|was|of|are)\s+(#?[\w@€$£.+-]*[\w@])",
    re.IGNORECASE,
)
_CODED = re.compile(r"\b([a-z]{3,20}) (?:(?:id|number|no\.?|code) ?)?(?:is )?[:#]? ?#?([A-Z]{1,5}-?\d[\w-]{0,40})\b")


def _pairs(text: str) -> Iterator[_Field]:
    """`order_id=A-17`"""
    for pair in _PAIR.finditer(text):
        yield pair[1], pair[2], pair.span()


def _said(text: str) -> Iterator[_Field]:
    """`my order id is A-17`, `order A-17`"""
    told = [found.span(2) for found in _SPOKEN.finditer(text)]
    for found in _SPOKEN.finditer(text):
        yield found[1], found[2], None
    for found in _CODED.finditer(text):
        if found.span(2) not in told and found[1] not in _NO_NOUNS:
            yield f"{found[1]} id", found[2], None


_NO_NOUNS = frozenset(
    ("the", "and", "for", "with", "from", "about", "number", "code", "this", "that", "its", "was", "are")
)


def _kinds(text: str) -> Iterator[_Field]:
    """Values that say by themselves what they are."""
    for name, pattern in (
        ("email address", r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.]{0,64}\w"),
        ("URL", r"https?://[^\s<>\"')\]]+"),
        (
            "amount",
            r"[€$£¥]\s?\d[\d,]*(?:\.\d+)?|(?<![\w,.])\d[\d,]*(?:\.\d+)?\s?(?:€|£|(?:EUR|USD|GBP|CHF|JPY|CNY|INR)\b)",
        ),
    ):
        for found in re.finditer(pattern, text):
            yield name, found[0], None
    for day in dates_in(text):
        yield "date", day.text, None
