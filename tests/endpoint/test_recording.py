from __future__ import annotations

from promptiter.endpoint.recording import build_traces
from promptiter.endpoint.sessions import EndpointCall
from promptiter.llm import Message, ModelReply, ModelRequest, ToolRequest
from traces import Failure, Usage


def make_call(start: int, end: int, *, node: str = "", conversation: str = "", failed: bool = False) -> EndpointCall:
    request = ModelRequest(model="clerk", messages=(Message("user", f"question {start}"),))
    reply = ModelReply(
        text=f"answer {start}",
        tool_requests=(ToolRequest("c1", "search", {"q": "x"}),),
        usage=Usage(input_tokens=1, output_tokens=2),
    )
    return EndpointCall(
        node=node,
        request=request,
        reply=None if failed else reply,
        error=Failure("BadRequestError", "no") if failed else None,
        start_ns=start,
        end_ns=end,
        conversation=conversation,
    )


def test_a_step_follows_the_last_call_that_had_ended() -> None:
    (trace,) = build_traces([make_call(5, 9), make_call(1, 4), make_call(6, 8, node="planner"), make_call(10, 11)])
    assert {step.id: step.predecessors for step in trace.steps} == {
        "agent": (),
        "agent~2": ("agent",),
        "planner": ("agent",),
        "agent~3": ("agent~2",),
    }
    first = next(step for step in trace.steps if step.id == "agent")
    assert (first.input.text, first.output.text, first.kind) == ("question 1", "answer 1", "llm")
    assert [call.name for call in first.tool_calls] == ["search"]


def test_each_conversation_is_a_trace() -> None:
    traces = build_traces([make_call(1, 2), make_call(3, 4, conversation="a"), make_call(5, 6, failed=True)])
    assert [(trace.id, trace.conversation_id, trace.status) for trace in traces] == [
        ("gateway", None, "failed"),
        ("a", "a", "completed"),
    ]
