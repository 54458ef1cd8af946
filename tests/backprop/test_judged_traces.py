from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.backprop.judged_traces import (
    MAX_EXAMPLES,
    MAX_PEERS,
    AgentSurvey,
    JudgedTrace,
    JudgedTraces,
    judge_traces,
)
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.stages.contracts import SurfaceGradient
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.stages.optimizer import NodePlace
from promptiter.structure import Surface
from traces import Edge, ExecutionTrace, Failure, Snapshot, Step, ToolCall

LOSS = Loss(text="wrong")


def trace(name: str, **outputs: str) -> ExecutionTrace:
    """A chain of steps, one for each output."""
    names = list(outputs)
    steps = [
        Step(
            id=each, node_id=each.partition("_")[0], predecessors=tuple(names[:at][-1:]), output=Snapshot(outputs[each])
        )
        for at, each in enumerate(names)
    ]
    return ExecutionTrace(id=name, steps=tuple(steps))


def judged(case_id: str, *losses: Loss, turn: int = 0, passed: bool | None = None, repeat: int = 0) -> JudgedTrace:
    return JudgedTrace(
        case_id=case_id,
        trace=trace(f"{case_id}~{repeat}~{turn}", plan=f"plan of turn {turn}", answer="done"),
        losses=losses,
        turn=turn,
        repeat=repeat,
        passed=passed,
        input=f"question {turn}",
    )


def blame(case_id: str, step_id: str, *findings: Finding, turn: int = 0) -> SurfaceGradient:
    return SurfaceGradient(
        surface_id="s#instruction", case_id=case_id, step_id=step_id, text="", turn=turn, findings=findings
    )


async def test_peers_are_the_last_turns_of_runs_that_passed_and_of_runs_that_did_not() -> None:
    traces = JudgedTraces(
        [
            judged("a", turn=0, passed=False),
            judged("a", LOSS, turn=1, passed=False),
            judged("b", turn=0),
            judged("b", turn=1),
            judged("c", passed=False),  # it could not be scored
        ]
    )
    peers = await traces.select_peers()
    assert [(peer.trace.id, peer.passed) for peer in peers] == [("b~0~1", True), ("a~0~1", False), ("c~0~0", False)]


async def test_of_a_failed_conversation_the_last_turn_with_a_loss_is_an_example() -> None:
    traces = JudgedTraces([judged("a", LOSS, turn=0, passed=False), judged("a", turn=1, passed=False)])
    [example] = await traces.collect_node_failures("answer")
    assert (example.case_input, example.reasons) == ("question 0", ("wrong",))


async def test_peers_and_examples_are_limited() -> None:
    passing = [judged(f"p{number:02}") for number in range(60)]
    traces = JudgedTraces([*passing, *(judged(f"f{number:02}", LOSS) for number in range(60))])
    peers = await traces.select_peers()
    assert [sum(peer.passed is passed for peer in peers) for passed in (True, False)] == [MAX_PEERS, MAX_PEERS]
    gradients = [blame(f"f{number:02}", "plan") for number in range(60)]
    assert len(await traces.collect_failing(gradients)) == MAX_EXAMPLES
    assert len(await traces.collect_passing(gradients)) == MAX_EXAMPLES


async def test_a_failing_example_is_the_blamed_step_of_the_blamed_turn_with_each_finding_once() -> None:
    one, other = Finding(kind="missing", expected=["x"]), Finding(kind="missing", expected="y")
    traces = JudgedTraces([judged("a", turn=0, passed=False), judged("a", LOSS, turn=1, passed=False)])
    gradients = [blame("a", "plan", one, turn=1), blame("a", "plan", one, other, turn=1)]
    [example] = await traces.collect_failing(gradients)
    assert (example.output, example.case_input, example.passed) == ("plan of turn 1", "question 1", False)
    assert example.findings == (one, other)
    assert not example.is_terminal


async def test_a_passing_example_is_the_last_visit_of_the_blamed_node() -> None:
    looping = JudgedTrace(case_id="b", trace=trace("b", plan="first", plan_2="second", answer="second."))
    traces = JudgedTraces([judged("a", LOSS), looping, JudgedTrace(case_id="c", trace=trace("c", other="x"))])
    [example] = await traces.collect_passing([blame("a", "plan")])
    assert (example.case_id, example.output) == ("b", "second")
    assert example.is_terminal, "the terminal step repeats its output"


async def test_losses_are_completed_from_the_trace() -> None:
    one = JudgedTrace(
        case_id="a", trace=trace("a", left="l", right="r"), losses=(LOSS, Loss(text="w", expected="x")), expected="y"
    )
    found = await one.build_case_loss()
    assert [(loss.step_id, loss.expected) for loss in found.losses] == [("right", "y"), ("right", "x")]


def test_what_the_traces_say_about_their_cases_is_put_together() -> None:
    traces = JudgedTraces([judged("a", turn=0), judged("a", turn=1), judged("a", turn=0, repeat=1), judged("b")])
    assert [(case.id, [turn.user for turn in case.turns]) for case in traces.cases] == [
        ("a", ["question 0", "question 1"]),
        ("b", ["question 0"]),
    ]


def test_two_traces_of_one_turn_are_refused() -> None:
    with pytest.raises(SetupError, match="number its repeats, or give each trace a case_id of its own"):
        JudgedTraces([judged("a"), judged("a")])


async def test_an_evaluation_gives_one_judged_trace_for_each_turn() -> None:
    calls = (ExpectedToolCall(name="search"),)
    eval_set = EvalSet(
        id="set",
        cases=(
            EvalCase(id="a", turns=(Turn(user="hello", expected="hi"), Turn(user="bye", expected_tool_calls=calls))),
            EvalCase(id="s", scenario=Scenario(starting_prompt="start", plan="")),
            EvalCase(id="x", turns=(Turn(user="hello"),)),
        ),
    )
    failed, passed = Score(metric="m", value=0.0), Score(metric="m", value=1.0)
    rows = (
        CaseRow(case_id="a", scores=(failed,), trace_digests=("a0", "a1")),
        CaseRow(case_id="s", scores=(passed,), trace_digests=("s0",)),
        CaseRow(case_id="x", error=Failure("OSError", "gone")),
    )
    evaluation = Evaluation(eval_set_id="set", profile_digest="p", rows=rows, thresholds={"m": 1.0})
    loaded: list[str] = []

    async def load(name: str) -> ExecutionTrace:
        loaded.append(name)
        return trace(name, answer="done")

    loss = CaseLoss(case_id="a", turn=1, trace_digest="a1", losses=(LOSS,))
    first, second, scenario = judge_traces(evaluation, eval_set, load, losses=[loss])
    assert [(each.input, each.expected, each.losses) for each in (first, second, scenario)] == [
        ("hello", "hi", ()),
        ("bye", None, (LOSS,)),
        ("", None, ()),
    ]
    assert (second.expected_tool_calls, second.trace_digest) == (calls, "a1")
    assert [each.has_passed for each in (first, second, scenario)] == [False, False, True]
    assert loaded == []
    assert (await second.load()).id == "a1"


async def test_tool_calls_of_a_step_are_part_of_its_example() -> None:
    step = Step(id="answer", node_id="answer", tool_calls=(ToolCall(name="search", arguments={"q": 1}, result=[2]),))
    one = JudgedTrace(
        case_id="a",
        trace=ExecutionTrace(id="a", steps=(step,)),
        losses=(LOSS,),
        expected_tool_calls=(ExpectedToolCall(name="lookup", arguments={"q": 2}),),
    )
    [example] = await JudgedTraces([one]).collect_failing([blame("a", "answer")])
    assert example.tool_calls == ({"name": "search", "arguments": {"q": 1}, "result": [2]},)
    assert example.expected_tool_calls == ({"name": "lookup", "arguments": {"q": 2}},)


def test_a_survey_has_the_place_of_each_node_and_distinct_calls_of_its_tools() -> None:
    call = ToolCall(name="eta", arguments={"order": 1}, result={"days": 2})
    steps = (
        Step(id="plan", node_id="plan"),
        Step(id="search", node_id="search", predecessors=("plan",), tool_calls=(call, call)),
        Step(
            id="write",
            node_id="write",
            predecessors=("plan", "search"),
            edges=(Edge(source="plan", kind="data"), Edge(source="search", kind="control")),
        ),
    )
    survey = AgentSurvey.of([ExecutionTrace(id="t", steps=steps)] * 2)
    assert survey.places == {
        "plan": NodePlace(readers=("search", "write")),
        "search": NodePlace(sources=("plan",)),
        "write": NodePlace(sources=("plan",)),
    }
    tool = Surface(node_id="search", type="tool", part="eta")
    assert survey.find_calls(tool) == ({"name": "eta", "arguments": {"order": 1}, "result": {"days": 2}},)
    assert survey.find_calls(replace(tool, part="other")) == survey.find_calls(replace(tool, type="skill")) == ()


async def test_examples_say_why_the_run_failed_and_what_the_whole_run_answered() -> None:
    steps = (
        Step(id="plan", node_id="plan", output=Snapshot("a plan")),
        Step(id="write", node_id="write", predecessors=("plan",), output=Snapshot("an answer")),
    )
    losses = (Loss(metric="m", text="too short", criterion="the whole text"), Loss(text="too late"))
    traces = JudgedTraces([JudgedTrace(case_id="c", trace=ExecutionTrace(id="t", steps=steps), losses=losses)])
    cited = SurfaceGradient(
        surface_id="plan#instruction", case_id="c", step_id="plan", text="t", reasons=("m: too short",)
    )
    [some] = await traces.collect_failing([cited])
    [every] = await traces.collect_failing([replace(cited, reasons=())])
    [last] = await traces.collect_node_failures("write")
    assert (some.answer, some.reasons) == ("an answer", ("m: too short",))
    assert every.reasons == last.reasons == ("m: too short", "too late")
    assert (last.answer, last.is_terminal) == (None, True)
    assert traces.criteria == {"m": "the whole text"}
