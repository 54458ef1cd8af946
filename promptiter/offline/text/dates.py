"""Dates in texts: the day that each means, and the format in which it is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)

DATE_FORMATS: Mapping[str, str] = {
    "YYYY-MM-DD": "{0.year:04}-{0.month:02}-{0.day:02}",
    "YYYY/MM/DD": "{0.year:04}/{0.month:02}/{0.day:02}",
    "DD.MM.YYYY": "{0.day:02}.{0.month:02}.{0.year:04}",
    "DD/MM/YYYY": "{0.day:02}/{0.month:02}/{0.year:04}",
    "MM/DD/YYYY": "{0.month:02}/{0.day:02}/{0.year:04}",
    "Month D, YYYY": "{1} {0.day}, {0.year:04}",
    "D Month YYYY": "{0.day} {1} {0.year:04}",
}
"""The formats by their name in a prompt; slot 0 is the day, slot 1 the month's name."""


@dataclass(frozen=True, slots=True)
class DateInText:
    """A date as a text writes it, and where. With slashes it may have two readings; `days` has both."""

    text: str
    days: frozenset[date]
    start: int = field(default=0, compare=False)

    def is_written_as(self, format_name: str) -> bool:
        return any(write_date(day, format_name) == self.text for day in self.days)


def write_date(day: date, format_name: str) -> str:
    return DATE_FORMATS[format_name].format(day, MONTHS[day.month - 1])


def write_example_date(format_name: str) -> str:
    """A date in that format, with a day above 12, so that it has only one reading."""
    return write_date(date(2024, 1, 31), format_name)


@lru_cache(maxsize=4096)
def find_dates(text: str) -> tuple[DateInText, ...]:
    """The dates of a text, in its order."""
    found = (DateInText(match[0], _read_days(match), match.start()) for match in _DATE.finditer(text))
    return tuple(each for each in found if each.days)


def rewrite_dates(text: str, format_name: str) -> str:
    """The text with all its dates in one format; with slashes, the month is read first."""

    def rewrite(match: re.Match[str]) -> str:
        month_first = match[0].lstrip("0")
        days = sorted(_read_days(match), key=lambda day: month_first.startswith(f"{day.month}/"))
        return write_date(days[-1], format_name) if days else match[0]

    return _DATE.sub(rewrite, text)


_MONTH = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DATE = re.compile(
    r"(?<![\w./-])(?:"
    r"(?P<year>\d{4})[-/](?P<month>\d{1,2})[-/](?P<day>\d{1,2})"
    r"|(?P<first>\d{1,2})[./](?P<second>\d{1,2})[./](?P<last>\d{4})"
    rf"|(?P<name>{_MONTH})\.?\s+(?P<named>\d{{1,2}})(?:st|nd|rd|th)?,?\s+(?P<in_year>\d{{4}})"
    rf"|(?P<on>\d{{1,2}})(?:st|nd|rd|th|\.)?\s+(?P<of>{_MONTH})\.?,?\s+(?P<of_year>\d{{4}})"
    r")(?![\w/-])",
    re.IGNORECASE,
)


def _read_days(match: re.Match[str]) -> frozenset[date]:
    part = match.groupdict()
    if part["year"]:
        return _keep_valid((part["year"], part["month"], part["day"]))
    if part["first"]:
        day_first = (part["last"], part["second"], part["first"])
        month_first = (part["last"], part["first"], part["second"])
        return _keep_valid(day_first) if "." in match[0] else _keep_valid(day_first, month_first)
    if part["name"]:
        return _keep_valid((part["in_year"], _read_month(part["name"]), part["named"]))
    return _keep_valid((part["of_year"], _read_month(part["of"]), part["on"]))


def _keep_valid(*readings: tuple[str | int, str | int, str | int]) -> frozenset[date]:
    days = set()
    for year, month, day in readings:
        try:
            days.add(date(int(year), int(month), int(day)))
        except ValueError:  # not a date, such as a 13th month
            continue
    return frozenset(days)


def _read_month(name: str) -> int:
    return next(number for number, month in enumerate(MONTHS, 1) if month[:3].lower() == name[:3].lower())
