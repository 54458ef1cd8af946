"""Which spans are steps, and who followed whom: every dialect of span attributes is one Convention.

The first that recognises a span of a trace reads all of that trace. A new one is a module with these two functions and
a line in CONVENTIONS; recovering dependencies that nobody wrote down belongs into such a module too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from traces.errors import UnknownConventionError
from traces.model import ExecutionTrace
from traces.otel import native
from traces.otel.spans import Span


class Convention(Protocol):
    """A dialect. Called by read_otel and the span processor, with all spans of one OTLP trace; must not block.

    The spans are its own: it may take their attributes apart.
    """

    def recognises(self, span: Span) -> bool:
        """Whether this span is written in the dialect."""

    def traces_of(self, spans: Sequence[Span]) -> list[ExecutionTrace]:
        """The traces these spans tell of; raises a TraceError where they are broken."""


CONVENTIONS: tuple[Convention, ...] = (cast("Convention", native),)


def traces_of(spans: Sequence[Span]) -> list[ExecutionTrace]:
    """The traces that spans with one OTLP trace id tell of."""
    for convention in CONVENTIONS:
        if any(convention.recognises(span) for span in spans):
            return convention.traces_of(spans)
    scopes = sorted({span.scope for span in spans} - {""})
    raise UnknownConventionError(
        f"none of the {len(spans)} spans of trace {spans[0].trace_id} (scopes: {', '.join(scopes) or 'unnamed'}) says "
        "which step it is; set the attribute 'promptiter.node.id' on the spans that are steps, or record the run with "
        "traces.record()",
        place=spans[0].place,
    )
