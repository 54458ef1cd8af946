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
from traces.otel.user_edges import EdgeSource, load_edges


class Corrector:
    """Corrects edges: each trace is passed to `add`, and later, when more are known, to `apply`."""

    def __init__(self, edges: EdgeSource | None, coverage: Coverage | None) -> None:
        self._stated = None if edges is None else load_edges(edges)
        self._coverage = coverage
        self._consensus = Consensus()

    def add(self, trace: ExecutionTrace) -> ExecutionTrace:
        """The trace with the edges that users state."""
        if self._stated is not None:
            trace = self._stated.apply(trace)
        self._consensus.add(trace)
        return trace

    def check(self) -> None:
        """Raise an error if users named what no trace has."""
        if self._stated is not None:
            self._stated.check()

    def apply(self, trace: ExecutionTrace) -> ExecutionTrace:
        """The trace with the edges that the runs of its application agree on."""
        corrected = self._consensus.apply(trace)
        if self._coverage is not None:
            self._coverage.add_edges(corrected, is_changed=corrected is not trace)
        return corrected


def correct_edges(
    traces: Iterable[ExecutionTrace], corrector: Corrector, *, limit_bytes: float
) -> Iterator[ExecutionTrace]:
    """Yield the traces with corrected edges. Traces of more than `limit_bytes` in all wait in a temporary file."""
    if isinf(limit_bytes):
        kept = [corrector.add(trace) for trace in traces]
        corrector.check()
        yield from map(corrector.apply, kept)
        return
    with tempfile.SpooledTemporaryFile(max_size=int(limit_bytes)) as file:
        for trace in traces:
            file.write(to_json(corrector.add(trace)) + b"\n")
        corrector.check()
        file.seek(0)
        yield from map(corrector.apply, map(from_json, file))
