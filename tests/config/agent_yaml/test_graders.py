from __future__ import annotations

from dataclasses import dataclass

import pytest

from promptiter.agents.base import AgentRun
from promptiter.config.agent_yaml.graders import BUILDER, GraderContext
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric import Metric
from traces import Failure


@dataclass
class Result:
    score: float
    reason: str = ""


def grade_turns(ctx: GraderContext) -> Result:
    """Whether the answer has the wanted word. More details."""
    wanted = ctx.turn_config.get("word", ctx.ground_truth)
    return Result(float(wanted in ctx.agent_response), f"turn {ctx.turn_index} of {ctx.test_case_name} wants {wanted}")


def grade_bool(ctx: GraderContext) -> bool:
    return ctx.turn_input == "hi"


def grade_text(_ctx: GraderContext) -> str:
    return "good"


def grade_run(case: object, run: AgentRun) -> float:
    assert case is not None
    return 0.5 if run.output else 0.0


def grade_three(_a: object, _b: object, _c: object) -> float:
    return 1.0


CASES = build_eval_set(
    "s",
    [
        {"test_name": "one", "input": "hi", "expected": "yes"},
        {
            "name": "two",
            "turns": [
                {"input": "a", "ground_truth": "x", "turn_config": {"word": "A"}},
                {"input": "b", "ground_truth": "B"},
            ],
        },
    ],
).by_id


def build(function: str) -> Metric:
    entry = {"metric_name": "g", "evaluator_name": BUILDER, "criterion": {"grader": f"{__name__}:{function}"}}
    [metric] = build_metrics([entry])
    return metric


async def test_a_grader_sees_each_turn_with_its_configuration() -> None:
    run = AgentRun.of_turns([AgentRun(output="A"), AgentRun(output="C")])
    score = await build("grade_turns")(CASES["two"], run)
    assert score.value == 0.5
    assert score.turn_reasons == ("turn 0 of two wants A", "turn 1 of two wants B")


@pytest.mark.parametrize(("function", "value"), [("grade_bool", 1.0), ("grade_run", 0.5)])
async def test_a_grader_may_return_a_boolean_or_take_case_and_run(function: str, value: float) -> None:
    assert (await build(function)(CASES["one"], AgentRun(output="yes"))).value == value


async def test_an_answer_that_is_no_grade_leaves_the_run_unscored() -> None:
    score = await build("grade_text")(CASES["one"], AgentRun(output="yes"))
    assert score.value is None
    assert "returned 'good'" in (score.error or "")


async def test_a_failed_run_is_unscored() -> None:
    score = await build("grade_bool")(CASES["one"], AgentRun(error=Failure("E", "boom")))
    assert score.value is None


def test_a_function_of_other_arguments_is_refused() -> None:
    with pytest.raises(SetupError, match="takes neither a GraderContext nor"):
        build("grade_three")
