"""Numbers in texts as they are written: decimals, separators, currency and unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import lru_cache
from itertools import islice

from promptiter.offline.text.dates import dates_in

MOST_NUMBERS = 60
"""Each number of one text is held against each of another, so no more are read."""

CURRENCIES: Mapping[str, str] = {
    "$": "US dollars",
    "€": "euros",
    "£": "pounds",
    "¥": "yen",
    "₹": "rupees",
    "USD": "US dollars",
    "EUR": "euros",
    "GBP": "pounds",
    "JPY": "yen",
    "INR": "rupees",
    "CHF": "Swiss francs",
    "CNY": "yuan",
}


@dataclass(frozen=True, slots=True)
class WrittenNumber:
    """A number as it stands in a text. `mark` is its currency, `unit` the word right after it."""

    text: str
    value: Decimal
    mark: str = ""
    mark_is_first: bool = False
    unit: str = ""

    @property
    def decimals(self) -> int:
        return len(self.text.partition(".")[2])

    @property
    def is_separated(self) -> bool:
        return "," in self.text

    @property
    def is_year(self) -> bool:
        return not self.is_separated and self.decimals == 0 and 1900 <= self.value <= 2100

    def is_about(self, other: WrittenNumber) -> bool:
        """Whether both are one number, rounded to the fewer decimals."""
        places = Decimal(1).scaleb(-min(self.decimals, other.decimals))
        with localcontext(prec=80):  # as many digits as a text can spell
            mine, theirs = (number.value.quantize(places, rounding=ROUND_HALF_UP) for number in (self, other))
        return mine == theirs


@lru_cache(maxsize=4096)
def numbers_of(text: str) -> tuple[WrittenNumber, ...]:
    """The first numbers of a text, without those that belong to dates and names (`A-17`, `v1.2`)."""
    for day in dates_in(text):
        text = text.replace(day.text, " ")
    return tuple(_number(match) for match in islice(_NUMBER.finditer(text), MOST_NUMBERS))


def same_number(number: WrittenNumber, others: Iterable[WrittenNumber]) -> WrittenNumber | None:
    """The other way in which a number is written, the exact one first."""
    alike = [other for other in others if number.is_about(other)]
    return min(alike, key=lambda other: (other.value != number.value, other.text), default=None)


_MARKS = r"[$€£¥₹]"
_CODES = "USD|EUR|GBP|JPY|INR|CHF|CNY"
_NUMBER = re.compile(
    rf"(?<![\w.,-])(?P<first>{_MARKS}\s?|(?:{_CODES})\s)?(?P<digits>-?(?:\d{{1,3}}(?:,\d{{3}})+|\d{{1,15}})(?:\.\d{{1,9}})?)"
    rf"(?![\w]*\d|[.,]\d|-\w)(?P<last>\s?{_MARKS}|\s(?:{_CODES})\b)?(?:\s?(?P<unit>%|°[CF]|[^\W\d_]+))?"
)


def _number(match: re.Match[str]) -> WrittenNumber:
    mark = (match["first"] or match["last"] or "").strip()
    value = Decimal(match["digits"].replace(",", ""))
    return WrittenNumber(match["digits"], value, mark, bool(match["first"]), match["unit"] or "")
