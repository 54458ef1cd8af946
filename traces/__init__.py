"""Execution traces of agents: a model, a graph, a recorder, files, and OpenTelemetry.

Every name here is loaded when it is first used: importing the package does no work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from traces.lazy import lazy_names

if TYPE_CHECKING:
    from traces.errors import (
        AmbiguousStepError,
        BrokenTraceError,
        CycleError,
        DuplicateStepError,
        EmptyTraceError,
        NoActiveRecordingError,
        Place,
        TraceError,
        UnknownConventionError,
        UnknownPredecessorError,
        UnknownStepError,
        UnreadableTraceError,
        UnwritableTraceError,
    )
    from traces.files import read_traces, write_traces
    from traces.graph import Loop, TraceGraph
    from traces.model import (
        Blob,
        Edge,
        ExecutionTrace,
        Failure,
        Snapshot,
        Step,
        ToolCall,
        Usage,
        digest,
    )
    from traces.otel.processor import TraceProcessor
    from traces.otel.read import read, read_otel
    from traces.otel.write import write_otel
    from traces.recorder import OpenStep, Recording, current_step, read_surface, record, step

__all__ = [
    "AmbiguousStepError",
    "Blob",
    "BrokenTraceError",
    "CycleError",
    "DuplicateStepError",
    "Edge",
    "EmptyTraceError",
    "ExecutionTrace",
    "Failure",
    "Loop",
    "NoActiveRecordingError",
    "OpenStep",
    "Place",
    "Recording",
    "Snapshot",
    "Step",
    "ToolCall",
    "TraceError",
    "TraceGraph",
    "TraceProcessor",
    "UnknownConventionError",
    "UnknownPredecessorError",
    "UnknownStepError",
    "UnreadableTraceError",
    "UnwritableTraceError",
    "Usage",
    "current_step",
    "digest",
    "read",
    "read_otel",
    "read_surface",
    "read_traces",
    "record",
    "step",
    "write_otel",
    "write_traces",
]

_MODULES = {
    "errors": """AmbiguousStepError BrokenTraceError CycleError DuplicateStepError EmptyTraceError Place TraceError
        NoActiveRecordingError UnknownConventionError UnknownPredecessorError UnknownStepError UnreadableTraceError
        UnwritableTraceError""",
    "files": "read_traces write_traces",
    "graph": "Loop TraceGraph",
    "model": "Blob Edge ExecutionTrace Failure Snapshot Step ToolCall Usage digest",
    "otel.processor": "TraceProcessor",
    "otel.read": "read read_otel",
    "otel.write": "write_otel",
    "recorder": "OpenStep Recording current_step read_surface record step",
}


__getattr__ = lazy_names(__name__, _MODULES)


def __dir__() -> list[str]:
    return __all__
