"""Build the traces of foreign spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from traces.errors import TraceError
from traces.model import (
    EMPTY,
    Edge,
    ExecutionTrace,
    Failure,
    Json,
    Snapshot,
    Step,
    StepKind,
    ToolCall,
    TraceStatus,
    Usage,
)
from traces.otel.recover import concepts
from traces.otel.recover.concepts import as_data, first, load_json
from traces.otel.recover.consensus import APPLICATION
from traces.otel.recover.coverage import Coverage
from traces.otel.recover.deliveries import write_deliveries
from traces.otel.recover.edges import Texts, find_edges
from traces.otel.recover.forest import SpanNode, build_forest, take_apart
from traces.otel.recover.judgements import JUDGEMENTS, list_judgements
from traces.otel.recover.messages import Conversation, Message
from traces.otel.recover.named import NamedPredecessors
from traces.otel.recover.node_names import name_application, name_node
from traces.otel.recover.order import Draft, arrange
from traces.otel.recover.parts import load_python
from traces.otel.recover.steps import find_steps
from traces.otel.recover.surfaces import find_system, list_surfaces, read_personas
from traces.otel.recover.tool_runs import place_tool_runs
from traces.otel.spans import Span
from traces.structure import SURFACES

TRACE_IDS = "promptiter.trace_ids"
"""Trace attribute: the ids of the OTLP traces that the run is spread over, if there are several."""


def build_trace(spans: Sequence[Span], coverage: Coverage) -> ExecutionTrace | None:
    """The trace of the spans of one run; None if none of them is a step."""
    dropped: Counter[str] = Counter()
    nodes = place_tool_runs(build_forest(write_deliveries(spans), dropped))
    drafts = arrange(find_steps(nodes), NamedPredecessors(nodes))
    coverage.add_spans(len(spans), dropped)
    if not drafts:
        coverage.add_folded(len(nodes), is_trace=False)
        take_apart(nodes)
        return None
    texts = {draft: Texts(draft) for draft in drafts}
    edges = find_edges(drafts, nodes, texts)
    surfaces: dict[str, Json] = {}
    personas = read_personas(nodes)
    steps = [_build_step(draft, edges[draft], texts[draft], surfaces, personas) for draft in drafts]
    trace = ExecutionTrace(
        id=nodes[0].span.trace_id,
        steps=tuple(steps),
        status=_find_status(nodes, drafts),
        conversation_id=_find_conversation(nodes),
        attributes=_list_attributes(nodes, surfaces),
    )
    coverage.add_trace(trace, spans=sum([not node.is_lost for node in nodes]))
    take_apart(nodes)
    return trace


def _list_attributes(nodes: Sequence[SpanNode], surfaces: dict[str, Json]) -> dict[str, Json]:
    """What is known about the run as a whole; what is empty is left out."""
    trace_ids = list(dict.fromkeys(node.span.trace_id for node in nodes if node.parent is None))
    known: dict[str, Json] = {
        APPLICATION: name_application(nodes[0]),
        SURFACES: surfaces,
        JUDGEMENTS: list_judgements(nodes),
        TRACE_IDS: trace_ids if len(trace_ids) > 1 else None,
    }
    return {name: value for name, value in known.items() if value or name == APPLICATION}


def _build_step(
    draft: Draft, edges: Sequence[Edge], texts: Texts, surfaces: dict[str, Json], personas: Mapping[str, str]
) -> Step:
    item = draft.item
    node_id = name_node(draft, texts)
    own = texts.conversations
    around = [node.conversation for node in item.wrappers if node.role in ("agent", "llm")]
    system = find_system(own, around) or personas.get(item.span.name or "", "")
    seen = list_surfaces(node_id, [*draft.calls, *draft.tools], item.wrappers, system)
    for surface in seen:
        if surface.id not in surfaces:
            surfaces[surface.id] = surface.fields
    failed = [node.span for node in (*item.wrappers, *draft.calls) if node.span.is_error]
    model = first((draft.calls[0] if draft.calls else item.span).span.attributes, concepts.MODEL)
    return Step(
        id=draft.id,
        node_id=node_id,
        kind=_choose_kind(draft),
        predecessors=tuple({edge.source for edge in edges}),
        edges=tuple(edges),
        surface_reads={surface.id: surface.digest for surface in seen},
        input=_build_input(draft, own, around),
        output=_build_output(draft, own, around),
        tool_calls=_build_tool_calls(draft, own),
        error=_read_failure(failed[0]) if failed else None,
        usage=_sum_usage(draft.calls or [item.span]),
        start_ns=draft.start or None,
        end_ns=draft.end or None,
        attributes={} if model is None else {"gen_ai.request.model": str(model)},
    )


def _choose_kind(draft: Draft) -> StepKind:
    if draft.item.span.role == "tool":
        return "tool"
    if draft.item.is_agent or len(draft.calls) > 1 or (draft.calls and draft.tools):
        return "agent" if draft.item.is_agent or draft.tools else "llm"
    return "llm" if draft.calls else "function"


def _build_input(draft: Draft, own: Sequence[Conversation], around: Sequence[Conversation]) -> Snapshot:
    asked = next((each.asked for each in (*own, *around) if each.asked), ())
    if asked:
        return _to_snapshot(asked)
    return _read_value(draft, concepts.TOOL_ARGUMENTS if draft.item.span.role == "tool" else concepts.INPUT)


def _build_output(draft: Draft, own: Sequence[Conversation], around: Sequence[Conversation]) -> Snapshot:
    answered = next((each.answered for each in (*reversed(own), *around) if each.answered), ())
    if answered:
        return _to_snapshot(answered)
    return _read_value(draft, concepts.TOOL_RESULT if draft.item.span.role == "tool" else concepts.OUTPUT)


def _to_snapshot(messages: Sequence[Message]) -> Snapshot:
    if len(messages) == 1 and not messages[0].calls and not messages[0].answers:
        return Snapshot(messages[0].text)
    return Snapshot(None, [message.to_json() for message in messages])


def _read_value(draft: Draft, keys: tuple[str, ...]) -> Snapshot:
    for node in draft.item.wrappers:
        value = as_data(load_json(first(node.span.attributes, keys)))
        if value is not None:
            return Snapshot(value) if isinstance(value, str) else Snapshot(None, value)
    return EMPTY


def _build_tool_calls(draft: Draft, own: Sequence[Conversation]) -> tuple[ToolCall, ...]:
    if draft.tools:
        return tuple(map(_read_tool_call, sorted(draft.tools, key=lambda node: (node.start, node.id))))
    answers = {each: message.text for talk in own for message in talk.asked for each in message.answers}
    return tuple(
        ToolCall(name=call.name, id=call.id, arguments=as_data(call.arguments), result=answers.get(call.id or ""))
        for talk in own
        for message in talk.answered
        for call in message.calls
    )


def _read_tool_call(node: SpanNode) -> ToolCall:
    attributes = node.span.attributes
    call_id = first(attributes, concepts.TOOL_CALL_ID)
    return ToolCall(
        name=str(first(attributes, concepts.TOOL_NAME) or node.span.name),
        id=None if call_id is None else str(call_id),
        arguments=as_data(_read_arguments(first(attributes, concepts.TOOL_ARGUMENTS))),
        result=as_data(_read_result(first(attributes, concepts.TOOL_RESULT))),
        error=_read_failure(node.span) if node.span.is_error else None,
        start_ns=node.start or None,
        end_ns=node.end or None,
    )


def _read_arguments(value: Json) -> Json:
    """The arguments of a tool call; LangChain shows them as Python does, and OpenLLMetry wraps them."""
    loaded = load_json(value)
    if isinstance(loaded, dict) and isinstance(inner := loaded.get("input_str"), str):
        loaded = load_json(inner)
    if isinstance(loaded, str) and loaded.startswith("{'"):
        shown = load_python(loaded)
        return loaded if shown is None else shown
    return loaded


def _read_result(value: Json) -> Json:
    """The result of a tool call; of a message of LangChain its content."""
    loaded = load_json(value)
    message = loaded.get("output", loaded) if isinstance(loaded, dict) else None
    if isinstance(message, dict) and (message.get("lc") or message.get("type") == "tool"):
        fields = message.get("kwargs", message.get("data"))
        if isinstance(fields, dict) and "content" in fields:
            return fields["content"]
    return loaded


def _read_failure(span: Span) -> Failure:
    details: Mapping[str, Json] = next((event.attributes for event in span.events if event.name == "exception"), {})
    kind = span.attributes.get("error.type") or details.get("exception.type") or ""
    return Failure(str(kind), str(details.get("exception.message") or _drop_traceback(span.status_message)))


def _drop_traceback(message: str) -> str:
    """A message without its traceback: what is before that, or else the line that ends it."""
    before, found, traceback = message.partition("Traceback (most recent call last):")
    if not found:
        return message
    unindented = [line for line in traceback.splitlines() if line.strip() and not line[0].isspace()]
    return before.strip() or (unindented[-1] if unindented else message)


def _sum_usage(calls: Iterable[SpanNode]) -> Usage | None:
    figures: dict[str, float] = {}
    for node in calls:
        attributes: Mapping[str, Json] = node.span.attributes
        if "langfuse.observation.usage_details" in attributes:
            details = load_json(attributes["langfuse.observation.usage_details"])
            attributes = {**details, **attributes} if isinstance(details, dict) else attributes
        for name, keys in _USAGE:
            value = first(attributes, keys)
            if value is None:
                continue
            if isinstance(value, str) and value.isdecimal() and len(value) < 20:
                value = int(value)
            if type(value) in (int, float) and 0 <= value < 2**63:
                figures[name] = figures.get(name, 0) + value
    if not figures:
        return None
    cost = figures.pop("cost_usd", None)
    return Usage(**{name: int(value) for name, value in figures.items()}, cost_usd=cost)


_USAGE = (
    ("input_tokens", (*concepts.INPUT_TOKENS, "prompt_tokens", "input")),
    ("output_tokens", (*concepts.OUTPUT_TOKENS, "completion_tokens", "output")),
    ("cached_input_tokens", concepts.CACHED_TOKENS),
    ("cost_usd", concepts.COST),
)


def _find_conversation(nodes: Iterable[SpanNode]) -> str | None:
    for node in nodes:
        if (value := first(node.span.attributes, concepts.CONVERSATION)) is not None:
            return str(value)
    return None


def _find_status(nodes: Sequence[SpanNode], drafts: Sequence[Draft]) -> TraceStatus:
    if any(node.span.is_error for node in nodes if node.parent is None and not node.is_lost):
        return "failed"
    if any(node.is_lost for node in nodes) or any(draft.item.span.span.end_ns is None for draft in drafts):
        return "incomplete"
    return "completed"


__all__ = ["TraceError", "build_trace"]
