"""The dialects of span attributes that can be read, and the choice among them.

The first dialect that recognises a span of an OTLP trace reads all of that trace. To add one, write a module with the
two functions of `Dialect` and add it to DIALECTS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from traces.errors import UnknownConventionError
from traces.model import ExecutionTrace
from traces.otel.dialects import native
from traces.otel.spans import Span


class Dialect(Protocol):
    """Reads the spans of one instrumentation. Called by `read_otel` and by the span processor; must not block."""

    def recognises(self, span: Span) -> bool:
        """Whether this span is written in the dialect."""

    def build_traces(self, spans: Sequence[Span]) -> list[ExecutionTrace]:
        """Build traces from all spans of one OTLP trace. May consume the spans' attributes.

        Raises a TraceError if the spans are broken.
        """


DIALECTS: tuple[Dialect, ...] = (cast("Dialect", native),)


def build_traces(spans: Sequence[Span]) -> list[ExecutionTrace]:
    """Build traces from spans that share one OTLP trace id, with the first dialect that recognises any of them."""
    for dialect in DIALECTS:
        if any(dialect.recognises(span) for span in spans):
            return dialect.build_traces(spans)
    scopes = sorted({span.scope for span in spans} - {""})
    raise UnknownConventionError(
        f"none of the {len(spans)} spans of trace {spans[0].trace_id} (scopes: {', '.join(scopes) or 'unnamed'}) says "
        "which step it is; set the attribute 'promptiter.node.id' on the spans that are steps, or record the run with "
        "traces.record()",
        place=spans[0].place,
    )
