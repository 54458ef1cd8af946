"""Parameters of addresses: their types, what is wrong with them, and names that a route does not have."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

from fastapi import Header, Query
from pydantic import AfterValidator, BeforeValidator

from promptiter.errors import nearest
from promptiter.server.bodies import CURSOR, MAX_PROBLEMS
from promptiter.user_files import describe_wanted, list_allowed_words
from promptiter.wording import shorten

MAX_VALUES = 50
"""How often a parameter may be given."""
MAX_UNKNOWN = 5
"""How many unknown parameters an answer names."""
MAX_NUMBER = 10**15
"""More events than any run has."""


_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


def _refuse_numbers(value: str) -> str:
    """pydantic would take a number for seconds since 1970."""
    if not _DATE.match(value):
        raise ValueError("give a time such as 2026-11-18T07:30:00Z")
    return value


def _to_utc(time: datetime) -> datetime:
    try:
        return time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    except OverflowError as error:
        raise ValueError("the time is before the year 1 or after 9999") from error


Time: TypeAlias = Annotated[datetime, BeforeValidator(_refuse_numbers), AfterValidator(_to_utc)]


Cursor: TypeAlias = Annotated[str, Query(max_length=300, pattern=f"^{CURSOR}")]
EventNumber: TypeAlias = Annotated[str, Header(pattern="^[0-9]{0,15}$")]
_PATTERNS = {
    "cursor": "give the next_cursor of a list, unchanged",
    "last-event-id": "give the id of the last event that arrived, a number",
}


def find_unknown(given: Collection[str], known: Sequence[str]) -> list[str]:
    """What is wrong with the names of parameters. Of many, the first few."""
    unknown = [name for name in given if name not in known]
    has = f"; it has {', '.join(known)}" if known else "; it has none"
    return [
        f"the route has no parameter {shorten(name)}{nearest(name, known, cutoff=0.7) or has}"
        for name in unknown[:MAX_UNKNOWN]
    ]


def describe_parameters(errors: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong with parameters, once for each."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for error in errors:
        name = str(error["loc"][1]) if len(error["loc"]) > 1 else str(error["loc"][0])
        found.setdefault((name, repr(error["input"])), []).append(error)
    return [f"{name}: {_describe(name, each)}" for (name, _), each in [*found.items()][:MAX_PROBLEMS]]


def _describe(name: str, errors: Sequence[Mapping[str, Any]]) -> str:
    given = shorten(errors[0]["input"], limit=80)
    words = [word for error in errors for word in list_allowed_words(error)]
    if words:
        return f"{given} is not one of {', '.join(words)}{nearest(str(errors[0]['input']), words)}"
    if errors[0]["type"] == "string_pattern_mismatch":
        return f"{given} is wrong; {_PATTERNS[name]}"
    if errors[0]["type"] == "value_error":
        return f"{given} is wrong; {errors[0]['ctx']['error']}"
    if errors[0]["type"].startswith("datetime"):
        return f"{given} is not a time, such as 2026-11-18T07:30:00Z"
    if errors[0]["type"] == "missing":
        return "is missing"
    return f"must be {describe_wanted(errors[0])}, not {given}"
