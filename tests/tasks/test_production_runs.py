"""Runs of many traces, and what was said about them."""

from __future__ import annotations

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.tasks.failed_runs import find_failures, select_runs
from promptiter.tasks.feedback import Feedback, FeedbackFile
from promptiter.tasks.production_runs import read_production
from traces import ExecutionTrace, Failure, Snapshot, Step, digest
from traces.otel.recover.build import TRACE_IDS
from traces.structure import SURFACES

SECOND = 1_000_000_000


def make_trace(
    number: int,
    *,
    error: Failure | None = None,
    conversation_id: str | None = None,
    instruction: str = "You answer.",
) -> ExecutionTrace:
    step = Step(
        id="s",
        node_id="agent",
        kind="llm",
        surface_reads={"agent#instruction": digest(instruction)},
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
        attributes={SURFACES: {"agent#instruction": {"type": "instruction", "value": instruction}}},
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
    found = read_production(traces, feedback, most_unjudged=0)
    assert [run.id for run in found.runs] == ["t1", "t3"]
    assert found.tally.count("unknown") == 8
    assert len(read_production(traces, feedback).runs) == 10


async def test_figures_are_exact_though_only_a_sample_of_the_runs_is_kept() -> None:
    """Every third run fails; the text is changed halfway, and with the new one every second run fails."""
    wrong, lost = Failure("ValueError", "no JSON"), Failure("ConnectionError", "refused", is_outage=True)

    def make(number: int) -> ExecutionTrace:
        if number < 300:
            return make_trace(number, error=wrong if number % 3 == 0 else None)
        error = lost if number % 10 == 1 else wrong if number % 2 == 0 else None
        return make_trace(number, error=error, instruction="You answer in JSON.")

    few = read_production(map(make, range(600)), most=20, most_unjudged=10)
    all_runs = read_production(map(make, range(600)))
    assert (len(few.runs), len(all_runs.runs)) == (50, 600)
    sampled, exact = [
        await find_failures(
            select_runs(each.runs, recorded=each.structure, tally=each.tally), evaluator=Evaluator(), most=10
        )
        for each in (few, all_runs)
    ]
    assert (exact.seen, exact.judged, exact.failed) == (600, 600, 150)
    assert exact.left_out == {"outages and timeouts": 30, "an older version of a text": 100}
    assert [(each.runs, each.failed) for each in exact.versions["agent#instruction"]] == [(300, 100), (300, 150)]
    for name in ("seen", "judged", "failed", "left_out", "versions"):
        assert getattr(sampled, name) == getattr(exact, name)
    assert any("a random sample of" in note for note in sampled.notes)
    assert not exact.notes


def test_the_sample_depends_on_the_seed_alone() -> None:
    def read(seed: int) -> list[str]:
        return [run.id for run in read_production(map(make_trace, range(100)), most=10, seed=seed).runs]

    assert read(0) == read(0) != read(1)
    assert len(read(0)) == 10


def test_a_text_that_is_another_in_every_run_has_no_versions() -> None:
    found = read_production(make_trace(number, instruction=f"{number} {'x' * number}") for number in range(200))
    [[version]] = found.tally.list_versions(found.structure.snapshot, ["unknown"]).values()
    assert (version.runs, version.first_ns, version.last_ns) == (200, SECOND, 200 * SECOND)


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
