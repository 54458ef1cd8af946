"""Spans, independent of the encoding they came in.

They are named tuples, not frozen dataclasses: there are hundreds of thousands of them, they live briefly, and a named
tuple costs a quarter as much.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from traces.errors import Place
from traces.model import Json

MAX_DEPTH = 100
"""How many levels an attribute may be nested: more than any exporter writes, and few enough for any Python's stack."""


class Link(NamedTuple):
    """A reference from one span to another."""

    trace_id: str
    span_id: str
    attributes: dict[str, Json]


class Event(NamedTuple):
    """Something that happened during a span, or a log record that belongs to it."""

    name: str
    attributes: Mapping[str, Json]


class Log(NamedTuple):
    """A log record that belongs to a span."""

    trace_id: str
    span_id: str
    event: Event


class Span(NamedTuple):
    """One OpenTelemetry span. Ids are lower-case hex, times nanoseconds since 1970 or None if unknown."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    kind: int
    start_ns: int | None
    end_ns: int | None
    attributes: dict[str, Json]
    links: tuple[Link, ...]
    is_error: bool
    status_message: str
    scope: str
    events: tuple[Event, ...] = ()
    service: str = ""
    place: Place | None = None


def add_exception_type(attributes: dict[str, Json], events: Iterable[Event]) -> None:
    """Set `error.type` from the exception event, where SDKs put it, unless the span has that attribute."""
    for event in events:
        if event.name == "exception" and "exception.type" in event.attributes:
            attributes.setdefault("error.type", event.attributes["exception.type"])


is_hex = re.compile(r"[0-9a-f]+").fullmatch


def read_id(value: Json, digits: int) -> str:
    """An id as lower-case hex digits: exports also write `0x…`, base64 or an integer. Raises ValueError for another."""
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:x}"
    else:
        text = str(value).lower().removeprefix("0x")
        if len(text) > digits or not is_hex(text):
            try:
                raw = base64.b64decode(str(value), validate=True)
            except (binascii.Error, ValueError):
                raw = b""
            text = raw.hex() if 2 * len(raw) == digits else ""
    if not text or len(text) > digits:
        raise ValueError(f"{value!r:.60} is not an id of {digits} hex digits")
    return text.rjust(digits, "0")
