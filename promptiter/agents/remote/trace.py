"""The trace in the answer of a remote agent, as promptiter's own JSON or as OpenTelemetry spans."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, replace

import orjson
from pydantic import ValidationError

from promptiter.agents.remote.messages import RemoteRun, ReportedUsage, TraceDocument, TraceStep
from promptiter.errors import ServiceError, nearest
from promptiter.wording import join_names
from traces import ExecutionTrace, Step, TraceError, digest, read_otel
from traces.model import Json
from traces.otel.names import SURFACE_READS


def read_trace(
    run: RemoteRun, values: Mapping[str, Json], *, nodes: Collection[str], sender: str
) -> ExecutionTrace | None:
    """The trace of a run in which the surfaces had these values; None if the agent sent none.

    ServiceError if it is not a trace, if none of its steps is of a node of the agent, or if a step read a value that
    was not sent.
    """
    if run.trace is not None and run.otlp is not None:
        raise ServiceError(f"{sender} answered with `trace` and with `otlp`; send one of them")
    if run.trace is None and run.otlp is None:
        return None
    try:
        trace = _read_spans(run.otlp) if run.trace is None else _build_trace(run.trace, values)
        _check_nodes(trace, nodes)
    except (TraceError, ServiceError) as error:
        raise ServiceError(f"{sender} answered with a trace that cannot be used: {error}") from error
    return trace


def _check_nodes(trace: ExecutionTrace, nodes: Collection[str]) -> None:
    """Raise ServiceError if no step is of a node of the agent: no surface could then be blamed."""
    found = sorted({step.node_id for step in trace.steps})
    if not set(found) & set(nodes):
        raise ServiceError(f"its steps are of {join_names(found, limit=5)}; the nodes are {join_names(sorted(nodes))}")


def _build_trace(document: TraceDocument, values: Mapping[str, Json]) -> ExecutionTrace:
    steps = tuple(_build_step(each, values) for each in document.steps)
    return ExecutionTrace(
        id=document.trace_id or "run", steps=steps, status=document.status, attributes=document.attributes
    )


def _build_step(step: TraceStep, values: Mapping[str, Json]) -> Step:
    read = (edge.source for edge in step.edges if edge.kind == "data")
    return Step(
        id=step.step_id,
        node_id=step.node_id,
        kind=step.kind,
        predecessors=tuple(dict.fromkeys((*step.predecessor_step_ids, *read))),
        edges=step.edges,
        surface_reads=_find_reads(step, values),
        input=step.input,
        output=step.output,
        tool_calls=step.tool_calls,
        error=None if step.error is None else step.error.build(),
        usage=None if step.usage is None else step.usage.build(),
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        attributes=step.attributes,
    )


def _find_reads(step: TraceStep, values: Mapping[str, Json]) -> dict[str, str] | None:
    """The digests of the values that a step read. An agent that names the surfaces has read what it was sent."""
    if step.surface_reads is None:
        return None
    for name in step.surface_reads:
        if name not in values:
            raise ServiceError(
                f"step {step.step_id!r} read the surface {name!r}, which is unknown{nearest(name, values)}"
            )
    found = {name: digest(values[name]) for name in sorted(step.surface_reads)}
    if isinstance(step.surface_reads, dict):
        for name, stated in step.surface_reads.items():
            if stated != found[name]:
                raise ServiceError(f"step {step.step_id!r} read another value of {name!r} than it was sent")
    return found


def _read_spans(document: Mapping[str, Json] | None) -> ExecutionTrace:
    """The trace of spans. Only promptiter's own say what a step read: reads that were guessed may be incomplete."""
    found = read_otel(orjson.dumps(document))
    if len(found) != 1:
        raise ServiceError(f"`otlp` has {len(found)} traces; send the spans of one run, under one trace id")
    for step in found[0].steps:
        if step.usage is not None:
            try:
                ReportedUsage(**asdict(step.usage))
            except ValidationError as error:
                raise ServiceError(f"the usage of step {step.id!r} is wrong: {step.usage}") from error
    stated = list(_find_stated_reads(document))
    steps = (each if each.surface_reads in stated else replace(each, surface_reads=None) for each in found[0].steps)
    return replace(found[0], steps=tuple(steps))


def _find_stated_reads(document: Json) -> Iterator[dict[str, str]]:
    """What the spans of a document say in the attribute for surface reads."""
    waiting = [document]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting.extend(item)
        elif isinstance(item, dict):
            if item.get("key") == SURFACE_READS:
                yield orjson.loads(item["value"]["stringValue"])  # read_otel has checked it
            waiting.extend(item.values())
