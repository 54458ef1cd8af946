"""Dates, numbers and amounts: how the simulated model recognises and writes them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from promptiter.offline.model.rule_families import CURRENCIES
from traces.model import Json

_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
DATE = (
    r"\b(?:\d{4}-\d{2}-\d{2}(?!\d)|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}/\d{1,2}/\d{4}"
    rf"|{_MONTH}\s+\d{{1,2}}(?:st|nd|rd|th)?,?\s+\d{{4}}|\d{{1,2}}(?:st|nd|rd|th)?\s+{_MONTH}\s+\d{{4}})\b"
)
"""Matches a date in the usual ways to write one."""

AMOUNT = (
    r"(?:[€$£¥]\s?\d[\d,]*(?:\.\d+)?|\b\d[\d,]*(?:\.\d+)?\s?(?:€|£|(?:EUR|USD|GBP|CNY|JPY|CHF|euros?|dollars?|yuan)\b))"
)
"""Matches a number with a currency."""

_AMOUNT_NAME = re.compile(
    r"amount|total|price|cost|sum|fee|balance|refund|salary|budget|paid|fare|tax|revenue", re.IGNORECASE
)
_ID_NAME = re.compile(
    r"(?:^|_|\b)(?:id|ids|number|no|phone|zip|year|code|postcode|reference|sku|index|version)s?$", re.IGNORECASE
)
_NUMERIC = re.compile(
    r"(?P<sign>-?)(?P<symbol>[€$£¥]?)\s?(?P<digits>\d{1,3}(?:,\d{3})+|\d+)(?P<fraction>\.\d+)?\s?(?P<code>€|£|[A-Z]{3})?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueStyle:
    """How values are written. The defaults are the model's own habits."""

    dates: str = "long"
    decimals: int | None = None
    thousands: bool = False
    currency: str | None = None
    verbatim: bool = False

    def text(self, name: str, value: Json) -> str:
        """A field's value as it is written in prose."""
        text = plain_text(value)
        if self.verbatim:
            return text
        number = None if _ID_NAME.search(name) or isinstance(value, bool) else _NUMERIC.fullmatch(text.strip())
        if number is None:
            return self.rewrite_dates(text)
        is_amount = bool(_AMOUNT_NAME.search(name) or number["symbol"] or number["code"])
        written = self._digits(number, is_amount=is_amount)
        return self._with_currency(written, number) if is_amount else written

    def json(self, name: str, value: Json) -> Json:
        """The same for a JSON document: a number stays one unless its writing matters."""
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            return value
        text = self.text(name, value)
        return value if text == plain_text(value) else text

    def rewrite_dates(self, text: str) -> str:
        """The text with every date written in this style."""
        if self.verbatim:
            return text
        return re.sub(DATE, lambda found: self._date(found[0]), text)

    def _date(self, text: str) -> str:
        read = _read_date(text)
        if read is None:
            return text
        year, month, day = read
        styles = {
            "iso": f"{year:04}-{month:02}-{day:02}",
            "dmy_dots": f"{day:02}.{month:02}.{year:04}",
            "dmy_slashes": f"{day:02}/{month:02}/{year:04}",
            "mdy_slashes": f"{month:02}/{day:02}/{year:04}",
            "long": f"{_MONTHS[month - 1]} {day}, {year}",
            "day_first": f"{day} {_MONTHS[month - 1]} {year}",
        }
        return styles[self.dates]

    def _digits(self, number: re.Match[str], *, is_amount: bool) -> str:
        digits = number["digits"].replace(",", "")
        fraction = number["fraction"] or ""
        if self.decimals is not None and (is_amount or fraction):
            digits, _, decimals = f"{float(digits + fraction):.{self.decimals}f}".partition(".")
            fraction = f".{decimals}" if decimals else ""
        if self.thousands:
            digits = f"{int(digits):,}"
        return f"{number['sign']}{digits}{fraction}"

    def _with_currency(self, written: str, number: re.Match[str]) -> str:
        given = number["symbol"] or number["code"] or ""
        mark = self.currency if self.currency not in (None, "code", "symbol") else given
        if self.currency == "code":
            mark = next((code for code, symbol in CURRENCIES.items() if given in (code, symbol)), given)
        elif self.currency == "symbol":
            mark = CURRENCIES.get(given, given)
        if not mark:
            return written
        return f"{written} {mark}" if mark.isalpha() else f"{mark}{written}"


def plain_text(value: Json) -> str:
    """A JSON value as people write it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return plain_number(value)
    if isinstance(value, list):
        return ", ".join(plain_text(item) if not isinstance(item, list | dict) else json.dumps(item) for item in value)
    return json.dumps(value, ensure_ascii=False)


def plain_number(value: float) -> str:
    """11 rather than 11.0, and no more than six decimals."""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def _read_date(text: str) -> tuple[int, int, int] | None:
    """Year, month and day; a date with slashes has the month first unless that cannot be."""
    month_name = re.search(r"[A-Za-z]{3}", re.sub(r"(?<=\d)(?:st|nd|rd|th)", "", text))
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    if month_name:
        month = next(index for index, name in enumerate(_MONTHS, 1) if name.lower().startswith(month_name[0].lower()))
        day, year = numbers
    elif "-" in text:
        year, month, day = numbers
    elif "." in text:
        day, month, year = numbers
    else:
        month, day, year = numbers
        if month > 12:
            month, day = day, month
    return (year, month, day) if 1 <= month <= 12 and 1 <= day <= 31 else None
