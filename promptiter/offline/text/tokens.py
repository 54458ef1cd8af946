"""The tokens of a text: numbers, ids and words, each as long as it is.

A token is what may not be taken apart: a part of a text is a whole value if neither of its ends is inside a token.

- White space, brackets, quotes and most other marks separate tokens; so do currency signs, `%`, `=` and `#`.
- A number has its sign, thousands separators, decimals and exponent: `-1,234.50`, `1.234,50`, `5,50`, `1e5`.
- A unit is a token of its own: `12kg`, `30-day`, `EUR5`.
- Letters and digits that are joined are an id: `A-17`, `v1.2`, `10.0.0.1`, `2026-03-02`, `10:30`, `report_3.txt`. So
  are digits with leading zeros: `0042`. In `id:42` and `12/unit` the mark separates a word from a number.
- Words without a digit are separated by hyphens and dots; `order_id` is one word. Scripts that write words without
  spaces, such as Chinese, have no tokens that may not be taken apart.
- In a JSON document, each key and value is a text of its own: `[100,200]` has two numbers.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from traces.model import Json

MAX_FAILURES = 20
"""After this many brackets that do not open JSON, the rest of a text is not searched for JSON."""

MAX_EXPONENT = 100

TokenKind: TypeAlias = Literal["date", "number", "id", "word", "script"]
"""A date is that of `2026-03-02T10:30`; any other is an id, or several tokens. A script has no spaces between words."""


class Token(NamedTuple):
    """Where a token is in its text."""

    kind: TokenKind
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class TokenizedText:
    """The kinds of the tokens of a text in order, and where they begin and end, in little memory."""

    kinds: tuple[TokenKind, ...]
    starts: array[int]
    ends: array[int]

    @property
    def tokens(self) -> Iterator[Token]:
        return map(Token, self.kinds, self.starts, self.ends)

    def find_end_inside(self, position: int) -> int | None:
        """The end of the token that has the position inside and may not be taken apart; None if there is none."""
        number = bisect_right(self.starts, position) - 1
        if number < 0 or not self.starts[number] < position < self.ends[number] or self.kinds[number] == "script":
            return None
        return self.ends[number]


@lru_cache(maxsize=1024)
def tokenize(text: str) -> TokenizedText:
    """The tokens of a text, in time in proportion to its length."""
    tokens = [token for start, end in _list_segments(text) for token in _scan(text, start, end)]
    starts, ends = (array("L", places) for places in ([each.start for each in tokens], [each.end for each in tokens]))
    return TokenizedText(tuple(token.kind for token in tokens), starts, ends)


def find_documents(text: str) -> Iterator[tuple[int, int, Json]]:
    """The JSON objects and lists in a text: where each begins and ends, and its value."""
    decoder = json.JSONDecoder()
    position = failures = 0
    for opening in _OPENING.finditer(text):
        if opening.start() < position:
            continue
        try:
            value, position = decoder.raw_decode(text, opening.start())
        except (ValueError, RecursionError):
            failures += 1
            if failures > MAX_FAILURES:
                return
            continue
        yield opening.start(), position, value


def parse_number(text: str) -> Decimal | None:
    """The number that a token is, unless it is too large to compute with; `5,50` and `1.234,5` have a decimal comma."""
    plain = text.replace("−", "-")
    if _DECIMAL_COMMA.search(plain):
        plain = plain.replace(".", "").replace(",", ".")
    try:
        number = Decimal(plain.replace(",", ""))
    except ArithmeticError:  # an exponent beyond what a Decimal can hold
        return None
    return number if abs(number.adjusted()) <= MAX_EXPONENT else None


def is_unit(word: str) -> bool:
    """Whether a word is a unit or the code of a currency: `kg`, `days`, `EUR`."""
    return _UNITS.fullmatch(word) is not None


_SPACELESS = r"\u0e00-\u0eff\u3040-\u9fff\uac00-\ud7af\uf900-\ufaff"
_LETTER = rf"[^\W_{_SPACELESS}]"
_CHARACTER = rf"(?:{_LETTER}|[\u0300-\u036f])"  # an accent may be a character of its own
_RUN = rf"(?:{_LETTER}++|[\u0300-\u036f]++)+"
_UNIT = (
    r"(?:[kmc]?g|[kmc]m|[mc]?l|lbs?|oz|ft|in|inch(?:es)?|m?s|secs?|h|hrs?|mins?|[kmgt]i?b|k?wh?|px|pt|pcs|x|"
    r"eur|usd|gbp|chf|jpy|cny|inr|(?:second|minute|hour|day|week|month|year|star|item|page|piece|percent|person)s?)"
)
_UNITS = re.compile(_UNIT, re.IGNORECASE)
_END = rf"(?:(?=-?{_UNIT}(?!{_CHARACTER}|[-_.]{_CHARACTER}))|(?!{_CHARACTER}|[-_.]{_CHARACTER}|[:/]\d))"
_NUMBER = (
    rf"(?:(?<!{_LETTER})(?<![)\]])[-+−])?(?:"
    r"(?<!\w,)(?:\d{1,3}(?:,\d{2,3})*,\d{3}(?:\.\d++)?|\d{1,3}(?:\.\d{3})+,\d++|\d++,\d{1,2})(?!,?\d)"
    rf"|\d++(?:\.\d++)?(?:e[-+]?\d++)?|(?<![\w.])\.\d++){_END}"
)
_JOINED = rf"{_RUN}(?:(?:[-.]|_++|(?<=\d)[:/](?=\d)){_RUN})*"
_TOKEN = re.compile(
    r"(?P<date>\d{4}-\d{2}-\d{2})(?=t\d{2}:?\d{2})|(?P<time>(?<=\d)t(?=\d{2}:?\d{2}))"
    r"|(?P<currency>eur|usd|gbp|chf|jpy|cny|inr)(?=\d)"
    rf"|(?P<number>{_NUMBER})|(?P<joined>{_JOINED})|(?P<script>[{_SPACELESS}]+)",
    re.IGNORECASE,
)
_WORD = re.compile(rf"{_RUN}(?:_++{_RUN})*")
_DIGIT = re.compile(r"\d")
_LEADING_ZERO = re.compile(r"[-+−]?0\d")
_DECIMAL_COMMA = re.compile(r"^[^,]*,\d{1,2}$|\..*,")
_OPENING = re.compile(r"[{\[](?=\s?[\"{\[\]}\d\n-])")
_LEAF = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*"|[^\s\[\]{},:"]+')
_BETWEEN_ESCAPES = re.compile(r"(?P<text>(?:[^\\]|\\[^nrtbf])+)|\\.")


def _list_segments(text: str) -> Iterator[tuple[int, int]]:
    """The parts of a text that are read on their own: the keys and values of JSON documents, and what is between."""
    position = 0
    for start, end, _ in find_documents(text) if "[" in text or "{" in text else ():
        yield position, start
        for leaf in _LEAF.finditer(text, start, end):
            yield from (part.span() for part in _BETWEEN_ESCAPES.finditer(text, *leaf.span()) if part["text"])
        position = end
    yield position, len(text)


def _scan(text: str, start: int, end: int) -> Iterator[Token]:
    for found in _TOKEN.finditer(text, start, end):
        match found.lastgroup:
            case "number":
                yield Token("id" if _LEADING_ZERO.match(found[0]) and found[0].isdigit() else "number", *found.span())
            case "joined" if _DIGIT.search(found[0]) is None:
                yield from (Token("word", *word.span()) for word in _WORD.finditer(text, *found.span()))
            case "joined":
                yield Token("id", *found.span())
            case "date" | "script" as kind:
                yield Token(kind, *found.span())
            case "currency":
                yield Token("word", *found.span())
