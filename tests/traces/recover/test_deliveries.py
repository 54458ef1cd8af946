"""Messages that a runtime delivers, as AutoGen writes them."""

from __future__ import annotations

import json

from tests.traces.recover.spans import Tree, build
from traces.model import Json

Message = dict[str, Json]


def message(text: Json, *, message_id: str, kind: str = "TextMessage") -> Message:
    return {"id": message_id, "content": text, "type": kind}


def deliver(start: int, sender: str, recipient: str, body: Json, *below: Tree) -> Tree:
    addresses = {"sender_agent_type": sender, "recipient_agent_type": recipient}
    attributes = {"messaging.operation": "process", "message": json.dumps(body), **addresses}
    return Tree(f"autogen process {recipient}", start, start + 9, *below, attributes=attributes)


def invoke(name: str, start: int, *below: Tree) -> Tree:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": name}
    return Tree(f"invoke_agent {name}", start, start + 5, *below, attributes=attributes)


def test_an_agent_reads_what_was_sent_since_it_last_ran() -> None:
    trace = build(
        Tree(
            "run",
            0,
            99,
            deliver(1, "manager", "clerk", {"messages": [message("hello", message_id="1")]}),
            deliver(11, "manager", "clerk", {}, invoke("clerk", 12)),
            deliver(21, "clerk", "manager", {"response": {"chat_message": message("done", message_id="2")}}),
            deliver(31, "checker", "clerk", {"response": {"chat_message": message("again", message_id="3")}}),
            deliver(41, "manager", "clerk", {}, invoke("clerk", 42)),
            deliver(51, "clerk", "manager", {"response": {"chat_message": message("better", message_id="4")}}),
            deliver(52, "clerk", "checker", {"response": {"chat_message": message("done", message_id="2")}}),
        )
    )
    assert [(step.input.text, step.output.text) for step in trace.steps] == [("hello", "done"), ("again", "better")]


def test_events_tell_what_tools_were_given_and_returned() -> None:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "find", "gen_ai.tool.call.id": "c"}
    request = message([{"id": "c", "arguments": '{"city": "Lisbon"}'}], message_id="1", kind="ToolCallRequestEvent")
    result = message([{"call_id": "c", "content": "warm"}], message_id="2", kind="ToolCallExecutionEvent")
    tool = Tree("execute_tool find", 13, 14, attributes=attributes)
    trace = build(
        Tree(
            "run",
            0,
            99,
            deliver(1, "manager", "clerk", {}, invoke("clerk", 12, tool)),
            *(deliver(start, "clerk", "manager", {"message": each}) for start, each in ((21, request), (22, result))),
        )
    )
    assert [(call.arguments, call.result) for step in trace.steps for call in step.tool_calls] == [
        ({"city": "Lisbon"}, "warm")
    ]


def test_what_is_no_message_is_left_alone() -> None:
    bodies: list[Json] = [None, [], {"message": []}, {"response": {"chat_message": {"id": [], "content": {}}}}]
    odd = [deliver(20 + start, "clerk", "clerk", body) for start, body in enumerate(bodies)]
    trace = build(Tree("run", 0, 99, deliver(1, "manager", "clerk", {}, invoke("clerk", 12)), *odd))
    assert [step.node_id for step in trace.steps] == ["clerk"]
