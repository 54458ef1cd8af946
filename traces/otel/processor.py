"""Turn the spans of the running process into traces as they end.

provider.add_span_processor(TraceProcessor(on_trace=collected.append))
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.trace import StatusCode

from traces.errors import TraceError, UnknownConventionError
from traces.model import ExecutionTrace, Json
from traces.otel.runs import build_traces
from traces.otel.spans import Event, Link, Span, add_exception_type

logger = logging.getLogger(__name__)


class TraceProcessor(SpanProcessor):
    """Collects ended spans. When the last open span of an OTLP trace ends, `on_trace` gets its traces.

    `on_trace` is called on the thread that ended the span and should be quick. If it raises, the error is logged and
    the application continues. Traces without any step are ignored. Broken ones are passed to `on_error`,
    which logs them by default. A trace with spans that never end is delivered incomplete at `shutdown`.
    """

    def __init__(
        self,
        on_trace: Callable[[ExecutionTrace], None],
        *,
        on_error: Callable[[TraceError], None] | None = None,
    ) -> None:
        self._on_trace = on_trace
        self._on_error = on_error or (lambda error: logger.error("dropped a trace: %s", error))
        self._ended: dict[int, list[ReadableSpan]] = {}
        self._open: dict[int, int] = {}
        self._lock = threading.Lock()

    def on_start(self, span: SdkSpan, parent_context: Any = None) -> None:  # noqa: ARG002
        trace_id = span.context.trace_id
        with self._lock:
            self._open[trace_id] = self._open.get(trace_id, 0) + 1

    def on_end(self, span: ReadableSpan) -> None:
        trace_id = span.context.trace_id
        with self._lock:
            self._ended.setdefault(trace_id, []).append(span)
            still_open = self._open.pop(trace_id, 1) - 1
            if still_open > 0:
                self._open[trace_id] = still_open
                return
            spans = self._ended.pop(trace_id)
        self._deliver(spans)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002
        """Do nothing: only traces with open spans are pending, and delivering half of one would be wrong."""
        return True

    def shutdown(self) -> None:
        with self._lock:
            waiting, self._ended = self._ended, {}
            self._open.clear()
        for spans in waiting.values():
            self._deliver(spans)

    def _deliver(self, spans: list[ReadableSpan]) -> None:
        try:
            found = build_traces([_convert_span(span) for span in spans])
        except UnknownConventionError:
            return
        except TraceError as error:
            self._on_error(error)
            return
        for trace in found:
            try:
                self._on_trace(trace)
            except Exception:
                logger.exception("on_trace failed for trace %r", trace.id)


def _convert_span(span: ReadableSpan) -> Span:
    context = span.context
    is_error = span.status.status_code is StatusCode.ERROR
    attributes = _convert_attributes(span.attributes)
    events = tuple(Event(event.name, _convert_attributes(event.attributes)) for event in span.events)
    if is_error:
        add_exception_type(attributes, events)
    return Span(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        parent_id=f"{span.parent.span_id:016x}" if span.parent else None,
        name=span.name,
        kind=span.kind.value + 1,  # the SDK counts from 0, OTLP from 1
        start_ns=span.start_time,
        end_ns=span.end_time,
        attributes=attributes,
        links=tuple(
            Link(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _convert_attributes(link.attributes))
            for link in span.links
        ),
        is_error=is_error,
        status_message=span.status.description or "",
        scope=span.instrumentation_scope.name if span.instrumentation_scope else "",
        events=events,
        service=str(span.resource.attributes.get("service.name", "")),
    )


def _convert_attributes(attributes: Any) -> dict[str, Json]:
    return {key: _convert_value(value) for key, value in (attributes or {}).items()}


def _convert_value(value: Any) -> Json:
    if isinstance(value, bytes):
        return value.hex()
    return [_convert_value(item) for item in value] if isinstance(value, tuple | list) else value
