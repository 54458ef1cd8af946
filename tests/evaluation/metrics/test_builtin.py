from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from promptiter.agents.base import AgentRun
from promptiter.errors import MetricError, SetupError, UnknownNameError
from promptiter.evaluation.data.case import EvalCase, ExpectedToolCall, Turn
from promptiter.evaluation.metrics.builtin import (
    FinalResponseMetric,
    FunctionMetric,
    LimitMetric,
    build_metrics,
)
from promptiter.evaluation.metrics.eval_config import EvalConfig, MetricConfig
from promptiter.evaluation.metrics.metric import MAX_FINDINGS, Metric
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.score import Finding, Score
from promptiter.llm.gateway import Gateway
from promptiter.registry import Registry
from traces import ExecutionTrace, Failure, Step, ToolCall, Usage
from traces.model import Json


def case(*expected: str | None, calls: tuple[tuple[ExpectedToolCall, ...] | None, ...] = ()) -> EvalCase:
    calls = calls or (None,) * len(expected)
    turns = [
        Turn(user="?", expected=text, expected_tool_calls=wanted) for text, wanted in zip(expected, calls, strict=True)
    ]
    return EvalCase(id="c1", turns=tuple(turns))


def run_with(*outputs: str, **more: Any) -> AgentRun:
    if len(outputs) == 1:
        return AgentRun(output=outputs[0], **more)
    return AgentRun(output=outputs[-1], turns=tuple(AgentRun(output=output) for output in outputs), **more)


def run_with_calls(*names: str) -> AgentRun:
    step = Step(id="a", node_id="a", tool_calls=tuple(ToolCall(name=name, arguments={}) for name in names))
    return AgentRun(output="done", trace=ExecutionTrace(id="t", steps=(step,)))


def metric(name: str, threshold: float = 1.0, **criterion: Json) -> Metric:
    document = [{"metric_name": name, "threshold": threshold, "criterion": criterion}]
    return build_metrics(parse_eval_config(document, environ={}))[0]


def final_response(**criterion: Json) -> Metric:
    return metric("final_response_avg_score", final_response=criterion)


async def test_a_score_is_the_mean_over_turns() -> None:
    score = await metric("exact_match")(case("a", "b", "c"), run_with("a", "x", "c"))
    assert score.value == pytest.approx(2 / 3)
    assert not score.passed
    assert score.findings == (
        Finding(kind="wrong", expected="b", actual="x", where="characters 0-1", predicate="exact", turn=1),
    )
    assert score.reason == "exact: expected 'b', got 'x' at characters 0-1 (turn 1)"
    assert score.turn_reasons == ("", "exact: expected 'b', got 'x' at characters 0-1", "")
    assert (await metric("exact_match")(case("a"), run_with("b"))).turn_reasons == ()


async def test_the_reason_of_a_match_says_so() -> None:
    assert (await metric("exact_match")(case("a"), run_with("a"))).reason == "as expected"
    assert (await metric("exact_match")(case("a", "b"), run_with("a", "b"))).reason == "all 2 turns are as expected"


async def test_a_missing_turn_scores_0_with_a_finding() -> None:
    score = await metric("exact_match")(case("a", "b"), run_with("a"))
    assert score.value == 0.5
    assert score.findings == (Finding(kind="missing", expected="b", predicate="turn", turn=1),)


async def test_extra_turns_are_counted_and_reported() -> None:
    score = await metric("exact_match")(case("a"), run_with("a", "b"))
    assert score.value == 0.5
    assert score.findings == (Finding(kind="unexpected", actual="b", predicate="turn", turn=1),)
    of_length = await metric("length", max=3)(case("a"), run_with("a", "too long"))
    assert of_length.value == 0.5
    assert [finding.predicate for finding in of_length.findings] == ["turn", "max_length"]


async def test_turns_without_a_reference_are_not_counted() -> None:
    score = await metric("exact_match")(case(None, "b"), run_with("anything", "b"))
    assert (score.value, score.findings) == (1.0, ())


@pytest.mark.parametrize(
    "name",
    [
        "final_response_avg_score",
        "response_match_score",
        "tool_trajectory_avg_score",
        "exact_match",
        "contains",
        "regex",
        "json_match",
        "rouge",
        "numeric",
        "tool_trajectory",
    ],
)
async def test_a_case_without_a_needed_reference_is_unscored(name: str) -> None:
    judged = metric(name)
    assert judged.needs_reference
    for empty in (case(None), EvalCase(id="c1")):
        score = await judged(empty, run_with_calls())
        assert (score.value, score.error) == (None, f"{name} needs a reference and case 'c1' has none")
        assert not score.passed


@pytest.mark.parametrize("name", ["exact_match", "response_match_score", "tool_trajectory", "numeric"])
async def test_a_failed_run_is_unscored_and_not_passed(name: str) -> None:
    failed = AgentRun(error=Failure("TimeoutError", "no answer"))
    references = case("1", calls=((),))
    score = await metric(name, threshold=0)(references, failed)
    assert (score.value, score.error, score.passed) == (None, "the run failed: TimeoutError: no answer", False)
    later = AgentRun(output="1", turns=(AgentRun(output="1"), failed))
    assert (await metric(name)(references, later)).error == "turn 1 of the run failed: TimeoutError: no answer"


async def test_a_failed_run_is_unscored_by_latency_cost_and_functions() -> None:
    failed = AgentRun(error=Failure("E"), duration_s=1, usage=Usage(cost_usd=1))
    judges: list[Metric] = [
        LimitMetric(name="l", predicate="max_duration_s", limit=9),
        LimitMetric(name="c", predicate="max_cost_usd", limit=9),
        FunctionMetric(name="f", function=lambda *_: 1.0),
    ]
    for judged in judges:
        assert (await judged(case("a"), failed)).error == "the run failed: E"


async def test_an_empty_reference_under_contains_does_not_pass() -> None:
    score = await final_response(text={"match": "contains"})(case(""), run_with("anything"))
    assert score.value is None
    assert "empty reference" in str(score.error)
    assert "turn 0 of case 'c1'" in str(score.error)


@pytest.mark.parametrize(
    "endless",
    [
        metric("regex"),
        final_response(json={"ignore": True, "schema": {"pattern": "(a+)+b"}}),
        metric("tool_trajectory", default={"name": {"match": "regex"}}),
    ],
)
async def test_a_pattern_that_never_ends_leaves_the_loop_free_and_the_case_unscored(
    endless: Metric, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)
    text = "a" * 60
    run = replace(run_with_calls(text), output=f'"{text}"')
    scored = asyncio.ensure_future(endless(case("(a+)+b", calls=((ExpectedToolCall(name="(a+)+b"),),)), run))
    await asyncio.sleep(0)
    assert not scored.done()
    score = await scored
    assert score.value is None
    assert "takes longer than 0.05 s" in (score.error or "")


async def test_threshold_0_is_0() -> None:
    score = await metric("exact_match", threshold=0)(case("a"), run_with("b"))
    assert (score.threshold, score.value, score.passed) == (0, 0.0, True)


async def test_text_json_and_rouge_of_a_final_response_must_all_match() -> None:
    judged = final_response(text={"match": "contains", "length": {"max": 20}}, json={"schema": {"required": ["a"]}})
    assert (await judged(case('{"a": 1}'), run_with('{"a": 1}'))).value == 1
    score = await judged(case('{"b": 1}'), run_with('{"b":   1}'))
    assert (score.value, [finding.predicate for finding in score.findings]) == (0, ["contains", "json_schema"])
    near = final_response(rouge={"type": "rouge-L", "threshold": 0.5})
    assert (await near(case("a b c d"), run_with("a b x y"))).value == 1
    assert (await near(case("a b c d"), run_with("a x y z"))).value == 0


async def test_unparsable_json_scores_0_with_a_finding_even_if_the_reference_is_the_same_text() -> None:
    score = await metric("json_match")(case("oops"), run_with("oops"))
    assert (score.value, score.findings[0].predicate) == (0, "valid_json")
    unusable = await metric("json_match")(case("oops"), run_with("{}"))
    assert unusable.value is None
    assert "the reference 'oops' is not JSON" in str(unusable.error)


async def test_fenced_json_and_equal_numbers_match() -> None:
    score = await metric("json_match")(case('{"n": 1}'), run_with('Sure:\n```json\n{"n": 1.0}\n```'))
    assert score.value == 1


async def test_response_match_score_is_graded() -> None:
    score = await metric("response_match_score", threshold=0.5)(case("the cat sat"), run_with("the cat ran"))
    assert score.value == pytest.approx(2 / 3)
    assert (score.passed, score.findings) == (True, ())
    low = await metric("response_match_score", threshold=0.9)(case("the cat sat"), run_with("the cat ran"))
    assert low.reason == "rouge1: ['sat'] is missing; rouge1: ['ran'] is not expected"
    assert (await metric("rouge", type="rouge2")(case("a b c"), run_with("a b x"))).value == 0.5


async def test_a_number_is_compared_within_its_tolerance() -> None:
    assert (await metric("numeric", tolerance=0.5)(case("42"), run_with("It is 42.4"))).value == 1
    score = await metric("numeric")(case("42"), run_with("It is 42.4"))
    assert score.reason == "number: expected 42, got 42.4 at characters 6-10"
    assert not metric("numeric", expected=7).needs_reference


async def test_tool_calls_are_scored_per_turn() -> None:
    wanted = (ExpectedToolCall(name="search", arguments={}),)
    references = case("x", "y", "z", calls=(wanted, None, ()))
    run = AgentRun(output="z", turns=(run_with_calls("search"), run_with_calls("anything"), run_with_calls("search")))
    score = await metric("tool_trajectory_avg_score")(references, run)
    assert score.value == 0.5
    assert [(finding.turn, finding.where) for finding in score.findings] == [(2, "tool call 0")]


async def test_a_run_without_a_trace_has_unknown_tool_calls_and_not_none() -> None:
    score = await metric("tool_trajectory")(case("x", calls=((),)), run_with("x"))
    assert score.value is None
    assert "has no trace" in str(score.error)


@pytest.mark.parametrize(("duration", "value"), [(1.0, 1.0), (2.0, 1.0), (4.0, 0.5)])
async def test_latency_falls_with_the_overrun(duration: float, value: float) -> None:
    score = await metric("latency", limit_s=2)(case(None), AgentRun(duration_s=duration))
    assert score.value == value
    assert bool(score.findings) == (value < 1)


async def test_latency_falls_back_to_turns_and_trace() -> None:
    judged = metric("latency", limit_s=1)
    assert (await judged(case("x"), AgentRun(turns=(AgentRun(duration_s=2), AgentRun(duration_s=2))))).value == 0.25
    step = Step(id="a", node_id="a", start_ns=1_000_000_000, end_ns=3_000_000_000)
    assert (await judged(case("x"), AgentRun(trace=ExecutionTrace(id="t", steps=(step,))))).value == 0.5
    assert (await judged(case("x"), AgentRun())).value is None


async def test_an_unknown_cost_is_unscored_and_not_0() -> None:
    judged = metric("cost", limit_usd=0.5)
    over = await judged(case("x"), AgentRun(usage=Usage(cost_usd=2)))
    assert over.value == 0.25
    assert over.findings == (Finding(kind="violated", expected=0.5, actual=2, predicate="max_cost_usd"),)
    assert over.reason == "2 is above max_cost_usd 0.5"
    assert (await judged(case("x"), AgentRun(usage=Usage(input_tokens=3)))).value is None
    free = await judged(case("x"), AgentRun(usage=Usage(cost_usd=0)))
    assert free.value == 1


async def test_a_cost_that_is_partly_unknown_is_unscored() -> None:
    priced, unpriced = Usage(input_tokens=1, cost_usd=0.1), Usage(input_tokens=1)
    judged = metric("cost", limit_usd=1)
    turns = AgentRun(usage=priced, turns=(AgentRun(usage=priced), AgentRun(usage=unpriced)))
    assert (await judged(case("x"), turns)).value is None
    steps = (Step(id="a", node_id="a", usage=priced), Step(id="b", node_id="b", usage=unpriced))
    assert (await judged(case("x"), AgentRun(usage=priced, trace=ExecutionTrace(id="t", steps=steps)))).value is None
    only_total = AgentRun(usage=priced, trace=ExecutionTrace(id="t", steps=steps[1:]))
    assert (await judged(case("x"), only_total)).value == 1


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [(0.5, 0.5, ""), (True, 1.0, ""), (False, 0.0, ""), (1, 1.0, ""), ((0.25, "too short"), 0.25, "too short")],
)
async def test_a_function_may_return_a_number_a_bool_or_a_pair(answer: Any, value: float, reason: str) -> None:
    score = await FunctionMetric(name="f", function=lambda *_: answer, threshold=0.3)(case("a"), run_with("a"))
    assert (score.metric, score.value, score.reason, score.threshold) == ("f", value, reason, 0.3)


async def test_a_function_may_return_a_score_which_gets_the_metrics_name_and_threshold() -> None:
    own = Score(metric="?", value=0.5, reason="half", findings=(Finding(kind="missing"),))
    score = await FunctionMetric(name="f", function=lambda *_: own, threshold=0.4)(case("a"), run_with("a"))
    assert score == Score(metric="f", value=0.5, threshold=0.4, reason="half", findings=own.findings)


async def test_an_async_function_is_awaited_and_a_sync_one_leaves_the_loop_free() -> None:
    reached = threading.Event()

    def waits(case: EvalCase, run: AgentRun) -> bool:
        return reached.wait(5)

    async def answers(case: EvalCase, run: AgentRun) -> float:
        reached.set()
        return 0.5

    first, second = await asyncio.gather(
        FunctionMetric(name="sync", function=waits)(case("a"), run_with("a")),
        FunctionMetric(name="async", function=answers)(case("a"), run_with("a")),
    )
    assert (first.value, second.value) == (1.0, 0.5)


@pytest.mark.parametrize("answer", [None, "0.5", float("nan"), float("inf"), (1, "a", "b"), object()])
async def test_a_function_that_returns_no_score_makes_the_case_unscored(answer: Any) -> None:
    score = await FunctionMetric(name="f", function=lambda *_: answer)(case("a"), run_with("a"))
    assert score.value is None
    assert str(score.error).startswith("MetricError: metric 'f' returned ")


async def test_a_metric_that_errors_makes_the_case_unscored_and_not_passed() -> None:
    def fails(case: EvalCase, run: AgentRun) -> float:
        raise KeyError("city")

    score = await FunctionMetric(name="f", function=fails, threshold=0)(case("a"), run_with("a"))
    assert (score.value, score.error, score.passed) == (None, "MetricError: metric 'f' raised KeyError: 'city'", False)


async def test_cancelling_a_function_metric_is_not_its_error() -> None:
    async def sleeps(case: EvalCase, run: AgentRun) -> float:
        await asyncio.sleep(60)
        return 1.0

    task = asyncio.ensure_future(FunctionMetric(name="f", function=sleeps)(case("a"), run_with("a")))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_findings_are_cut_and_counted() -> None:
    score = await metric("json_match")(case("[]"), run_with(str(list(range(250)))))
    assert len(score.findings) == MAX_FINDINGS
    assert score.reason.endswith("and 247 more")


def word_count(case: EvalCase, run: AgentRun, *, at_least: int = 1) -> float:
    return float(len(run.output.split()) >= at_least)


def build_always(config: MetricConfig) -> Metric:
    return FunctionMetric(name=config.name, function=lambda *_: 1.0, threshold=config.threshold)


@pytest.mark.parametrize("evaluator", ["words", f"{__name__}:word_count", "configured"])
async def test_a_users_function_is_found_by_name_by_path_or_by_configuration(evaluator: str) -> None:
    registry: Registry[Any] = Registry("metric")
    registry.register("words", word_count)
    config = parse_eval_config(
        {
            "metrics": [{"metric_name": "w", "evaluator_name": evaluator, "criterion": {"at_least": 3}}],
            "evaluators": {"configured": f"{__name__}:word_count"},
        }
    )
    [judged] = build_metrics(config, registry=registry)
    assert judged.name == "w"
    assert (await judged(case("a"), run_with("one two three"))).value == 1
    assert (await judged(case("a"), run_with("one two"))).value == 0


def test_evaluators_that_cannot_be_used_are_refused_even_if_no_metric_names_them() -> None:
    metrics = [{"metric_name": "contains"}]
    with pytest.raises(SetupError, match=rf"'{__name__}' has no 'word_cont' \(did you mean 'word_count'\?\)"):
        build_metrics({"metrics": metrics, "evaluators": {"unused": f"{__name__}:word_cont"}})
    with pytest.raises(MetricError, match="evaluators: 'contains' is the name of a built-in metric; choose another"):
        build_metrics({"metrics": metrics, "evaluators": {"contains": f"{__name__}:word_count"}})


async def test_a_users_builder_is_given_the_configuration() -> None:
    config = parse_eval_config([{"metric_name": f"{__name__}:build_always", "threshold": 0.5}])
    [judged] = build_metrics(config)
    assert (judged.threshold, (await judged(case("a"), run_with("b"))).value) == (0.5, 1.0)


def test_options_that_a_function_does_not_take_are_an_error_before_anything_runs() -> None:
    config = parse_eval_config([{"metric_name": f"{__name__}:word_count", "criterion": {"at_most": 3}}])
    with pytest.raises(MetricError, match=r"metrics\[0\]: unknown key 'at_most' .*mean 'at_least'\?.; .*takes"):
        build_metrics(config)


def test_all_unknown_names_are_listed_together_with_the_nearest() -> None:
    config = parse_eval_config([{"metric_name": "exact_mach"}, {"metric_name": "tone"}, {"metric_name": "contains"}])
    with pytest.raises(UnknownNameError) as caught:
        build_metrics(config, registry=Registry("metric"))
    assert str(caught.value).startswith("unknown metric: 'exact_mach' (did you mean 'exact_match'?), 'tone'; known are")


def test_a_judge_needs_a_gateway() -> None:
    judge: dict[str, Json] = {"judge_model": {"model_name": "m"}}
    metrics: list[dict[str, Json]] = [{"metric_name": "llm_final_response", "criterion": {"llm_judge": judge}}]
    with pytest.raises(MetricError, match=r"metrics\[0\]: llm_final_response asks a model; .*gateway=Gateway\(\)"):
        build_metrics(metrics)
    assert [judged.name for judged in build_metrics(metrics, gateway=Gateway())] == ["llm_final_response"]


def test_metrics_are_built_from_a_list() -> None:
    listed: list[dict[str, Json]] = [
        {"metric_name": "contains", "threshold": 0.5},
        {"metric_name": "fast", "evaluator_name": "latency", "criterion": {"limit_s": 5}},
    ]
    assert build_metrics(listed) == build_metrics(parse_eval_config(listed))
    assert [(each.name, each.threshold) for each in build_metrics({"metrics": listed})] == [
        ("contains", 0.5),
        ("fast", 1),
    ]


def test_a_criterion_of_another_metric_is_an_error() -> None:
    config = parse_eval_config([{"metric_name": "latency", "criterion": {"limit_s": 1}}]).metrics[0]
    wrong = MetricConfig(name="x", evaluator="json_match", criterion=config.criterion)
    with pytest.raises(MetricError, match="json_match takes a FinalResponseCriterion"):
        build_metrics(EvalConfig(metrics=(wrong,)))


def test_metrics_are_frozen_values() -> None:
    assert metric("contains", case_insensitive=True) == metric("contains", caseInsensitive=True)
    assert isinstance(metric("contains"), FinalResponseMetric)


def test_a_list_may_hold_documents_and_metric_configs() -> None:
    made = MetricConfig(
        name="near",
        evaluator="exact_match",
        criterion=parse_eval_config([{"metric_name": "exact_match"}]).metrics[0].criterion,
        threshold=0.5,
    )
    found = build_metrics([{"metric_name": "contains"}, made, {"metric_name": "exact_match"}])
    assert [(each.name, each.threshold) for each in found] == [("contains", 1.0), ("near", 0.5), ("exact_match", 1.0)]
    with pytest.raises(MetricError, match="has no metrics; list at least one"):
        build_metrics([])
    with pytest.raises(MetricError, match=r"metrics\[1\]: unknown key 'metric_nam'"):
        build_metrics([{"metric_name": "contains"}, {"metric_nam": "exact_match"}])
