"""The JSON document of a trace: `{"schema_version": 2, "trace_id": …, "steps": […]}`, without most default values.

The `predecessor_step_ids` of a step are those that it followed; what it only read is in its edges of kind data.

A document as this release writes it is read and written with orjson, which is several times faster than pydantic. If
anything about it is unusual, `checked_documents` reads or writes it, or says exactly what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast, get_args

import orjson

from traces.checked_documents import read_any, write_any
from traces.errors import Place, TraceError
from traces.model import (
    EMPTY,
    SCHEMA_VERSION,
    Blob,
    Edge,
    EdgeKind,
    ExecutionTrace,
    Failure,
    Json,
    Snapshot,
    Step,
    ToolCall,
    TraceStatus,
    Usage,
)


def to_json(trace: ExecutionTrace) -> bytes:
    """Serialize a trace as one line of JSON."""
    try:
        raw = orjson.dumps(_list_trace(trace), option=_PLAIN_VALUES)
    except TypeError:  # includes orjson.JSONEncodeError
        return write_any(trace)
    return write_any(trace) if b"null" in raw else raw  # orjson writes NaN and infinity as null, too


def from_json(raw: bytes, *, place: Place | None = None) -> ExecutionTrace:
    """Parse a trace from one JSON document. A TraceError says what is wrong with it, and where."""
    try:
        document = orjson.loads(raw)
        if document.pop("schema_version") is SCHEMA_VERSION:
            return _build_trace(document)
    except (ValueError, TypeError, KeyError, AttributeError, TraceError):
        pass
    return read_any(raw, place=place)


_PLAIN_VALUES = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def _list_trace(trace: ExecutionTrace) -> dict[str, Json]:
    """The fields of a trace that do not have their default value."""
    listed: dict[str, Json] = {
        "schema_version": SCHEMA_VERSION,
        "trace_id": trace.id,
        "steps": [_list_step(step) for step in trace.steps],
    }
    if trace.status != "completed":
        listed["status"] = trace.status
    if trace.conversation_id is not None:
        listed["conversation_id"] = trace.conversation_id
    if trace.attributes:
        listed["attributes"] = trace.attributes
    return listed


def _list_step(step: Step) -> dict[str, Json]:
    listed: dict[str, Json] = {
        "step_id": step.id,
        "node_id": step.node_id,
        "predecessor_step_ids": step.followed if step.edges else step.predecessors,
    }
    if step.kind != "function":
        listed["kind"] = step.kind
    if step.edges:
        listed["edges"] = [_list_fields(edge) for edge in step.edges]
    if step.surface_reads is not None:
        listed["surface_reads"] = step.surface_reads
    if snapshot := _list_snapshot(step.input):
        listed["input"] = snapshot
    if snapshot := _list_snapshot(step.output):
        listed["output"] = snapshot
    if step.tool_calls:
        listed["tool_calls"] = [_list_fields(call) for call in step.tool_calls]
    if step.error is not None:
        listed["error"] = _list_fields(step.error)
    if step.usage is not None:
        listed["usage"] = _list_usage(step.usage)
    if step.start_ns is not None:
        listed["start_ns"] = step.start_ns
    if step.end_ns is not None:
        listed["end_ns"] = step.end_ns
    if step.attributes:
        listed["attributes"] = step.attributes
    return listed


def _list_snapshot(snapshot: Snapshot) -> dict[str, Json]:
    listed: dict[str, Json] = {}
    if snapshot.text is not None:
        listed["text"] = snapshot.text
    if snapshot.data is not None:
        listed["data"] = snapshot.data
    if snapshot.blobs:
        listed["blobs"] = [_list_fields(blob) for blob in snapshot.blobs]
    return listed


def _list_usage(usage: Usage) -> dict[str, Json]:
    listed: dict[str, Json] = {}
    if usage.input_tokens is not None:
        listed["input_tokens"] = usage.input_tokens
    if usage.output_tokens is not None:
        listed["output_tokens"] = usage.output_tokens
    if usage.cached_input_tokens is not None:
        listed["cached_input_tokens"] = usage.cached_input_tokens
    if usage.cost_usd is not None:
        listed["cost_usd"] = usage.cost_usd
    return listed


def _list_fields(record: Edge | ToolCall | Failure | Blob) -> dict[str, Json]:
    listed = {name: value for name, default in _DEFAULTS[type(record)] if (value := getattr(record, name)) != default}
    if isinstance(error := listed.get("error"), Failure):
        listed["error"] = _list_fields(error)
    return listed


_DEFAULTS: Mapping[type, tuple[tuple[str, Json], ...]] = {
    each: tuple((field.name, field.default) for field in fields(each)) for each in (Edge, ToolCall, Failure, Blob)
}
"""The fields of small records with their default values; one without a default is never equal to MISSING."""


class _Draft:
    """A step that is being read: it has the slots of a Step, and becomes one when all are filled.

    The `__init__` of a frozen class takes several times as long, because it may not simply assign its fields.
    """

    __slots__ = tuple(field.name for field in fields(Step))


class _SnapshotDraft:
    """The same for a Snapshot."""

    __slots__ = tuple(field.name for field in fields(Snapshot))


def _build_trace(listed: dict[str, Any]) -> ExecutionTrace:
    """The trace of a document. Raises some error if a value is not of the type that we write."""
    _check_types(listed, _TRACE)
    if listed.get("status", "completed") not in _STATUSES:
        raise ValueError
    steps = [_build_step(step) for step in listed.pop("steps")]
    return ExecutionTrace(id=listed.pop("trace_id"), steps=tuple(steps), **listed)


def _build_step(listed: dict[str, Any]) -> Step:
    take = listed.pop
    step: Any = _Draft()
    step.id, step.node_id = take("step_id"), take("node_id")
    step.kind = take("kind", "function")
    if type(step.id) is not str or type(step.node_id) is not str or type(step.kind) is not str:
        raise TypeError
    step.predecessors = tuple(_check_list(take("predecessor_step_ids"))) if "predecessor_step_ids" in listed else ()
    step.edges = ()
    if "edges" in listed:
        step.edges = tuple(map(_build_edge, _check_list(take("edges"))))
        step.predecessors = (*step.predecessors, *(edge.source for edge in step.edges if edge.kind == "data"))
    step.surface_reads = _check_texts(take("surface_reads")) if "surface_reads" in listed else None
    step.input = _build_snapshot(take("input")) if "input" in listed else EMPTY
    step.output = _build_snapshot(take("output")) if "output" in listed else EMPTY
    step.tool_calls = tuple(map(_build_tool_call, _check_list(take("tool_calls")))) if "tool_calls" in listed else ()
    step.error = Failure(**_check_types(take("error"), _FAILURE)) if "error" in listed else None
    step.usage = Usage(**_check_types(take("usage"), _USAGE)) if "usage" in listed else None
    step.start_ns, step.end_ns = take("start_ns", None), take("end_ns", None)
    step.attributes = take("attributes") if "attributes" in listed else {}
    if listed or not (type(step.start_ns) in _TIME and type(step.end_ns) in _TIME and type(step.attributes) is dict):
        raise TypeError
    step.__class__ = Step
    step.__post_init__()
    return cast("Step", step)


def _build_snapshot(listed: dict[str, Any]) -> Snapshot:
    take = listed.pop
    snapshot: Any = _SnapshotDraft()
    snapshot.text = take("text") if "text" in listed else None
    snapshot.data = take("data", None)
    snapshot.blobs = tuple(map(_build_blob, _check_list(take("blobs")))) if "blobs" in listed else ()
    if listed or type(snapshot.text) not in _TEXT:
        raise TypeError
    snapshot.__class__ = Snapshot
    return cast("Snapshot", snapshot)


def _build_blob(listed: dict[str, Any]) -> Blob:
    return Blob(**_check_types(listed, _BLOB))


def _build_edge(listed: dict[str, Any]) -> Edge:
    if listed.get("kind", "control") not in _EDGE_KINDS:
        raise ValueError
    return Edge(**_check_types(listed, _EDGE))


def _build_tool_call(listed: dict[str, Any]) -> ToolCall:
    _check_types(listed, _TOOL_CALL)
    if "error" in listed:
        listed["error"] = Failure(**_check_types(listed["error"], _FAILURE))
    return ToolCall(**listed)


def _check_list(value: Any) -> list[Any]:
    if type(value) is list:
        return value
    raise TypeError


def _check_texts(texts: dict[str, Any]) -> dict[str, str]:
    """The same texts by name. Raises an error if one is not a text."""
    for text in texts.values():
        if type(text) is not str:
            raise TypeError
    return texts


def _check_types(listed: dict[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    """The same fields. Raises an error if one is unknown or has a value of another type; `object` is any type."""
    for name, value in listed.items():
        if type(value) is not types[name] and types[name] is not object:
            raise TypeError
    return listed


_TEXT, _TIME = frozenset((str, type(None))), frozenset((int, type(None)))
_STATUSES, _EDGE_KINDS = frozenset(get_args(TraceStatus)), frozenset(get_args(EdgeKind))
_TRACE: Mapping[str, type] = {"trace_id": str, "steps": list, "status": str, "conversation_id": str, "attributes": dict}
_BLOB: Mapping[str, type] = {"digest": str, "size": int, "media_type": str}
_EDGE: Mapping[str, type] = {"source": str, "kind": str, "evidence": str, "confidence": float}
_USAGE: Mapping[str, type] = {"input_tokens": int, "output_tokens": int, "cached_input_tokens": int, "cost_usd": float}
_FAILURE: Mapping[str, type] = {"type": str, "message": str, "where": str, "is_outage": bool}
_TOOL_CALL: Mapping[str, type] = {
    "name": str,
    "id": str,
    "arguments": object,
    "result": object,
    "error": dict,
    "start_ns": int,
    "end_ns": int,
}
