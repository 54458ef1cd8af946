"""Files of traces, as people have them: our own, and exports of spans of any framework, also mixed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from traces import ExecutionTrace, read, stream_otel
from traces.files import TraceSource, open_source
from traces.otel.read import holds_traces
from traces.otel.recover.coverage import Coverage


def read_trace_files(sources: Iterable[TraceSource], *, coverage: Coverage | None = None) -> Iterator[ExecutionTrace]:
    """Yield the traces of all files. Exports are read together: a run, and its log records, may be spread over them.

    `coverage` counts what was taken over from spans, as in `read_otel`.
    """
    exports: list[TraceSource] = []
    for source in sources:
        with open_source(source) as (_, file):
            is_own = holds_traces(file)
        if is_own:
            yield from read(source)
        else:
            exports.append(source)
    if exports:
        yield from stream_otel(*exports, coverage=coverage)
