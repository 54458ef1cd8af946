"""Messages that a runtime delivers to agents, as AutoGen's does.

They are on the spans of the deliveries. This writes them on the spans of the agents, in the GenAI conventions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from traces.model import Json
from traces.otel.recover.concepts import AGENT_NAME, TOOL_CALL_ID, first, load_json, read_role
from traces.otel.spans import Span


def write_deliveries(spans: Sequence[Span]) -> Sequence[Span]:
    """The spans, with what each agent had been sent since it last ran, what it answered, and what its tools did."""
    deliveries = {
        span.span_id: span
        for span in spans
        if span.attributes.get("messaging.operation") == "process" and "message" in span.attributes
    }
    if not deliveries:
        return spans
    added = _Added(spans)
    for delivery in sorted(deliveries.values(), key=lambda span: (span.start_ns or 0, span.span_id)):
        added.read(delivery)
    return [
        span._replace(attributes={**span.attributes, **found})
        if (found := added.attributes.get(span.span_id))
        else span
        for span in spans
    ]


class _Added:
    """The attributes that deliveries add to the spans of agents and tools, by span id."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.attributes: dict[str, dict[str, Json]] = {}
        self._agents: dict[str | None, Span] = {}  # by the span around them
        self._tools: dict[str, list[Span]] = {}  # by the id of the call
        for span in spans:
            if (role := read_role(span)) == "agent":
                self._agents[span.parent_id] = span
            elif role == "tool" and (call_id := first(span.attributes, TOOL_CALL_ID)) is not None:
                self._tools.setdefault(str(call_id), []).append(span)
        self._waiting: dict[str, list[Json]] = {}  # what an agent was sent and has not yet read
        self._running: dict[str, Span] = {}  # the latest run of each agent
        self._read: set[str] = set()

    def read(self, delivery: Span) -> None:
        """Take over one delivery. Deliveries come in the order of time."""
        body = load_json(delivery.attributes["message"])
        sent = list(_list_messages(body)) if isinstance(body, dict) else []
        sender, recipient = (str(delivery.attributes.get(f"{each}_agent_type")) for each in ("sender", "recipient"))
        if (run := self._running.get(sender)) is not None:
            for message in sent:
                self._add_answer(run, message)
        waiting = self._waiting.setdefault(recipient, [])
        waiting += [_to_genai("user", each) for each in sent if str(each.get("type")) not in _EVENTS]
        if (agent := self._agents.get(delivery.span_id)) is not None:
            inner = self._agents.get(agent.span_id)
            if inner is not None and first(inner.attributes, AGENT_NAME) == first(agent.attributes, AGENT_NAME):
                agent = inner
            self._running[recipient] = agent
            if waiting:
                self.attributes.setdefault(agent.span_id, {})["gen_ai.input.messages"] = self._waiting.pop(recipient)

    def _add_answer(self, run: Span, message: Mapping[str, Json]) -> None:
        message_id = str(message.get("id") or message)
        if message_id in self._read:  # it was sent to others as well
            return
        self._read.add(message_id)
        added = self.attributes.setdefault(run.span_id, {})
        if isinstance(usage := message.get("models_usage"), dict):
            for name, total in _USAGE.items():
                if isinstance(count := usage.get(name), int):
                    added[total] = added.get(total, 0) + count
        key = _EVENTS.get(str(message.get("type")))
        if key is None:
            added["gen_ai.output.messages"] = [_to_genai("assistant", message)]
            return
        content = message.get("content")
        for call in content if isinstance(content, list) else ():
            if isinstance(call, dict):
                for tool in self._tools.get(str(call.get("id", call.get("call_id"))), ()):
                    if (run.start_ns or 0) <= (tool.start_ns or 0) <= (run.end_ns or 0):
                        value = call.get("arguments", call.get("content"))
                        self.attributes.setdefault(tool.span_id, {})[key] = value


_EVENTS = {
    "ToolCallRequestEvent": "gen_ai.tool.call.arguments",
    "ToolCallExecutionEvent": "gen_ai.tool.call.result",
}
_USAGE = {"prompt_tokens": "gen_ai.usage.input_tokens", "completion_tokens": "gen_ai.usage.output_tokens"}


def _list_messages(body: Mapping[str, Json]) -> Iterator[Mapping[str, Json]]:
    """The messages of a delivery: a task may have several, and the response of an agent those that led to it."""
    response = body.get("response")
    fields = response if isinstance(response, dict) else body
    for key in ("messages", "message", "inner_messages", "chat_message"):
        listed = fields.get(key)
        for each in listed if isinstance(listed, list) else [listed]:
            if isinstance(each, dict) and "content" in each:
                yield each


def _to_genai(role: str, message: Mapping[str, Json]) -> Json:
    return {"role": role, "content": message["content"]}
