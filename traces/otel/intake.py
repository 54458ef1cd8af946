"""What all readers of exports share: limits on what a file may hold, and warnings, which are counted."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from traces.errors import Place, UnreadableTraceError
from traces.model import Json
from traces.otel.recover.coverage import Coverage
from traces.otel.spans import MAX_DEPTH, Log, Span

logger = logging.getLogger(__name__)

MAX_ATTRIBUTE_MB = 32
"""How much text one attribute may hold."""
MAX_ATTRIBUTES = 100_000
"""How many attributes a span may have: a conversation of thousands of messages, each in several attributes."""
MAX_DOCUMENT_MB = 256
"""How large one JSON document or one message of protobuf may be."""


class Intake:
    """One import: the limits it holds to, and the warnings so far, which are logged unless somebody counts them."""

    def __init__(self, coverage: Coverage | None = None, *, max_attribute_mb: int = MAX_ATTRIBUTE_MB) -> None:
        self.max_attribute_mb = max_attribute_mb
        self._coverage = coverage

    def count(self, spans: int) -> None:
        """Count spans and log records that were read, for those who watch."""
        if self._coverage is not None:
            self._coverage.received += spans

    def warn(self, what: str, place: Place) -> None:
        """Count something that was left out."""
        if self._coverage is None:
            logger.warning("%s: %s", place, what)
        else:
            self._coverage.warnings[what] += 1

    def check(self, batch: Iterable[Span | Log], *, size: int) -> None:
        """Refuse attributes that are too large. A batch that was read from few bytes is not looked at."""
        if size <= self.max_attribute_mb << 20:
            return
        for each in batch:
            if isinstance(each, Log):
                self._check_attributes(each.event.attributes, f"the log record of span {each.span_id}", None)
                continue
            name = f"span {each.name!r} ({each.span_id})"
            self._check_attributes(each.attributes, name, each.place)
            for event in each.events:
                self._check_attributes(event.attributes, f"event {event.name!r} of {name}", each.place)

    def _check_attributes(self, attributes: Mapping[str, Json], owner: str, place: Place | None) -> None:
        largest = self.max_attribute_mb << 20
        for key, value in attributes.items():
            size = len(value) if isinstance(value, str) else measure(value) if isinstance(value, list | dict) else 0
            if size > largest:
                raise UnreadableTraceError(
                    f"{owner}: attribute {key!r:.100} has {size / (1 << 20):,.0f} MB, and the limit is "
                    f"{self.max_attribute_mb} MB; raise it (--max-attribute-mb, or `max_attribute_mb` of read_otel), "
                    "or limit the length where spans are recorded (OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT)",
                    place=place,
                )


def check_count(attributes: int) -> None:
    """Refuse a span with too many attributes. Raises ValueError."""
    if attributes > MAX_ATTRIBUTES:
        raise ValueError(f"it has {attributes:,} attributes, and the limit is {MAX_ATTRIBUTES:,}; record fewer")


def measure(value: Json, depth: int = 1) -> int:
    """The characters of all texts in a value. Raises ValueError if it is nested too deeply."""
    if isinstance(value, str):
        return len(value)
    if not isinstance(value, list | dict):
        return 8
    if depth > MAX_DEPTH:
        raise ValueError(f"an attribute is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return sum(len(key) + measure(inner, depth + 1) for key, inner in value.items())
    return sum(measure(inner, depth + 1) for inner in value)
