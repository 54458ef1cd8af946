"""Messages in the dialects of frameworks."""

from __future__ import annotations

import json

import pytest

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


def test_langfuse_writes_messages_usage_and_parameters_in_its_own_attributes() -> None:
    generation = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.input": '[{"role": "system", "content": "Sort."}, {"role": "user", "content": "Late?"}]',
        "langfuse.observation.output": '{"role": "assistant", "content": "Orders."}',
        "langfuse.observation.model.name": "m",
        "langfuse.observation.model.parameters": '{"temperature": 0.2}',
        "langfuse.observation.usage_details": '{"prompt_tokens": 3, "completion_tokens": 1}',
    }
    agent = {"langfuse.observation.type": "agent"}
    (step,) = build(Tree("sorter", 0, 9, Tree("generation", 1, 8, attributes=generation), attributes=agent)).steps
    assert (step.node_id, step.input.text, step.output.text) == ("sorter", "Late?", "Orders.")
    assert step.usage == Usage(input_tokens=3, output_tokens=1)
    assert set(step.surface_reads or ()) == {"sorter#instruction", "sorter#model", "sorter#parameter.temperature"}


def test_the_vercel_sdk_writes_a_loop_of_calls_below_one_operation() -> None:
    def operation(name: str, start: int, end: int, *below: Tree, **attributes: object) -> Tree:
        fields = {"ai.operationId": f"ai.{name}", "ai.telemetry.functionId": "desk"}
        return Tree(f"ai.{name}", start, end, *below, attributes={**fields, **attributes})

    asked = [{"role": "system", "content": "Help."}, {"role": "user", "content": [{"type": "text", "text": "Stock?"}]}]
    wanted = [{"toolCallId": "c1", "toolName": "stock", "args": "{}"}]
    shown = {"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c1", "result": "17"}]}
    ask = {"ai.prompt.messages": json.dumps(asked), "ai.response.toolCalls": json.dumps(wanted)}
    answer = {"ai.prompt.messages": json.dumps([*asked, shown]), "ai.response.text": "17 crates"}
    tool = {"ai.toolCall.name": "stock", "ai.toolCall.id": "c1", "ai.toolCall.args": "{}", "ai.toolCall.result": '"17"'}
    desk = operation(
        "generateText",
        0,
        20,
        operation("generateText.doGenerate", 1, 5, **ask),
        operation("toolCall", 6, 9, **tool),
        operation("generateText.doGenerate", 10, 19, **answer),
    )
    later = operation("generateText", 21, 30, operation("generateText.doGenerate", 22, 29, **answer))
    steps = build(Tree("request", 0, 40, desk, later)).steps
    assert [(step.id, step.node_id) for step in steps] == [("ai.generateText", "desk"), ("ai.generateText-2", "desk")]
    assert (steps[0].output.text, [call.result for call in steps[0].tool_calls]) == ("17 crates", ["17"])


def test_adk_before_its_version_2_writes_the_request_and_the_response_of_gemini() -> None:
    declared = {"name": "stock", "description": "Units.", "parameters": {"type": "OBJECT"}}
    config = {"system_instruction": "Help.", "tools": [{"function_declarations": [declared]}]}
    request = {"config": config, "contents": [{"role": "user", "parts": [{"text": "Copper?"}]}]}
    asked = {
        "content": {"role": "model", "parts": [{"function_call": {"id": "c1", "name": "stock", "args": {"n": 1}}}]}
    }
    calls = {
        "gcp.vertex.agent.llm_request": json.dumps(request),
        "gcp.vertex.agent.llm_response": json.dumps(asked),
    }
    merged = Tree("execute_tool (merged tools)", 8, 9, attributes={"gen_ai.tool.name": "(merged tools)"})
    trace = build(Tree("agent_run [desk]", 0, 9, Tree("call_llm", 1, 8, attributes=calls), merged))
    (step,) = trace.steps
    assert (step.node_id, step.input.text) == ("desk", "Copper?")
    assert [(call.name, call.arguments) for call in step.tool_calls] == [("stock", {"n": 1})]
    assert set(step.surface_reads or ()) == {"desk#instruction", "desk#tool.stock"}


def test_arguments_and_results_of_langchain_tools_are_unwrapped() -> None:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.arguments": json.dumps({"input_str": "{'topic': 'copper'}", "tags": []}),
        "gen_ai.tool.call.result": json.dumps({"output": {"lc": 1, "kwargs": {"content": "It rose."}}}),
    }
    worker = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "worker"}
    (step,) = build(Tree("worker", 0, 9, Tree("look", 1, 8, attributes=attributes), attributes=worker)).steps
    assert [(call.arguments, call.result) for call in step.tool_calls] == [({"topic": "copper"}, "It rose.")]


ANSWERS = ['{"queue": "defect", "days": 45}', '[{"id": 1}, {"id": 2}]', '{"type": "refund", "days": 3}', "[1, 2]", "[]"]


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("key", ["llm.output_messages.0.message.content", "gen_ai.completion.0.content"])
def test_an_answer_in_json_is_a_text(key: str, answer: str) -> None:
    trace = build(Tree("chat", 0, 9, attributes={"openinference.span.kind": "LLM", "input.value": "Go.", key: answer}))
    assert trace.steps[0].output.text == answer


def test_an_answer_in_json_is_a_text_in_an_event_too() -> None:
    events = [{"event.name": "gen_ai.choice", "message": ANSWERS[0]}]
    chat = {"gen_ai.operation.name": "chat", "events": json.dumps(events)}
    assert build(Tree("chat gpt", 0, 9, attributes=chat)).steps[0].output.text == ANSWERS[0]


def test_parts_that_were_written_as_json_are_parts() -> None:
    key = "llm.output_messages.0.message.content"
    trace = build(Tree("chat", 0, 9, attributes={"openinference.span.kind": "LLM", key: '[{"text": "Yes."}]'}))
    assert trace.steps[0].output.text == "Yes."


def test_openinference_shows_the_messages_of_autogen_as_python_does() -> None:
    shown = "id='1' source='user' metadata={} content=\"It's me\" type='TextMessage'"
    value = json.dumps({"messages": [shown], "cancellation_token": "<object>"})
    attributes = {"openinference.span.kind": "AGENT", "graph.node.id": "clerk", "input.value": value}
    (step,) = build(Tree("clerk.on_messages_stream", 1, 9, attributes=attributes)).steps
    assert step.input.text == "It's me"
