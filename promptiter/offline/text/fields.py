"""The fields of a step's input: named values, however they are written.

`order id: A-17` on a line or in brackets, JSON keys, documents as `[D2] …`, `my order id is A-17`. A value without a
name whose kind is obvious (an e-mail address, a date, an amount of money) is a field of that kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from promptiter.backprop.step_text import json_leaves, json_text
from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.matching import contains_whole
from promptiter.offline.text.tokens import find_documents

MAX_NAME_WORDS = 4
MAX_VALUES = 20


@lru_cache(maxsize=4096)
def read_fields(text: str) -> Mapping[str, tuple[str, ...]]:
    """The values of each field by its name in lower case: `order_id`, `orderId` and `Order ID` are `order id`."""
    found: dict[str, list[str]] = {}
    rest = _take(found, _read_json(text), text)
    for read in (_read_brackets, _read_documents, _read_lines, _read_prose):
        rest = _take(found, read(rest), rest)
    named = {value for values in found.values() for value in values}
    for name, value, _ in _read_kinds(text):
        if not any(contains_whole(known, value) for known in named):
            found.setdefault(name, []).append(value)
    return MappingProxyType({name: tuple(dict.fromkeys(values))[:MAX_VALUES] for name, values in found.items()})


def spell_field_name(raw: str) -> str:
    """A name as people say it: `order id` for `orderId`."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[_*`\"'.]+", " ", raw)
    return " ".join(spaced.split()).lower()


_Field = tuple[str, str, tuple[int, int] | None]
"""A name, a value, and the part of the text they came from, which later readers do not see."""


def _take(found: dict[str, list[str]], fields: Iterator[_Field], text: str) -> str:
    """Add the fields to those found; return the text without the parts that they came from."""
    spans = []
    for raw, value, span in fields:
        name, value = spell_field_name(raw), " ".join(value.split()).strip(" \"'`*").rstrip(" .;,")
        if name and value and len(name.split()) <= MAX_NAME_WORDS:
            found.setdefault(name, []).append(value)
        if span is not None:
            spans.append(span)
    kept, position = [], 0
    for start, end in sorted(set(spans)):
        kept.append(text[position : max(start, position)])
        position = max(end, position)
    return "".join((*kept, text[position:]))


def _read_json(text: str) -> Iterator[_Field]:
    for start, end, value in find_documents(text):
        if isinstance(value, dict) or any(isinstance(item, dict) for item in value):
            leaves = ((keys, leaf) for keys, leaf in json_leaves(value) if leaf is not None)
            yield from ((_join_keys(keys), json_text(leaf), (start, end)) for keys, leaf in leaves)


def _join_keys(keys: Sequence[str]) -> str:
    """The name of a nested value: an inner name follows the outer one unless it repeats it."""
    name = ""
    for key in map(spell_field_name, keys):
        is_enough = not name or set(name.split()) <= set(key.split()) or len(f"{name} {key}".split()) > 3
        name = key if is_enough else f"{name} {key}"
    return name


_INLINE = re.compile(r"\(([^()\n]{1,1000})\)")
_KEY = r"\*{0,2}([^\W\d][\w/ '-]{0,40}?)\*{0,2}"
_PAIR = re.compile(rf"\s*{_KEY}\s*(?::\s|=)\s*(\S.*?)\s*")


def _read_brackets(text: str) -> Iterator[_Field]:
    """`(order id: A-17; city: Berlin)`"""
    for group in _INLINE.finditer(text):
        yield from ((pair[1], pair[2], group.span()) for pair in map(_PAIR.fullmatch, group[1].split(";")) if pair)


_DOCUMENT = re.compile(r"^[ \t]*(\[[\w.#-]{1,24}\][ \t]+\S.*)$", re.MULTILINE)


def _read_documents(text: str) -> Iterator[_Field]:
    """`[D2] The map room is closed.`: the documents, if there are several."""
    found = list(_DOCUMENT.finditer(text))
    if len(found) > 1:
        yield from (("documents", line[1], line.span()) for line in found)


_LINE = re.compile(rf"^[ \t]*(?:[-*•]\s+|\d+[.)]\s+)?{_KEY}\s*(?::[ \t]+|[ \t]=[ \t])(\S.*)$", re.MULTILINE)
_PROSE = re.compile(r"\b(?:is|are|was|i|you|we|please|this|note)\b", re.IGNORECASE)


def _read_lines(text: str) -> Iterator[_Field]:
    """`order id: A-17` on a line of its own, or several of them: `order id: A-17; city: Berlin`."""
    for line in _LINE.finditer(text):
        if len(line[1].split()) <= MAX_NAME_WORDS and not _PROSE.search(line[1]):
            first, *others = line[2].split(";")
            pairs = [pair for pair in map(_PAIR.fullmatch, others) if pair and not _PROSE.search(pair[1])]
            is_list = len(pairs) == len(others)  # otherwise the semicolon belongs to the value
            yield line[1], first if is_list else line[2], line.span()
            yield from ((pair[1], pair[2], line.span()) for pair in pairs if is_list)


_SPOKEN = re.compile(
    r"\b(?:my|the|your|our|his|her|its|their|whose|and|with)\s+((?:[a-z]+\s){0,2}(?:id|number|code|status|name|city|size|"
    r"colou?r|amount|price|total|address|date|plan|country|version|account|quantity|phone|e-?mail))"
    r"\s+(?:is|was|of|are)\s+(#?[\w@€$£.+-]*[\w@])",
    re.IGNORECASE,
)
_CODED = re.compile(r"\b([a-z]{3,20}) (?:(?:id|number|no\.?|code) ?)?(?:is )?[:#]? ?#?([A-Z]{1,5}-?\d[\w-]{0,40})\b")


def _read_prose(text: str) -> Iterator[_Field]:
    """`my order id is A-17`, `order A-17`"""
    named = [found.span(2) for found in _SPOKEN.finditer(text)]
    for found in _SPOKEN.finditer(text):
        yield found[1], found[2], None
    for found in _CODED.finditer(text):
        if found.span(2) not in named and found[1] not in _NOT_NOUNS:
            yield f"{found[1]} id", found[2], None


_NOT_NOUNS = frozenset(
    ("the", "and", "for", "with", "from", "about", "number", "code", "this", "that", "its", "was", "are")
)


def _read_kinds(text: str) -> Iterator[_Field]:
    """Values whose kind is obvious without a name."""
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
    for day in find_dates(text):
        yield "date", day.text, None
