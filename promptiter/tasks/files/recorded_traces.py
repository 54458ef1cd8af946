"""The traces that a runner wrote, as OTLP or as promptiter's JSON. What cannot be read is left out: it is an extra."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from traces import ExecutionTrace
from traces.documents import from_json, to_json
from traces.errors import TraceError
from traces.otel.read import read

logger = logging.getLogger(__name__)


def read_recorded(files: Sequence[bytes]) -> tuple[str, ...]:
    """The traces of these files as promptiter's JSON, without clock times: those differ between equal runs."""
    found: list[str] = []
    for raw in files:
        try:
            found += [to_json(_drop_times(trace)).decode() for trace in read(raw)]
        except TraceError as error:
            logger.warning("the traces of the runner cannot be read: %s", error)
    return tuple(found)


def parse_recorded(documents: Sequence[str]) -> tuple[ExecutionTrace, ...]:
    """The traces of stored documents."""
    return tuple(from_json(each.encode()) for each in documents)


def _drop_times(trace: ExecutionTrace) -> ExecutionTrace:
    return replace(trace, steps=tuple(replace(step, start_ns=None, end_ns=None) for step in trace.steps))
