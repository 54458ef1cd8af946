"""Messages in the dialects of frameworks."""

from __future__ import annotations

import json

from tests.traces.recover.spans import Tree, build
from traces.model import Usage


def test_pydantic_ai_before_its_version_2_writes_events_as_an_attribute() -> None:
    events = [
        {"event.name": "gen_ai.system.message", "role": "system", "content": "Be brief."},
        {"event.name": "gen_ai.user.message", "role": "user", "content": "Sign?"},
        {"event.name": "gen_ai.choice", "index": 0, "message": {"role": "assistant", "content": "No."}},
    ]
    tools = {"function_tools": [{"name": "ask", "description": "Ask.", "parameters_json_schema": {"type": "object"}}]}
    chat = Tree(
        "chat gpt",
        1,
        9,
        attributes={
            "gen_ai.operation.name": "chat",
            "gen_ai.usage.input_tokens": 7,
            "events": json.dumps(events),
            "model_request_parameters": json.dumps(tools),
        },
    )
    whole = {"agent_name": "boss", "all_messages_events": "[]", "gen_ai.usage.input_tokens": 7}
    trace = build(Tree("agent run", 0, 10, chat, attributes=whole))
    (step,) = trace.steps
    assert (step.node_id, step.input.text, step.output.text) == ("boss", "Sign?", "No.")
    assert step.usage == Usage(input_tokens=7)
    assert trace.attributes["promptiter.surfaces"] == {
        "boss#instruction": {"type": "instruction", "value": "Be brief."},
        "boss#tool.ask": {"type": "tool", "value": "Ask.", "arguments": {"type": "object"}},
    }


def test_a_role_may_be_written_as_python_shows_an_enumeration() -> None:
    messages = {"llm.input_messages.0.message.role": "ChatRole.SYSTEM", "llm.input_messages.0.message.content": "Plan."}
    trace = build(Tree("generate", 0, 9, attributes={"openinference.span.kind": "LLM", **messages}))
    assert list(trace.steps[0].surface_reads or ()) == [f"{trace.steps[0].node_id}#instruction"]
