"""Edges are corrected when all traces of an import are known: by those of users, and by other runs of an application.

Traces wait for that in memory, or, if they are read as a stream, in a temporary file once they are large.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from math import isinf

from traces.documents import from_json, to_json
from traces.model import ExecutionTrace
from traces.otel.recover.consensus import Consensus
from traces.otel.recover.coverage import Coverage
from traces.otel.user_edges import UserEdges


def correct_edges(
    traces: Iterable[ExecutionTrace], stated: UserEdges | None, coverage: Coverage | None, *, limit_bytes: float
) -> Iterator[ExecutionTrace]:
    """Yield the traces with the edges that users state, and otherwise those that runs of one application agree on.

    Traces of more than `limit_bytes` in all wait in a temporary file.
    """
    consensus = Consensus()

    def add(trace: ExecutionTrace) -> ExecutionTrace:
        if stated is not None:
            trace = stated.apply(trace)
        consensus.add(trace)
        return trace

    for trace in _keep(map(add, traces), stated, limit_bytes):
        corrected = consensus.apply(trace)
        if coverage is not None:
            coverage.add_edges(corrected, is_changed=corrected is not trace)
        yield corrected


def _keep(traces: Iterable[ExecutionTrace], stated: UserEdges | None, limit_bytes: float) -> Iterator[ExecutionTrace]:
    """Read all traces, check the names of the edges, and yield the traces again."""
    if isinf(limit_bytes):
        kept = list(traces)
        if stated is not None:
            stated.check()
        yield from kept
        return
    with tempfile.SpooledTemporaryFile(max_size=int(limit_bytes)) as file:
        for trace in traces:
            file.write(to_json(trace) + b"\n")
        if stated is not None:
            stated.check()
        file.seek(0)
        yield from map(from_json, file)
