"""The spans of an export, run by run, as traces: promptiter's own as they were recorded, all others recovered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from traces.errors import UnknownConventionError
from traces.model import ExecutionTrace
from traces.otel import native
from traces.otel.recover.build import build_trace
from traces.otel.recover.concepts import CONVERSATION, first, read_role
from traces.otel.recover.coverage import Coverage
from traces.otel.recover.messages import read_conversation
from traces.otel.spans import Span


def build_traces(spans: Sequence[Span], coverage: Coverage | None = None) -> list[ExecutionTrace]:
    """The traces of spans of one run. Raises a TraceError if our own spans are broken or no span is a step."""
    if any(native.recognises(span) for span in spans):
        return native.build_traces(spans)
    trace = build_trace(spans, coverage if coverage is not None else Coverage())
    if trace is not None:
        return [trace]
    scopes = sorted({span.scope for span in spans} - {""})
    raise UnknownConventionError(
        f"none of the {len(spans)} spans of trace {spans[0].trace_id} (scopes: {', '.join(scopes) or 'unnamed'}) is a "
        "model call, a tool call, an agent or a node in a convention that promptiter knows; set the attribute "
        "'promptiter.node.id' on the spans that are steps, or record the run with traces.record()",
        place=spans[0].place,
    )


def join_runs(by_trace: Mapping[str, Sequence[Span]]) -> list[list[Span]]:
    """The spans of each run, which may be spread over OTLP traces: linked ones, and turns of one conversation.

    A later turn belongs to an earlier one if its model was shown what a model of the earlier one had answered.
    """
    leaders = {trace_id: trace_id for trace_id in by_trace}

    def find(trace_id: str) -> str:
        while leaders[trace_id] != trace_id:
            leaders[trace_id] = leaders[leaders[trace_id]]
            trace_id = leaders[trace_id]
        return trace_id

    conversations: dict[str, list[str]] = {}
    for trace_id, spans in by_trace.items():
        for span in spans:
            for link in span.links:
                if link.trace_id in leaders and link.trace_id != trace_id:
                    leaders[find(trace_id)] = find(link.trace_id)
        if (conversation := _find_conversation(spans)) is not None:
            conversations.setdefault(conversation, []).append(trace_id)
    for trace_ids in conversations.values():
        if len(trace_ids) > 1:
            answers: dict[str, str] = {}
            for trace_id in sorted(trace_ids, key=lambda each: _start(by_trace[each])):
                shown, answered = _list_answers(by_trace[trace_id])
                for text in shown:
                    if text in answers:
                        leaders[find(trace_id)] = find(answers[text])
                answers |= dict.fromkeys(answered, trace_id)
    runs: dict[str, list[Span]] = {}
    for trace_id, spans in by_trace.items():
        runs.setdefault(find(trace_id), []).extend(spans)
    return list(runs.values())


def _find_conversation(spans: Iterable[Span]) -> str | None:
    for span in spans:
        if (value := first(span.attributes, CONVERSATION)) is not None:
            return str(value)
    return None


def _start(spans: Iterable[Span]) -> int:
    return min((span.start_ns or 0 for span in spans), default=0)


def _list_answers(spans: Iterable[Span]) -> tuple[set[str], set[str]]:
    """The answers of models that the model calls of a trace were shown, and those that they gave."""
    shown: set[str] = set()
    given: set[str] = set()
    for span in spans:
        if read_role(span) == "llm":
            conversation = read_conversation(span)
            shown |= {message.text for message in conversation.asked if message.role == "assistant" and message.text}
            given |= {message.text for message in conversation.answered if message.text}
    return shown - given, given
