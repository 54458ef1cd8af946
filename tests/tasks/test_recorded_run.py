from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.llm.messages import Message
from promptiter.tasks.recorded_run import read_answer, read_run, read_turns
from traces import ExecutionTrace, Failure, Snapshot, Step, ToolCall, read_otel
from traces.model import Json

EXPORTS = Path(__file__).parent.parent / "traces" / "exports"


def message(role: str, text: str) -> Json:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def test_a_run_of_our_own_asks_with_its_first_step_and_answers_with_its_last() -> None:
    search = ToolCall(name="search", arguments={"query": "returns"}, result="14 days")
    trace = ExecutionTrace(
        id="t",
        conversation_id="c",
        steps=(
            Step(id="plan", node_id="plan", input=Snapshot("How long?"), output=Snapshot("look it up"), start_ns=5),
            Step(
                id="answer",
                node_id="answer",
                predecessors=("plan",),
                input=Snapshot("look it up"),
                output=Snapshot("14 days"),
                tool_calls=(search,),
                start_ns=6,
            ),
        ),
    )
    run = read_run(trace)
    assert (run.trace_id, run.conversation_id, run.started_ns) == ("t", "c", 5)
    assert (run.question, run.earlier, run.answer, run.answered_by) == ("How long?", (), "14 days", ("answer",))
    assert run.tool_calls == (search,)
    assert run.error is None


def test_the_last_message_of_the_user_is_the_question_and_the_ones_before_the_earlier_conversation() -> None:
    said = [
        message("system", "Be kind."),
        message("user", "Hi"),
        message("assistant", "Hello"),
        message("user", "Price?"),
    ]
    run = read_run(ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", input=Snapshot(data=said)),)))
    assert run.question == "Price?"
    assert run.earlier == (Message("user", "Hi"), Message("assistant", "Hello"))


@pytest.mark.parametrize(
    ("data", "question"),
    [
        ({"question": "Why?", "limit": 3}, "Why?"),
        ({"topic": "tides"}, "tides"),
        ({"messages": [{"role": "human", "content": "Why?"}]}, "Why?"),
        ([{"role": "user", "content": [{"type": "text", "text": "Why?"}, {"type": "image"}]}], "Why?"),
        (
            [{"role": "user", "parts": []}, {"role": "tool", "content": "x"}],
            '[{"role":"user","parts":[]},{"role":"tool","content":"x"}]',
        ),
        (None, ""),
    ],
)
def test_questions_in_structured_inputs(data: Json, question: str) -> None:
    assert (
        read_run(ExecutionTrace(id="t", steps=(Step(id="a", node_id="a", input=Snapshot(data=data)),))).question
        == question
    )


def test_answers_in_structured_outputs() -> None:
    assert read_answer(Snapshot(data={"answer": "42", "sources": []})) == "42"
    assert read_answer(Snapshot(data=[message("assistant", "draft"), message("assistant", "42")])) == "42"
    call = {"type": "tool_call", "name": "final_answer", "arguments": {"answer": "42"}}
    assert read_answer(Snapshot(data=[{"role": "assistant", "parts": [call]}])) == "42"
    searching = {"role": "assistant", "parts": [{**call, "name": "search"}]}
    assert read_answer(Snapshot(data=[searching])) == ""


def test_a_run_that_failed_has_the_last_error() -> None:
    steps = (
        Step(id="a", node_id="a", error=Failure("Retry", "first"), start_ns=1, end_ns=2),
        Step(id="b", node_id="b", predecessors=("a",), error=Failure("Timeout", "last"), start_ns=2, end_ns=3),
    )
    assert read_run(ExecutionTrace(id="t", steps=steps, status="failed")).error == Failure("Timeout", "last")
    handled = ExecutionTrace(id="t", steps=(*steps[:1], Step(id="b", node_id="b", predecessors=("a",))))
    assert read_run(handled).error is None
    hidden = ExecutionTrace(id="t", steps=steps)
    assert read_run(hidden).error == Failure("Timeout", "last")


def test_turns_that_an_import_joined_are_the_earlier_conversation_of_the_last_one() -> None:
    [trace] = read_otel(EXPORTS / "langgraph_otelgenai.two_turns.otlp.jsonl")
    run = read_run(trace)
    assert run.question == "What is my name?"
    assert run.earlier == (Message("user", "My name is Ada."), Message("assistant", "Turn 1: noted."))
    assert run.answer == "Turn 2: noted."


def test_feedback_on_a_turn_names_the_trace_of_that_turn() -> None:
    talk = [message("user", "Hi"), message("assistant", "Hello"), message("user", "Price?")]
    steps = (
        Step(id="a", node_id="a", input=Snapshot("Hi"), output=Snapshot("Hello"), start_ns=1),
        Step(id="b", node_id="a", predecessors=("a",), input=Snapshot(data=talk), output=Snapshot("30"), start_ns=2),
    )
    ids = {"promptiter.trace_ids": ["t1", "t2"]}
    assert read_run(ExecutionTrace(id="t1", steps=steps, conversation_id="c", attributes=ids)).trace_ids == ("t2",)
    first, last = read_turns(ExecutionTrace(id="t1", steps=steps, conversation_id="c", attributes=ids))
    assert (first.question, first.earlier, first.answer, first.trace_ids) == ("Hi", (), "Hello", ("t1",))
    assert (last.question, len(last.earlier), last.answer, last.trace_ids) == ("Price?", 2, "30", ("t2",))
    assert (first.trace_id, last.trace_id) == ("t1", "t2")
    linked = ExecutionTrace(id="t1", steps=steps[:1], conversation_id="c", attributes=ids)
    assert read_run(linked).trace_ids == ("t1", "t2")
    assert read_run(ExecutionTrace(id="t1", steps=steps[:1])).trace_ids == ("t1",)


def test_a_message_that_another_step_wrote_is_not_a_later_turn() -> None:
    critique = [message("user", "Write."), message("assistant", "draft"), message("user", "Too short")]
    steps = (
        Step(id="w", node_id="writer", input=Snapshot("Write."), output=Snapshot("draft"), start_ns=1),
        Step(id="c", node_id="critic", predecessors=("w",), output=Snapshot("Too short"), start_ns=2),
        Step(
            id="w2",
            node_id="writer",
            predecessors=("c",),
            input=Snapshot(data=critique),
            output=Snapshot("text"),
            start_ns=3,
        ),
    )
    run = read_run(ExecutionTrace(id="t", steps=steps, conversation_id="c"))
    assert (run.question, run.earlier) == ("Write.", ())


def test_the_tools_of_earlier_turns_are_not_those_of_the_run() -> None:
    talk = [message("user", "Hi"), message("assistant", "Hello"), message("user", "Price?")]
    first, second = ToolCall(name="greet"), ToolCall(name="price", arguments={"item": "lamp"})
    steps = (
        Step(id="a", node_id="a", input=Snapshot("Hi"), output=Snapshot("Hello"), tool_calls=(first,), start_ns=1),
        Step(id="b", node_id="a", predecessors=("a",), input=Snapshot(data=talk), tool_calls=(second,), start_ns=2),
    )
    trace = ExecutionTrace(id="t", steps=steps, conversation_id="c")
    assert read_run(trace).tool_calls == (second,)
    assert [run.tool_calls for run in read_turns(trace)] == [(first,), (second,)]
