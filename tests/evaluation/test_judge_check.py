from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from promptiter.errors import BudgetEndedError, MetricError, SetupError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.data.labels import LabelledAnswer, LabelSet
from promptiter.evaluation.judge_check import check_judge
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from traces.model import Json

Decide = Callable[[str, int], bool]
"""The verdict of a judge on a prompt, in a sample."""


class Judge:
    """A model that judges by a function and keeps what it was asked."""

    def __init__(self, decide: Decide) -> None:
        self.decide = decide
        self.asked: list[str] = []

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked.append(request.text)
        passed = self.decide(request.text, repeat)
        ids = [name for name in ("right", "kind") if f'"{name}":' in request.text]
        verdicts = [{"id": name, "reason": "", "passed": passed} for name in ids]
        return ModelReply(text=json.dumps({"verdicts": verdicts}))


def build(judge: Judge, *rubrics: str, **more: Any) -> tuple[JudgeMetric, Gateway]:
    gateway = Gateway(models={"judge": judge}, **more)
    listed = [{"id": name, "content": f"It is {name}."} for name in rubrics or ("right",)]
    criterion: Json = {"llm_judge": {"judge_model": "judge", "rubrics": listed}}
    config: Json = [{"metric_name": "good", "evaluator_name": "llm_rubric_response", "criterion": criterion}]
    (metric,) = build_metrics(config, gateway=gateway)
    assert isinstance(metric, JudgeMetric)
    return metric, gateway


def label(count: int, decide: Callable[[int], float], *, length: Callable[[int], int] = lambda _: 1) -> LabelSet:
    answers = tuple(
        LabelledAnswer(
            case=EvalCase(id=f"c{n}", turns=(Turn(user=f"question {n}"),)),
            output=f"answer {n} is {'right' if decide(n) >= 0.5 else 'wrong'}{'!' * length(n)}",
            label=decide(n),
        )
        for n in range(count)
    )
    return LabelSet(answers=answers, is_graded=any(answer.label not in (0, 1) for answer in answers))


HALF = label(40, lambda n: float(n % 2))


async def test_a_judge_that_says_what_people_say_agrees_without_noise_or_bias() -> None:
    judge = Judge(lambda text, _: "is right!" in text)
    metric, gateway = build(judge)
    found = await check_judge(metric, HALF, gateway=gateway)
    assert found.kappa is not None
    assert (found.kappa.value, found.agreement) == (1.0, 1.0)
    assert (found.noise_std, found.inconsistent, found.leniency.value) == (0.0, 0, 0.0)
    assert (found.length_bias, found.position) == (None, None)
    assert (found.answers, found.unscored, found.judgements, len(judge.asked)) == (40, 0, 3, 40 * 3)
    assert found.definition == metric.definition


@pytest.mark.slow
async def test_a_coin_agrees_by_chance_only_and_is_noisy() -> None:
    metric, gateway = build(Judge(lambda text, repeat: Random(f"{text} {repeat}").random() < 0.5))
    found = await check_judge(metric, label(120, lambda n: float(n % 2)), gateway=gateway)
    assert found.kappa is not None
    assert found.kappa.low < 0 < found.kappa.high
    assert found.agreement == pytest.approx(0.5, abs=0.08)
    assert found.noise_std == pytest.approx(0.5, abs=0.05)
    assert found.inconsistent == pytest.approx(120 * 0.75, abs=20)


@pytest.mark.slow
async def test_a_judge_that_likes_length_and_passes_too_much_is_found_out() -> None:
    labels = label(60, lambda n: float(n % 3 == 0), length=lambda n: n * 7 % 60)
    metric, gateway = build(Judge(lambda text, _: "is right!" in text or text.count("!") > 30))
    found = await check_judge(metric, labels, gateway=gateway)
    assert found.length_bias is not None
    assert found.length_bias.low > 0
    assert found.leniency.low > 0


@pytest.mark.slow
async def test_a_judge_that_decides_by_the_first_rubric_has_a_position_bias() -> None:
    judge = Judge(lambda text, _: text.index('"right":') < text.index('"kind":'))
    metric, gateway = build(judge, "right", "kind")
    found = await check_judge(metric, HALF, gateway=gateway)
    assert found.position is not None
    assert (found.position.shift.value, found.position.changed, found.position.changed_by_noise) == (-1.0, 1.0, 0.0)
    assert len(judge.asked) == 40 * (3 + 1)


@pytest.mark.slow
async def test_rubrics_whose_verdicts_swap_have_a_position_bias_though_the_score_stays_the_same() -> None:
    async def pass_the_first(request: ModelRequest, *, repeat: int) -> ModelReply:
        names = sorted(("right", "kind"), key=lambda name: request.text.index(f'"{name}":'))
        verdicts = [{"id": name, "reason": "no", "passed": name == names[0]} for name in names]
        return ModelReply(text=json.dumps({"verdicts": verdicts}))

    metric, gateway = build(pass_the_first, "right", "kind")  # type: ignore[arg-type]
    found = await check_judge(replace(metric, threshold=0.5), HALF, gateway=gateway)
    assert found.position is not None
    assert (found.position.shift.value, found.position.changed, found.position.changed_by_noise) == (0.0, 1.0, 0.0)
    assert found.position.is_shown


@pytest.mark.slow
async def test_the_reference_comes_last_in_the_other_order() -> None:
    judge = Judge(lambda text, _: text.index('name="reference"') < text.index('name="response"'))
    metric, gateway = build(judge)
    metric = replace(metric, config=replace(metric.config, show_reference=True))
    answers = tuple(
        replace(each, case=replace(each.case, turns=(Turn(user="q", expected="right"),))) for each in HALF.answers
    )
    found = await check_judge(metric, replace(HALF, answers=answers), gateway=gateway)
    assert found.position is not None
    assert found.position.shift.value == -1.0


async def test_grades_are_compared_with_the_values_of_the_metric() -> None:
    labels = label(40, lambda n: n % 5 / 4)
    grades = {answer.output: answer.label for answer in labels.answers}
    shifted = FunctionMetric(name="own", function=lambda _, run: grades[run.output] / 2)
    found = await check_judge(shifted, labels)
    assert found.kappa is not None
    assert 0 < found.kappa.value < 0.8
    assert found.leniency.value == pytest.approx(-0.25)
    assert (found.definition, found.position) == ("", None)


async def test_answers_that_cannot_be_judged_are_left_out_if_they_are_few() -> None:
    def sometimes(_: EvalCase, run: Any) -> float:
        number = int(run.output.split()[1])
        if number % 8 == 7:
            raise ValueError("no verdict")
        return float("right" in run.output)

    found = await check_judge(FunctionMetric(name="own", function=sometimes), HALF)
    assert (found.answers, found.unscored) == (35, 5)

    def never(_: EvalCase, run: Any) -> float:
        raise ValueError(run.output)

    with pytest.raises(MetricError, match=r"'own' could not judge 40 of 40 answers: .* raised ValueError: answer 0"):
        await check_judge(FunctionMetric(name="own", function=never), HALF)


async def test_a_spent_budget_ends_a_check_and_one_judgement_is_refused() -> None:
    metric, gateway = build(Judge(lambda *_: True), budget=Budget(max_calls=5))
    with pytest.raises(BudgetEndedError):
        await check_judge(metric, HALF, gateway=gateway)
    with pytest.raises(SetupError, match="judgements is 1; give 2 or more"):
        await check_judge(metric, HALF, gateway=gateway, judgements=1)


def test_the_definition_of_a_judge_changes_with_what_it_is_asked_and_who_is_asked() -> None:
    judge = Judge(lambda *_: True)
    metric, _ = build(judge)
    assert build(judge)[0].definition == metric.definition
    others = [build(judge, "kind")[0], replace(metric, threshold=0.5), metric.with_judge("other")]
    assert len({metric.definition, *(other.definition for other in others)}) == 4
