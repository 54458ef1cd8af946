"""Runs of many traces, and what was said about them."""

from __future__ import annotations

import pytest

from promptiter.errors import SetupError
from promptiter.tasks.feedback import Feedback, FeedbackFile
from promptiter.tasks.production_runs import read_production
from traces import ExecutionTrace, Failure, Snapshot, Step, digest
from traces.otel.recover.build import TRACE_IDS
from traces.structure import SURFACES

SECOND = 1_000_000_000


def make_trace(number: int, *, error: Failure | None = None, conversation_id: str | None = None) -> ExecutionTrace:
    step = Step(
        id="s",
        node_id="agent",
        kind="llm",
        surface_reads={"agent#instruction": digest("You answer.")},
        input=Snapshot(f"question {number}"),
        output=Snapshot(f"answer {number}"),
        error=error,
        start_ns=SECOND * (number + 1),
    )
    return ExecutionTrace(
        id=f"t{number}",
        steps=(step,),
        conversation_id=conversation_id,
        status="failed" if error else "completed",
        attributes={SURFACES: {"agent#instruction": {"type": "instruction", "value": "You answer."}}},
    )


def make_conversation() -> ExecutionTrace:
    """Three turns that have a trace id each, joined to one trace. Each was shown what was said before."""
    said: list[dict[str, object]] = []
    steps = []
    for number in range(3):
        said = [*said, {"role": "user", "content": f"question {number}"}]
        steps.append(
            Step(
                id=f"s{number}",
                node_id="agent",
                kind="llm",
                predecessors=(f"s{number - 1}",) if number else (),
                input=Snapshot(data=said),
                output=Snapshot(f"answer {number}"),
                start_ns=SECOND * (number + 1),
                end_ns=SECOND * (number + 1) + 1,
            )
        )
        said = [*said, {"role": "assistant", "content": f"answer {number}"}]
    return ExecutionTrace(
        id="t0", steps=tuple(steps), conversation_id="talk", attributes={TRACE_IDS: ["t0", "t1", "t2"]}
    )


def test_runs_that_nobody_judged_are_counted_and_not_kept() -> None:
    wrong = Failure("ValueError", "no JSON")
    traces = [make_trace(number, error=wrong if number == 3 else None) for number in range(10)]
    feedback = FeedbackFile([Feedback(trace_id="t1", is_good=False)])
    found = read_production(traces, feedback, keep_unjudged=False)
    assert [run.id for run in found.runs] == ["t1", "t3"]
    assert found.unjudged == 8
    assert len(read_production(traces, feedback).runs) == 10


def test_feedback_on_one_turn_of_a_conversation_is_about_that_turn() -> None:
    found = read_production([make_conversation()], FeedbackFile([Feedback(trace_id="t1", is_good=False)]))
    before, turn, after = found.runs
    assert (before.feedback, after.feedback) == (None, None)
    assert turn.feedback is not None
    assert (turn.run.question, turn.run.answer) == ("question 1", "answer 1")
    assert [message.content for message in turn.run.earlier] == ["question 0", "answer 0"]
    assert [step.id for step in turn.trace.steps] == ["s1"]


def test_feedback_on_a_conversation_is_about_all_of_it() -> None:
    found = read_production([make_conversation()], FeedbackFile([Feedback(conversation_id="talk", is_good=False)]))
    (run,) = found.runs
    assert len(run.trace.steps) == 3


def test_notes_say_what_is_odd_about_the_feedback() -> None:
    rows = [
        Feedback(trace_id="t0", is_good=True),
        Feedback(trace_id="t0", is_good=False),
        Feedback(trace_id="other", is_good=False),
    ]
    assert read_production([make_trace(0)], FeedbackFile(rows)).notes == (
        "1 of 3 rows of feedback are about other traces",
        "1 run got both good and bad ratings, which counts as bad",
    )


def test_feedback_on_other_traces_is_refused() -> None:
    with pytest.raises(SetupError, match="no row of feedback is about one of the 1 run: it has 'x', the traces 't0'"):
        read_production([make_trace(0)], FeedbackFile([Feedback(trace_id="x", is_good=True)]))
    with pytest.raises(SetupError, match="no traces"):
        read_production([])
