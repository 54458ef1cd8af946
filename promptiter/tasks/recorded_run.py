"""RecordedRun: what a trace says about a run as a whole. What the user asked, and what the agent answered.

Own traces have the question as the input of their first step. Imported ones often have the messages of a model call
there: the last message of the user is then the question, and what was said before it the earlier conversation. If an
import joined several turns of a conversation to one trace, its run is the last turn.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from promptiter.backprop.step_text import json_text, snapshot_text
from promptiter.llm.messages import Message, MessageRole
from traces import ExecutionTrace, Failure, Snapshot, Step, ToolCall
from traces.model import Json
from traces.otel.recover.build import TRACE_IDS

ANSWERING_TOOLS = "final_"
"""How the names of tools start that an agent calls to answer, such as `final_answer` and `final_result`."""
_QUESTION_KEYS = ("input", "question", "query", "prompt", "message", "task", "text", "user_input", "content")
_ANSWER_KEYS = ("answer", "output", "response", "final_answer", "result", "text", "content", "message")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """The question, the answer and the tool calls of a run, and the error that it ended with.

    `answered_by` are the ids of the steps that gave the answer. `started_ns` is None if the trace has no times.
    `trace_ids` are the ids under which people know the run: it may be spread over several traces of OpenTelemetry, and
    a later turn of a conversation has its own.
    """

    trace_id: str
    conversation_id: str | None = None
    question: str = ""
    earlier: tuple[Message, ...] = ()
    answer: str = ""
    answered_by: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    error: Failure | None = None
    started_ns: int | None = None
    trace_ids: tuple[str, ...] = ()


def read_run(trace: ExecutionTrace) -> RecordedRun:
    """Read the run of a trace. A text that the trace does not show is empty."""
    turns = _find_turns(trace)
    answered_by = _find_last_steps(trace)
    trace_ids = _list_trace_ids(trace)
    return RecordedRun(
        trace_id=trace.id,
        conversation_id=trace.conversation_id,
        question=turns[-1].text,
        earlier=turns[-1].earlier,
        answer="\n".join(filter(None, (read_answer(step.output) for step in answered_by))),
        answered_by=tuple(step.id for step in answered_by),
        tool_calls=_list_calls(trace, turns[-1].since_ns),
        error=_find_error(trace),
        started_ns=trace.start_ns,
        trace_ids=trace_ids[-1:] if len(turns) > 1 else trace_ids,
    )


def read_turns(trace: ExecutionTrace) -> list[RecordedRun]:
    """The runs of a trace: one, or several turns of a conversation that an import joined to one trace."""
    turns, trace_ids = _find_turns(trace), _list_trace_ids(trace)
    has_own_ids = len(trace_ids) == len(turns)
    before = [
        RecordedRun(
            trace_id=trace_ids[at] if has_own_ids else trace.id,
            conversation_id=trace.conversation_id,
            question=turn.text,
            earlier=turn.earlier,
            answer=after.earlier[-1].content,
            tool_calls=_list_calls(trace, turn.since_ns, before_ns=after.since_ns),
            started_ns=turn.since_ns or trace.start_ns,
            trace_ids=trace_ids[at : at + 1] if has_own_ids else (),
        )
        for at, (turn, after) in enumerate(pairwise(turns))
    ]
    last = read_run(trace)
    own_id = last.trace_ids[0] if before and has_own_ids else trace.id
    return [*before, replace(last, trace_id=own_id, started_ns=turns[-1].since_ns or trace.start_ns)]


def split_turns(trace: ExecutionTrace) -> list[ExecutionTrace]:
    """A trace per turn, if an import joined turns that have trace ids of their own to one trace; else the trace."""
    turns, trace_ids = _find_turns(trace), _list_trace_ids(trace)
    if len(turns) < 2 or len(trace_ids) != len(turns):
        return [trace]
    attributes = {name: value for name, value in trace.attributes.items() if name != TRACE_IDS}
    found = []
    for trace_id, (first, after) in zip(
        trace_ids, pairwise((0, *(turn.since_ns for turn in turns[1:]), inf)), strict=True
    ):
        steps = [step for step in trace.steps if first <= (step.start_ns or 0) < after]
        kept = {step.id for step in steps}
        if not steps:
            return [trace]
        found.append(
            ExecutionTrace(
                id=trace_id,
                steps=tuple(_keep_sources(step, kept) for step in steps),
                status=trace.status if after == inf else "completed",
                conversation_id=trace.conversation_id,
                attributes=attributes,
            )
        )
    return found


def _keep_sources(step: Step, kept: Container[str]) -> Step:
    return replace(
        step,
        predecessors=tuple(each for each in step.predecessors if each in kept),
        edges=tuple(edge for edge in step.edges if edge.source in kept),
    )


def read_answer(snapshot: Snapshot) -> str:
    """What a step said, without the structure around it: the last message of a model, or the field of an answer."""
    data = snapshot.data
    if snapshot.text is not None or data is None:
        return snapshot.text or ""
    if messages := _read_messages(data):
        said = next((each.content for each in reversed(messages) if each.content), "")
        return said or _find_final_call(data)
    return _find_field(data, _ANSWER_KEYS) or snapshot_text(snapshot)


@dataclass(frozen=True, slots=True)
class _Question:
    """A message of the user, what was said before it, and when the first step that read it started: 0 for any step."""

    text: str = ""
    earlier: tuple[Message, ...] = ()
    since_ns: int = 0


def _list_trace_ids(trace: ExecutionTrace) -> tuple[str, ...]:
    return tuple(trace.attributes.get(TRACE_IDS) or [trace.id])


def _list_calls(trace: ExecutionTrace, since_ns: int, before_ns: float = inf) -> tuple[ToolCall, ...]:
    steps = (step for step in trace.steps if since_ns <= (step.start_ns or 0) < before_ns)
    return tuple(call for step in steps for call in step.tool_calls)


def _find_first_question(trace: ExecutionTrace) -> _Question:
    firsts = [step for step in trace.steps if not step.predecessors]
    for step in sorted(firsts, key=lambda each: each.start_ns or 0):
        if (asked := _split_at_question(_read_messages(step.input.data))) is not None:
            return asked
        found = step.input.text or _find_field(step.input.data, _QUESTION_KEYS) or snapshot_text(step.input)
        if found:
            return _Question(found)
    return _Question()


def _find_turns(trace: ExecutionTrace) -> list[_Question]:
    """The questions of all turns in a trace, at least one.

    A step of a later turn was shown the question before it, the answer that a step gave to it, and a message of the
    user that no step of the trace wrote.
    """
    turns = [_find_first_question(trace)]
    if not turns[0].text or trace.conversation_id is None:
        return turns
    answers = {read_answer(step.output) for step in trace.steps}
    for step in sorted(trace.steps, key=lambda each: each.start_ns or 0):
        asked = _split_at_question(_read_messages(step.input.data))
        known = len(turns[-1].earlier)
        if asked is None or asked.text in answers or len(asked.earlier) < known + 2:
            continue
        before, after = asked.earlier[known], asked.earlier[-1]
        if before.content == turns[-1].text and after.role == "assistant" and after.content in answers:
            turns.append(replace(asked, since_ns=step.start_ns or 0))
    return turns


def _split_at_question(messages: Sequence[Message]) -> _Question | None:
    """The last message of the user, and what the user and the agent said before it."""
    asked = max((at for at, each in enumerate(messages) if each.role == "user" and each.content), default=None)
    if asked is None:
        return None
    before = [each for each in messages[:asked] if each.role in ("user", "assistant") and each.content]
    return _Question(messages[asked].content, tuple(before))


def _find_last_steps(trace: ExecutionTrace) -> list[Step]:
    """The steps that gave the answer: of those that nothing followed and that said something, the last to end."""
    ends = [step for step in trace.terminals if read_answer(step.output)] or list(trace.terminals)
    if any(step.end_ns is None for step in ends):
        return ends
    latest = max(step.end_ns or 0 for step in ends)
    return [step for step in ends if step.end_ns == latest]


def _find_error(trace: ExecutionTrace) -> Failure | None:
    """The error that the run ended with. In a run that completed, one that nothing followed: a framework hid it."""
    failed = [step for step in trace.steps if step.error is not None]
    if trace.status != "failed":
        ends = {step.id for step in trace.terminals}
        failed = [step for step in failed if step.id in ends]
        if len(failed) < len(ends):
            return None
    if failed:
        return failed[-1].error
    return Failure("failed", "the run failed, and no step says why") if trace.status == "failed" else None


def _read_messages(data: Json) -> list[Message]:
    """The messages of a model call, in the form of OpenTelemetry (parts) or in that of OpenAI (content)."""
    if isinstance(data, Mapping) and isinstance(data.get("messages"), list):
        data = data["messages"]
    if not isinstance(data, list) or not data or not all(isinstance(each, Mapping) and "role" in each for each in data):
        return []
    return [
        Message(role, _read_text(each.get("parts", each.get("content"))))
        for each in data
        if (role := _ROLES.get(str(each["role"]).lower())) is not None
    ]


_ROLES: Mapping[str, MessageRole] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "human": "user",
    "ai": "assistant",
    "model": "assistant",
}


def _find_final_call(data: Json) -> str:
    """The answer of an agent that gives it by calling a tool."""
    messages = data["messages"] if isinstance(data, Mapping) else data
    parts = (part for each in reversed(messages) for part in each.get("parts") or () if isinstance(part, Mapping))
    for part in parts:
        if str(part.get("name", "")).startswith(ANSWERING_TOOLS):
            arguments = part.get("arguments")
            return _find_field(arguments, _ANSWER_KEYS) or json_text(arguments)
    return ""


def _read_text(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts: Iterable[Json] = content if isinstance(content, Sequence) else ()
    texts = (part.get("content", part.get("text")) for part in parts if isinstance(part, Mapping))
    return "\n".join(text for text in texts if isinstance(text, str))


def _find_field(data: Json, keys: Sequence[str]) -> str:
    """The text of the first of these fields, or of the only field that there is."""
    if not isinstance(data, Mapping):
        return ""
    if len(data) == 1:
        [value] = data.values()
        return json_text(value)
    return next((value for key in keys if isinstance(value := data.get(key), str) and value), "")
