"""Numbers in texts, as they are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache
from itertools import islice

from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.tokens import is_unit, parse_number, tokenize

MAX_NUMBERS = 60
"""Maximum number of numbers read from a text: each number of one text is compared with each of another."""

MAX_CHARACTERS = 30
"""Longer numbers are not read."""


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number as a text writes it."""

    text: str
    value: Decimal

    @property
    def decimals(self) -> int:
        exponent = self.value.as_tuple().exponent
        return max(0, -exponent) if isinstance(exponent, int) else 0

    def is_about(self, other: WrittenNumber) -> bool:
        """Whether both are the same number, rounded to the fewer decimals."""
        places = Decimal(1).scaleb(-min(self.decimals, other.decimals))
        with localcontext(prec=80):  # enough for the longest number in a text
            mine, theirs = (number.value.quantize(places, rounding=ROUND_HALF_UP) for number in (self, other))
        return mine == theirs


@lru_cache(maxsize=4096)
def read_numbers(text: str) -> tuple[WrittenNumber, ...]:
    """The first numbers of a text, without those of dates and names (`A-17`, `v1.2`)."""
    for day in find_dates(text):
        text = text.replace(day.text, " ")
    words = (text[token.start : token.end] for token in tokenize(text).tokens if token.kind == "number")
    numbers = ((word, parse_number(word)) for word in words if len(word) <= MAX_CHARACTERS and "e" not in word.lower())
    return tuple(WrittenNumber(word, value) for word, value in islice(numbers, MAX_NUMBERS) if value is not None)


def read_amount(text: str) -> WrittenNumber | None:
    """The number that a text is, with or without a unit or currency: `€5`, `12 kg`, `7%`."""
    words = ((token, text[token.start : token.end]) for token in tokenize(text).tokens)
    numbers = read_numbers(text)
    is_amount = len(numbers) == 1 and all(token.kind == "number" or is_unit(word) for token, word in words)
    return numbers[0] if is_amount else None


def find_same_number(number: WrittenNumber, others: Iterable[WrittenNumber]) -> WrittenNumber | None:
    """The same number among others, however it is rounded; the exact one first."""
    alike = [other for other in others if number.is_about(other)]
    return min(alike, key=lambda other: (other.value != number.value, other.text), default=None)
