"""Converts frozen records to plain JSON data and back, for events and files."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from traces.model import Json


def to_plain(value: Any) -> Json:
    """Return a record as JSON data."""
    shape: Any = type(value)
    return _adapter(shape).dump_python(value, mode="json")


def to_short_plain(record: Any) -> dict[str, Json]:
    """Return a record as JSON data, without the fields that have their default value."""
    shape: Any = type(record)
    data: dict[str, Json] = _adapter(shape).dump_python(record, mode="json", exclude_defaults=True)
    return data


def from_plain(shape: Any, data: Json) -> Any:
    """Return the record of such data."""
    return _adapter(shape).validate_python(data)


@cache
def _adapter(shape: Any) -> TypeAdapter[Any]:
    return TypeAdapter(shape)


def describe_first_problem(error: ValidationError) -> str:
    """Describe the first thing that is wrong with data."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
