from __future__ import annotations

from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.search.case_records import build_case_records, describe_verdict
from promptiter.stages.reflection import StepRecord
from traces import ExecutionTrace, Failure, Snapshot, Step, ToolCall

TRACES = {
    name: ExecutionTrace(
        id=name,
        steps=(
            Step(
                id="a",
                node_id="plan",
                input=Snapshot(text=f"{name} question"),
                output=Snapshot(text="plan"),
                tool_calls=(ToolCall(name="search", arguments={"q": name}, result="found"),),
            ),
            Step(id="b", node_id="write", predecessors=("a",), input=Snapshot(text="plan"), output=Snapshot(text=name)),
        ),
    )
    for name in ("one", "two")
}


async def read(digest: str) -> ExecutionTrace:
    return TRACES[digest]


def evaluate(*rows: CaseRow) -> Evaluation:
    return Evaluation(eval_set_id="e", profile_digest="p", rows=rows, thresholds={"match": 1.0})


def test_a_verdict_has_score_threshold_reason_and_rubrics() -> None:
    failed = Score(
        metric="style",
        value=0.5,
        threshold=0.75,
        reason="too loud",
        findings=(Finding(kind="violated", predicate="rubric:calm", expected="no shouting", actual="it shouts"),),
    )
    assert describe_verdict(failed) == (
        "[FAIL] style: score=0.5000, threshold=0.7500\nreason: too loud\n· rubric[calm]: FAIL it shouts"
    )
    assert describe_verdict(Score(metric="m", value=None, error="no judge")) == "[UNSCORED] m: no judge"


async def test_a_record_shows_each_turn_with_its_steps_and_tools() -> None:
    turns = (Turn(user="first", expected="one"), Turn(user="second", expected="2"))
    score = Score(metric="match", value=0.5, reason="turn 2 differs", turn_reasons=("", "not equal"))
    row = CaseRow(case_id="c", scores=(score,), output="two", trace_digests=("one", "two"))
    [record] = await build_case_records(
        evaluate(row),
        EvalSet(id="e", cases=(EvalCase(id="c", turns=turns),)),
        read,
        node_id="plan",
        scores={"c": 0.5},
        history={"c": [(0.75, "nearly")]},
    )
    assert (record.case_id, record.score, record.history) == ("c", 0.5, ((0.75, "nearly"),))
    first, second = record.turns
    assert (first.user, first.expected, first.response) == ("first", "one", "one")
    assert first.tools == ('search({"q":"one"}) → found',)
    assert second.steps == (StepRecord(input="two question", output="plan"),)
    assert "reason: not equal" in second.verdict[0]
    assert record.overall[0].startswith("[FAIL] match: score=0.5000")


async def test_an_agent_without_traces_is_shown_by_its_answer_and_error() -> None:
    row = CaseRow(case_id="c", output="", error=Failure("ValueError", "broken"))
    [record] = await build_case_records(
        evaluate(row),
        EvalSet(id="e", cases=(EvalCase(id="c", turns=(Turn(user="hi", expected="x"),)),)),
        read,
        node_id="plan",
        scores={"c": 0.0},
        history={},
    )
    [turn] = record.turns
    assert (turn.user, turn.response, turn.steps) == ("hi", "", ())
    assert turn.verdict == ("ValueError: broken",)


async def test_of_several_repeats_the_worst_is_shown() -> None:
    rows = [
        CaseRow(case_id="c", repeat=number, output=f"answer {number}", scores=(Score(metric="match", value=value),))
        for number, value in enumerate((1.0, 0.0, 0.5))
    ]
    [record] = await build_case_records(
        evaluate(*rows),
        EvalSet(id="e", cases=(EvalCase(id="c", turns=(Turn(user="hi"),)),)),
        read,
        node_id="plan",
        scores={"c": 0.5},
        history={},
    )
    assert record.turns[0].response == "answer 1"
    assert record.overall[-1] == "scores of its 3 repeats: 1.0000, 0.0000, 0.5000"
