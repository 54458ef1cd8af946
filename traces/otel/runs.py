"""The spans of an export, run by run, as traces: promptiter's own as they were recorded, all others recovered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from traces.errors import UnknownConventionError
from traces.model import ExecutionTrace
from traces.otel import native
from traces.otel.recover.build import build_trace
from traces.otel.recover.concepts import read_role
from traces.otel.recover.content import WINDOW
from traces.otel.recover.coverage import Coverage
from traces.otel.recover.graph_place import read_graph_place
from traces.otel.recover.messages import read_conversation
from traces.otel.span_store import SpanStore
from traces.otel.spans import Span


def build_traces(spans: Sequence[Span], coverage: Coverage | None = None) -> list[ExecutionTrace]:
    """The traces of spans of one run. Raises a TraceError if our own spans are broken or no span is a step."""
    if any(native.recognises(span) for span in spans):
        return native.build_traces(spans)
    trace = build_trace(spans, coverage if coverage is not None else Coverage())
    if trace is not None:
        return [trace]
    scopes = sorted({span.scope for span in spans} - {""})
    which, is_no = (f"none of the {len(spans)} spans", "is") if len(spans) > 1 else ("the only span", "is not")
    raise UnknownConventionError(
        f"{which} of trace {spans[0].trace_id} (scopes: {', '.join(scopes) or 'unnamed'}) {is_no} a "
        "model call, a tool call, an agent or a node in a convention that promptiter knows; set the attribute "
        "'promptiter.node.id' on the spans that are steps, or record the run with traces.record()",
        place=spans[0].place,
    )


def join_runs(store: SpanStore) -> list[list[str]]:
    """The OTLP traces of each run, which may be spread over several: linked ones, and turns of one conversation.

    A later turn belongs to an earlier one if its model was shown what a model of the earlier one had answered, or if it
    resumes a task of LangGraph that was interrupted.
    """
    leaders = {trace_id: trace_id for trace_id in store.facts}

    def find(trace_id: str) -> str:
        while leaders[trace_id] != trace_id:
            leaders[trace_id] = leaders[leaders[trace_id]]
            trace_id = leaders[trace_id]
        return trace_id

    conversations: dict[str, list[str]] = {}
    for trace_id, facts in store.facts.items():
        for linked in facts.linked:
            if linked in leaders:
                leaders[find(trace_id)] = find(linked)
        if facts.conversation is not None:
            conversations.setdefault(facts.conversation, []).append(trace_id)
    for trace_ids in conversations.values():
        if len(trace_ids) > 1:
            answers: dict[int, str] = {}
            for trace_id in sorted(trace_ids, key=lambda each: store.facts[each].start_ns or 0):
                shown, given = _hash_answers(store.load(trace_id))
                for text in shown & answers.keys():
                    leaders[find(trace_id)] = find(answers[text])
                answers |= dict.fromkeys(given, trace_id)
    runs: dict[str, list[str]] = {}
    for trace_id in store.facts:
        runs.setdefault(find(trace_id), []).append(trace_id)
    return list(runs.values())


def _hash_answers(spans: Iterable[Span]) -> tuple[set[int], set[int]]:
    """Hashes of what ties a trace to earlier ones, and of what ties later ones to it.

    These are the answers of models that its model calls were shown and gave, and the tasks of LangGraph that it ran. A
    line that a model only repeats, from a template say, is not its answer.
    """
    shown: set[int] = set()
    given: set[int] = set()
    told: set[int] = set()
    tasks: set[int] = set()
    for span in sorted(spans, key=lambda each: each.start_ns or 0):
        if read_role(span) == "llm":
            system, asked, answered = read_conversation(span)
            texts = {hash(message.text) for message in asked if message.role == "assistant" and message.text}
            texts |= {hash(line) for message in asked for line in _list_long_lines(message.text)}
            shown |= texts - given
            told |= texts.union(map(hash, _list_long_lines(system))) - given
            texts = {hash(text) for message in answered for text in (message.text, *_list_long_lines(message.text))}
            given |= texts - told
        if (place := read_graph_place(span)) is not None and _TASK.search(place.namespace):
            tasks.add(hash(place.namespace))
    return shown | tasks, given - {hash("")} | tasks


def _list_long_lines(text: str) -> list[str]:
    """The lines of a text that nobody writes by chance."""
    return [line for line in map(str.strip, text.splitlines()) if line.count(" ") >= WINDOW - 1]


_TASK = re.compile(r":[0-9a-f]{8}-[0-9a-f-]{27}$")
"""How the namespace of a task of LangGraph ends: the task keeps it when it is resumed."""
