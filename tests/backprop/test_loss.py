from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.agents.edges import Edge
from promptiter.agents.function import agent, chain, node
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode
from promptiter.backprop.loss import (
    MOST_SPLIT,
    category_of,
    extract_losses,
    is_fixable_by_prompt,
    severity_of,
    split_losses,
)
from promptiter.errors import (
    BudgetEndedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    SetupError,
    TransientModelError,
)
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FinalResponseMetric, FunctionMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion, compare_json_text
from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.metrics.text_match import (
    NumericCriterion,
    TextCriterion,
    TextMatch,
    compare_number,
    compare_text,
    find_word_differences,
)
from promptiter.evaluation.metrics.trajectory import ToolCriterion, TrajectoryCriterion, compare_tool_calls
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.llm.messages import Message
from promptiter.stages.losses import (
    CaseLoss,
    Category,
    Loss,
    LossHint,
    LossPlacement,
    Severity,
    check_hints,
    check_placements,
)
from tests.traces.strategies import traces
from traces import ExecutionTrace, Failure, Snapshot, Step, ToolCall
from traces.graph import TraceGraph
from traces.model import TraceStatus

DIAMOND = {"plan": (), "left": ("plan",), "right": ("plan",), "left~2": ("left",)}


def trace(
    steps: Mapping[str, Sequence[str]],
    *,
    failed: Mapping[str, Failure] | None = None,
    status: TraceStatus | None = None,
) -> ExecutionTrace:
    errors = failed or {}
    return ExecutionTrace(
        id="t",
        steps=tuple(
            Step(
                id=step_id,
                node_id=step_id.split("~")[0],
                predecessors=tuple(sources),
                error=errors.get(step_id),
                input=Snapshot(f"into {step_id}"),
            )
            for step_id, sources in steps.items()
        ),
        status=status or ("failed" if errors else "completed"),
    )


class ScriptedTraces:
    """Gives each trace at most once, and fails on any other digest."""

    def __init__(self, **known: ExecutionTrace) -> None:
        self.waiting = known

    async def __call__(self, digest: str) -> ExecutionTrace:
        return self.waiting.pop(digest)


def score(value: float | None = 0.0, metric: str = "exact", **fields: Any) -> Score:
    return Score(metric=metric, value=value, reason=fields.pop("reason", "not equal"), **fields)


def row(*scores: Score, case_id: str = "a", digests: Sequence[str] = ("d",), **fields: Any) -> CaseRow:
    return CaseRow(case_id=case_id, scores=scores, trace_digests=tuple(digests), **fields)


def losses_of(
    *rows: CaseRow,
    of: ScriptedTraces | None = None,
    cases: Sequence[EvalCase] = (EvalCase(id="a", turns=(Turn(user="hello", expected="hi"),)),),
    metrics: Sequence[str] = ("exact", "json"),
    **options: Any,
) -> tuple[CaseLoss, ...]:
    evaluation = Evaluation(eval_set_id="set", profile_digest="p", rows=rows, thresholds=dict.fromkeys(metrics, 1.0))
    read_trace = ScriptedTraces(d=trace(DIAMOND)) if of is None else of
    return asyncio.run(extract_losses(evaluation, EvalSet(id="set", cases=tuple(cases)), read_trace, **options))


def places(case_loss: CaseLoss) -> list[tuple[str, str]]:
    return [(loss.metric, loss.step_id) for loss in case_loss.losses]


def test_a_failed_score_is_a_loss_on_every_terminal_step() -> None:
    (found,) = losses_of(row(score(0.4, findings=(Finding(kind="wrong", expected="hi", actual="ho"),))))
    assert (found.case_id, found.repeat, found.turn, found.input, found.trace_digest) == ("a", 0, 0, "hello", "d")
    assert places(found) == [("exact", "right"), ("exact", "left~2")]
    for loss in found.losses:
        assert (loss.text, loss.expected, loss.score, loss.category) == ("not equal", "hi", 0.4, "response")
        assert loss.severity == "P1"
        assert [finding.actual for finding in loss.findings] == ["ho"]


def test_passed_and_unscored_metrics_give_no_loss_and_ask_for_no_trace() -> None:
    quiet = row(score(1.0), score(None, metric="json", error="the judge failed"))
    assert losses_of(quiet, of=ScriptedTraces()) == ()


def test_losses_come_in_the_order_of_rows_turns_and_scores() -> None:
    cases = [EvalCase(id=name, turns=(Turn(user="one"), Turn(user="two", expected="2"))) for name in "ab"]
    one, two = Finding(kind="wrong", turn=0), Finding(kind="wrong", turn=1)
    rows = [
        row(
            score(findings=(two, one)),
            score(metric="json", findings=(two,)),
            case_id=name,
            repeat=repeat,
            digests=digests,
        )
        for name, repeat, digests in (("b", 0, "wx"), ("a", 1, "yz"), ("a", 0, "uv"))
    ]
    known = ScriptedTraces(**{digest: trace({"s": ()}) for digest in "uvwxyz"})
    found = losses_of(*rows, of=known, cases=cases)
    assert [(loss.case_id, loss.repeat, loss.turn, loss.trace_digest) for loss in found] == [
        ("a", 0, 0, "u"),
        ("a", 0, 1, "v"),
        ("a", 1, 0, "y"),
        ("a", 1, 1, "z"),
        ("b", 0, 0, "w"),
        ("b", 0, 1, "x"),
    ]
    assert [(loss.metric, loss.findings, loss.expected) for loss in found[0].losses] == [("exact", (one,), None)]
    assert [(loss.metric, loss.findings) for loss in found[1].losses] == [("exact", (two,)), ("json", (two,))]
    assert [(each.input, each.losses[0].expected) for each in found[:2]] == [("one", None), ("two", "2")]


def test_a_loss_has_the_reason_of_its_own_turn_and_the_conversation_before_it() -> None:
    context = (Message("assistant", "Welcome."),)
    cases = [EvalCase(id="a", turns=(Turn(user="one"), Turn(user="two"), Turn(user="three")), context=context)]
    wrong = tuple(Finding(kind="wrong", expected=each, actual="?", turn=each) for each in (0, 2))
    judged = score(reason="both", findings=wrong, turn_reasons=("too short", "", "too long"))
    steps = {name: Step(id="s", node_id="s", output=Snapshot(f"answer {name}")) for name in "xyz"}
    known = {name: ExecutionTrace(id=name, steps=(step,)) for name, step in steps.items()}
    found = losses_of(row(judged, digests="xyz"), of=ScriptedTraces(**known), cases=cases)
    assert [(loss.turn, loss.losses[0].text) for loss in found] == [(0, "too short"), (2, "too long")]
    assert found[0].earlier == "assistant: Welcome."
    said = ("assistant: Welcome.", "user: one", "assistant: answer x", "user: two", "assistant: answer y")
    assert found[1].earlier == "\n\n".join(said)
    assert (found[1].input, found[1].trace_digest) == ("three", "z")


def test_a_score_without_findings_goes_to_the_last_turn() -> None:
    cases = [EvalCase(id="a", turns=(Turn(user="one"), Turn(user="two")))]
    known = ScriptedTraces(x=trace({"s": ()}), d=trace({"s": ()}))
    (found,) = losses_of(row(score(), digests=("x", "d")), of=known, cases=cases)
    assert (found.turn, found.input, found.losses[0].category) == (1, "two", "response")


def test_a_turn_without_a_trace_gives_nothing() -> None:
    missing = score(findings=(Finding(kind="missing", predicate="turn", turn=1),))
    assert losses_of(row(missing), of=ScriptedTraces()) == ()
    assert losses_of(row(score(), digests=()), of=ScriptedTraces()) == ()


def test_a_placement_puts_the_loss_on_the_last_visit_of_its_node() -> None:
    placements = [LossPlacement(metric="exact", node_id="left")]
    (found,) = losses_of(row(score(), score(metric="json")), placements=placements)
    assert places(found) == [("exact", "left~2"), ("json", "right"), ("json", "left~2")]


def test_a_placement_on_a_node_that_did_not_run_leaves_the_loss_on_the_terminals() -> None:
    (found,) = losses_of(row(score()), placements=[LossPlacement(metric="exact", node_id="critic")])
    assert places(found) == [("exact", "right"), ("exact", "left~2")]


def test_each_of_several_placements_of_a_metric_gets_the_loss() -> None:
    placements = [LossPlacement(metric="exact", node_id=name) for name in ("right", "critic", "plan", "plan")]
    (found,) = losses_of(row(score()), placements=placements)
    assert places(found) == [("exact", "plan"), ("exact", "right")]


@given(traces(rich=False), st.data())
def test_losses_are_on_the_terminals_of_the_graph(run: ExecutionTrace, data: st.DataObject) -> None:
    graph = TraceGraph(run)
    (free,) = losses_of(row(score()), of=ScriptedTraces(d=run))
    assert [loss.step_id for loss in free.losses] == [step.id for step in graph.terminals]
    node_id = data.draw(st.sampled_from([step.node_id for step in run.steps]))
    (aimed,) = losses_of(
        row(score()), of=ScriptedTraces(d=run), placements=[LossPlacement(metric="exact", node_id=node_id)]
    )
    assert [loss.step_id for loss in aimed.losses] == [graph.visits(node_id)[-1].id]


@pytest.mark.slow
def test_a_chain_of_100_000_steps_has_its_loss_at_the_end() -> None:
    steps = tuple(
        Step(id=f"s{number}", node_id="s", predecessors=(f"s{number - 1}",) if number else ())
        for number in range(100_000)
    )
    run = ExecutionTrace(id="t", steps=steps)
    (found,) = losses_of(row(score()), of=ScriptedTraces(d=run))
    assert places(found) == [("exact", "s99999")]


@pytest.mark.parametrize(
    ("value", "threshold", "severity"),
    [
        (0.0, 1.0, "P0"),
        (-0.5, 1.0, "P0"),
        (0.01, 1.0, "P1"),
        (0.5, 1.0, "P1"),
        (0.51, 1.0, "P2"),
        (0.8, 1.0, "P2"),
        (0.81, 1.0, "P3"),
        (0.35, 0.7, "P1"),
        (0.7 * 0.8, 0.7, "P2"),
        (-0.001, 0.0, "P0"),
        (-3.0, -2.0, "P1"),
    ],
)
def test_the_severity_follows_from_the_share_that_is_missing(
    value: float, threshold: float, severity: Severity
) -> None:
    assert severity_of(score(value, threshold=threshold)) == severity


@given(st.floats(0.01, 10), st.floats(0, 1), st.floats(0, 1))
def test_a_wider_gap_is_never_milder(threshold: float, one: float, other: float) -> None:
    worse, better = sorted((one, other))
    assert severity_of(score(worse * threshold, threshold=threshold)) <= severity_of(
        score(better * threshold, threshold=threshold)
    )


def test_an_unscored_score_has_no_severity() -> None:
    with pytest.raises(ValueError, match="unscored"):
        severity_of(score(None))


def test_a_hint_adds_its_text_and_its_severity_wins() -> None:
    hints = [
        LossHint(case_id="a", metric="exact", text="the date format is wrong", severity="P3"),
        LossHint(case_id="a", metric="json", text="never read: json passes"),
    ]
    (found,) = losses_of(row(score(0.0), score(1.0, metric="json")), hints=hints)
    assert {(loss.text, loss.severity) for loss in found.losses} == {("not equal\nthe date format is wrong", "P3")}


def test_a_hint_without_a_severity_keeps_that_of_the_gap_and_the_worst_of_several_wins() -> None:
    (found,) = losses_of(row(score(0.9)), hints=[LossHint(case_id="a", metric="exact", text="look")])
    assert found.severity == "P3"
    several: tuple[Severity, ...] = ("P2", "P1", "P3")
    hints = [LossHint(case_id="a", metric="exact", severity=each) for each in several]
    (found,) = losses_of(row(score(0.9)), hints=hints)
    assert (found.severity, found.losses[0].text) == ("P1", "not equal")


def test_a_loss_of_a_score_without_a_reason_states_its_value() -> None:
    (found,) = losses_of(row(score(0.25, reason="")))
    assert found.losses[0].text == "exact is 0.25, its threshold is 1.0"


def test_unknown_names_are_refused_with_the_nearest_before_anything_is_read() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"hints": [LossHint(case_id="aa", metric="exact")]}, r"case 'aa', .*did you mean 'a'"),
        ({"hints": [LossHint(case_id="a", metric="exakt")]}, r"metric 'exakt', .*did you mean 'exact'"),
        ({"placements": [LossPlacement(metric="jsn", node_id="plan")]}, r"metric 'jsn', .*did you mean 'json'"),
    ]
    for options, message in wrong:
        with pytest.raises(SetupError, match=message):
            losses_of(row(score()), of=ScriptedTraces(), **options)


def test_a_row_of_another_eval_set_is_refused() -> None:
    with pytest.raises(SetupError, match=r"eval set 'set' has no case 'b'"):
        losses_of(row(score(), case_id="b"))


def test_all_problems_of_placements_and_hints_are_listed() -> None:
    placements = [LossPlacement(metric="exact", node_id="plan"), LossPlacement(metric="x", node_id="plann")]
    assert check_placements(placements, metrics=["exact"], node_ids=["plan"]) == [
        "a loss placement names the metric 'x', which does not exist",
        "the loss placement of 'x' names the node 'plann', which does not exist (did you mean 'plan'?)",
    ]
    assert check_placements(placements, metrics=["exact", "x"]) == []
    high: Any = "high"
    hints = [LossHint(case_id="a", metric="exact"), LossHint(case_id="b", metric="y", severity=high)]
    assert check_hints(hints, metrics=["exact"], case_ids=["a"]) == [
        "a loss hint names the case 'b', which does not exist",
        "the loss hint of case 'b' names the metric 'y', which does not exist",
        "the loss hint of case 'b' has severity 'high'; use P0 to P3",
    ]


def error_places(run: ExecutionTrace, error: Failure, **fields: Any) -> list[str]:
    found = losses_of(row(error=error, **fields), of=ScriptedTraces(d=run))
    return [loss.step_id for each in found for loss in each.losses]


def test_a_broken_run_has_one_loss_on_the_step_that_failed() -> None:
    run = trace(
        {"plan": (), "act": ("plan",), "outer": ("act",)},
        failed={"act": Failure("pkg.ParseError", "no date"), "outer": Failure("pkg.ParseError", "no date")},
    )
    broken = row(score(None, error="the run failed"), error=Failure("ParseError", "no date"))
    (found,) = losses_of(broken, of=ScriptedTraces(d=run))
    (loss,) = found.losses
    assert (loss.metric, loss.step_id, loss.severity, loss.category) == ("", "act", "P0", "error")
    assert (loss.text, loss.expected, loss.score) == ("ParseError: no date", "hi", None)


def test_of_several_failed_steps_the_one_with_the_error_of_the_run_is_blamed() -> None:
    failed = {"left": Failure("ValueError", "handled"), "right": Failure("ValueError", "fatal")}
    assert error_places(trace(DIAMOND, failed=failed), Failure("ValueError", "fatal")) == ["right"]
    assert error_places(trace(DIAMOND, failed=failed), Failure("AppError", "wrapped")) == ["left"]


def test_steps_that_were_cancelled_or_throttled_are_not_blamed_for_the_failure_of_another() -> None:
    failed = {
        "plan": Failure("promptiter.errors.RateLimitedError", "429"),
        "left": Failure("cancelled"),
        "right": Failure("KeyError", "'date'"),
    }
    assert error_places(trace(DIAMOND, failed=failed), Failure("AppError")) == ["right"]


def test_a_broken_run_without_a_failed_step_is_blamed_on_its_last_steps() -> None:
    run = trace({"plan": (), "route": ("plan",)}, status="failed")
    assert error_places(run, Failure("AgentError", "the route after 'route' gave 'x'")) == ["route"]


def test_an_answer_that_the_agent_could_not_read_is_blamed_on_the_last_steps() -> None:
    handled = trace(DIAMOND, failed={"plan": Failure("ValueError", "handled")}, status="completed")
    assert error_places(handled, Failure("ParseError", "no JSON")) == ["right", "left~2"]


@pytest.mark.parametrize(
    "error",
    [
        *(kind.__name__ for kind in (TransientModelError, RateLimitedError, ModelTimeoutError, ModelUnavailableError)),
        f"promptiter.errors.{RateLimitedError.__name__}",
        "openai.APIConnectionError",
        BudgetEndedError.__name__,
        "TimeoutError",
        "cancelled",
    ],
)
def test_failures_that_no_prompt_can_fix_give_no_loss(error: str) -> None:
    assert not is_fixable_by_prompt(Failure(error))
    assert losses_of(row(error=Failure(error, "later")), of=ScriptedTraces()) == ()


def test_an_error_of_a_turn_that_left_no_trace_gives_no_loss() -> None:
    cases = [EvalCase(id="a", turns=(Turn(user="one"), Turn(user="two")))]
    assert losses_of(row(error=Failure("ValueError", "in turn 1")), cases=cases) == ()
    assert losses_of(row(error=Failure("EmptyCase"), digests=()), of=ScriptedTraces()) == ()


def test_a_simulated_user_that_fails_is_not_the_agents_loss_but_a_failing_agent_is() -> None:
    cases = [EvalCase(id="a", scenario=Scenario(starting_prompt="hello", plan="buy"))]
    failed = row(error=Failure("BadAnswerError", "the simulated user failed"))
    assert losses_of(failed, cases=cases) == ()
    broken = ScriptedTraces(d=trace(DIAMOND, failed={"plan": Failure("BadAnswerError", "x")}))
    (found,) = losses_of(failed, cases=cases, of=broken)
    assert (found.input, found.losses[0].expected) == ("into plan", None)


def test_the_loss_of_a_recorded_case_has_its_user_message() -> None:
    cases = [EvalCase(id="a", mode="trace", actual=(Turn(user="said", expected="answered"),))]
    (found,) = losses_of(row(score()), cases=cases)
    assert (found.input, found.losses[0].expected) == ("said", None)


def text_findings(actual: str, reference: str, match: TextMatch = "exact", **fields: Any) -> tuple[Finding, ...]:
    return compare_text(actual, reference, TextCriterion(match=match, **fields))


def call_findings(
    actual: Sequence[ToolCall], expected: Sequence[ExpectedToolCall], **fields: Any
) -> tuple[Finding, ...]:
    return compare_tool_calls(actual, expected, TrajectoryCriterion(**fields))


NUMBER_SCHEMA = JsonCriterion(schema={"type": "object", "properties": {"a": {"type": "number"}}})
SEARCH = ToolCall(name="search", arguments={"city": "Rome"}, result={"n": 1})
BOOK = ToolCall(name="book", arguments={})


def expected_call(name: str, arguments: Any = None, result: Any = None) -> ExpectedToolCall:
    return ExpectedToolCall(name=name, arguments=arguments, result=result)


@pytest.mark.parametrize(
    ("findings", "category"),
    [
        ((), "response"),
        (text_findings("ho", "hi"), "response"),
        (text_findings("ho", "hi", "contains"), "response"),
        (find_word_differences("a b", "a c"), "response"),
        (compare_number("I do not know", "4", NumericCriterion()), "response"),
        (compare_number("5", "4", NumericCriterion()), "response"),
        ((Finding(kind="wrong", expected="hi", actual="ho"),), "response"),
        ((Finding(kind="violated", predicate="rubric:polite", expected="is polite"),), "response"),
        ((Finding(kind="missing", expected="Rome", predicate="city of mine"),), "response"),
        (text_findings("ho", r"^\d+$", "regex"), "format"),
        (text_findings("hi there", "hi there", max_length=3), "format"),
        (text_findings("hi", "hi", min_length=9), "format"),
        (compare_number("4 or 5", "4", NumericCriterion(which="only")), "format"),
        (compare_json_text("no json", '{"a": 1}', JsonCriterion()), "format"),
        (compare_json_text("{}", '{"a": 1}', JsonCriterion()), "format"),
        (compare_json_text('{"a": 1, "b": 2}', '{"a": 1}', JsonCriterion()), "format"),
        (compare_json_text('{"a": "1"}', '{"a": 1}', JsonCriterion()), "format"),
        (compare_json_text('{"a": "x"}', '{"a": "x"}', NUMBER_SCHEMA), "format"),
        (compare_json_text('{"a": 2}', '{"a": 1.5}', JsonCriterion()), "response"),
        (compare_json_text('{"a": null}', '{"a": 1}', JsonCriterion()), "response"),
        (compare_json_text("[1]", "[1, 2]", JsonCriterion()), "response"),
        (call_findings([], [expected_call("search")]), "wrong_tool"),
        (call_findings([BOOK], []), "wrong_tool"),
        (
            call_findings([BOOK, SEARCH], [expected_call("search"), expected_call("book")], order_sensitive=True),
            "wrong_tool",
        ),
        (call_findings([SEARCH], [expected_call("search", {"city": "Oslo"})]), "wrong_arguments"),
        (
            call_findings(
                [ToolCall(name="search", arguments={"a": "x"})],
                [expected_call("search")],
                default=ToolCriterion(arguments=NUMBER_SCHEMA),
            ),
            "wrong_arguments",
        ),
        (
            call_findings(
                [SEARCH], [expected_call("search", None, {"n": 2})], default=ToolCriterion(result=JsonCriterion())
            ),
            "other",
        ),
        ((Finding(kind="violated", predicate="max_cost_usd", expected=1, actual=2),), "other"),
        ((Finding(kind="unexpected", predicate="turn", actual="and?"),), "other"),
    ],
)
def test_the_category_follows_from_what_metrics_find(findings: tuple[Finding, ...], category: Category) -> None:
    assert category_of(findings) == category


def test_the_category_is_that_of_most_findings_and_on_a_tie_what_comes_earlier_in_a_run() -> None:
    tool, argument = Finding(kind="missing", predicate="tool_call"), Finding(kind="wrong", predicate="tool_arguments")
    shape, answer = Finding(kind="violated", predicate="regex"), Finding(kind="wrong", predicate="exact")
    assert category_of([answer, shape, answer]) == "response"
    assert category_of([answer, shape]) == category_of([shape, answer]) == "format"
    assert category_of([shape, argument, answer]) == "wrong_arguments"
    assert category_of([answer, argument, tool]) == "wrong_tool"


def broken_graph() -> GraphAgent:
    def fail(text: str) -> str:
        raise KeyError(text)

    inner = GraphAgent(
        name="inner",
        nodes=(FunctionNode(name="read", function=lambda text: text), FunctionNode(name="parse", function=fail)),
        edges=(Edge("read", "parse"),),
        entry="read",
    )
    return chain("outer", node()(_same), inner, node()(_loud))


def _same(text: str) -> str:
    return text


def _loud(text: str) -> str:
    return text.upper()


@agent(instruction="be loud")
def shouter(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize(
    ("tested", "place", "category"), [(broken_graph(), "inner/parse", "error"), (shouter, "shouter", "response")]
)
async def test_losses_of_a_real_evaluation(tested: GraphAgent, place: str, category: Category) -> None:
    metric = FinalResponseMetric(name="exact", criterion=FinalResponseCriterion(text=TextCriterion()))
    evaluator = Evaluator([metric])
    eval_set = EvalSet(id="set", cases=(EvalCase(id="a", turns=(Turn(user="hello", expected="hi"),)),))
    evaluation = await evaluator.evaluate(tested, eval_set)
    (found,) = await extract_losses(evaluation, eval_set, evaluator.trace_store.get)
    (loss,) = found.losses
    assert (loss.step_id, loss.category, loss.severity, loss.expected) == (place, category, "P0", "hi")
    assert found.input == "hello"


def test_a_loss_is_split_into_its_findings() -> None:
    findings = (Finding(kind="missing", expected="A-17"), Finding(kind="wrong", expected=45, actual=30, where="$.days"))
    listed = Loss(metric="facts", text=summarize_findings(findings), findings=findings, expected="all")
    assert [(each.report, each.findings) for each in split_losses([listed])] == [
        ("facts: 'A-17' is missing", findings[:1]),
        ("facts: expected 45, got 30 at $.days", findings[1:]),
    ]
    hinted = replace(listed, text=f"{listed.text}\nlook at the note")
    assert [each.text for each in split_losses([hinted])][2:] == ["look at the note"]


def test_the_words_of_a_metric_are_a_report_of_their_own_beside_several_findings() -> None:
    findings = (Finding(kind="missing", expected="A-17"), Finding(kind="missing", expected="day"))
    said = Loss(metric="facts", text="speaks of leave\n'day' is missing; 'A-17' is missing", findings=findings)
    assert [(each.report, each.findings) for each in split_losses([said])] == [
        ("facts: 'A-17' is missing", findings[:1]),
        ("facts: 'day' is missing", findings[1:]),
        ("facts: speaks of leave", ()),
    ]


def test_the_words_of_a_judge_and_its_only_finding_are_one_report() -> None:
    missing = Finding(kind="missing", expected="day")
    said = Loss(text="speaks of leave", expected="the whole answer", findings=(missing,))
    assert [each.text for each in split_losses([said])] == ["speaks of leave\n'day' is missing"]
    repeated = replace(said, findings=(Finding(kind="wrong", expected="the whole answer", actual="another"),))
    assert split_losses([repeated]) == (repeated,)


def test_a_report_does_not_repeat_the_name_of_the_metric() -> None:
    finding = Finding(kind="missing", expected="6209K", predicate="contains")
    [loss] = split_losses([Loss(metric="contains", text=summarize_findings([finding]), findings=(finding,))])
    assert loss.report == "contains: '6209K' is missing"


@pytest.mark.parametrize(("reason", "more"), [("", []), ("Two facts are gone.", ["facts: Two facts are gone."])])
async def test_a_metric_of_the_user_gives_one_numbered_finding_for_each_of_its_own(
    reason: str, more: list[str]
) -> None:
    findings = tuple(Finding(kind="missing", expected=each) for each in ("A-17", "Lyon"))
    metric = FunctionMetric(
        name="facts", function=lambda *_: Score(metric="", value=0.0, reason=reason, findings=findings)
    )
    evaluator = Evaluator([metric])
    eval_set = EvalSet(id="set", cases=(EvalCase(id="a", turns=(Turn(user="hello"),)),))
    evaluation = await evaluator.evaluate(shouter, eval_set)
    (found,) = await extract_losses(evaluation, eval_set, evaluator.trace_store.get)
    reports = [each.report for each in split_losses(found.losses)]
    assert reports == ["facts: 'A-17' is missing", "facts: 'Lyon' is missing", *more]


def test_many_findings_are_split_into_a_bounded_number_of_reports() -> None:
    findings = tuple(Finding(kind="missing", expected=number) for number in range(100))
    parts = split_losses([Loss(text=summarize_findings(findings), findings=findings)])
    assert len(parts) == MOST_SPLIT
    assert sum(len(each.findings) for each in parts) == 100
