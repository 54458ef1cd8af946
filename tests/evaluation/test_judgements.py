from __future__ import annotations

import random
from typing import Any

import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.function import agent, ask
from promptiter.cli.views.headroom import headroom_rows
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.data.health import check_runs
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.judgements import judge_repeatedly, measure_metric_noise, split_judgements
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.stats.metric_noise import MetricNoise
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest


class RandomModel:
    """A model with a random answer for each request and repeat; it counts its calls."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked = 0

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked += 1
        return ModelReply(text=random.Random(f"{request.digest} {repeat}").choice(self.answers))


@agent(instruction="Answer.")
async def steady(text: str) -> str:
    return text


@agent(instruction="Answer.")
async def random_agent(text: str) -> str:
    return await ask(text, model="agent")


QUESTIONS = EvalSet(
    id="set",
    cases=tuple(EvalCase(id=f"c{n}", turns=(Turn(user=f"q{n}", expected="yes"),)) for n in range(20)),
)


def judge(gateway: Gateway, **options: Any) -> Metric:
    criterion = {"llm_judge": {"judge_model": {"model_name": "judge", **options}}}
    config = parse_eval_config([{"metric_name": "llm_final_response", "criterion": criterion}])
    return build_metrics(config, gateway=gateway)[0]


def is_yes(_: EvalCase, run: AgentRun) -> float:
    return float(run.output == "yes") / 3


VERDICTS = ('{"reason": "r", "valid": true}', '{"reason": "r", "valid": false}')


@pytest.mark.slow
async def test_a_steady_agent_leaves_all_noise_to_the_judge_which_is_asked_again() -> None:
    model = RandomModel(*VERDICTS)
    gateway = Gateway(models={"judge": model})
    subject = Evaluator([judge(gateway), FunctionMetric(name="exact", function=is_yes)], gateway=gateway)
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=3, judge_repeats=4)
    assert model.asked == 20 * 3 * 4
    judged, exact = report.metrics
    assert judged.judge_variance == pytest.approx(0.25, rel=0.15)
    assert judged.agent_variance == pytest.approx(0.0, abs=0.03)
    assert (exact.agent_variance, exact.judge_variance, exact.bound) == (None, None, "floor")

    luck = "most of that may be luck with the judge, whose share of the noise is "
    assert any(luck in text for _, text in headroom_rows(report))

    again = await measure_metric_noise(subject, steady, QUESTIONS, repeats=3, judge_repeats=4)
    assert (again.judgements, model.asked) == (report.judgements, 20 * 3 * 4)  # the cache knows all samples


@pytest.mark.slow
async def test_a_steady_judge_leaves_all_noise_to_the_agent() -> None:
    gateway = Gateway(models={"agent": RandomModel("yes", "no"), "judge": RandomModel(VERDICTS[0])})
    subject = Evaluator([judge(gateway), FunctionMetric(name="exact", function=is_yes)], gateway=gateway)
    report = await measure_metric_noise(subject, random_agent, QUESTIONS, repeats=4, judge_repeats=2)
    judged, exact = report.metrics
    assert (judged.agent_variance, judged.judge_variance, judged.bound) == (None, None, "ceiling")
    assert exact.agent_variance == pytest.approx(0.25 / 9, rel=0.15)
    assert exact.judge_variance == 0.0


@pytest.mark.slow
async def test_a_judge_of_several_samples_gets_new_ones_each_time() -> None:
    model = RandomModel(*VERDICTS)
    gateway = Gateway(models={"judge": model})
    await measure_metric_noise(
        Evaluator([judge(gateway, num_samples=3)], gateway=gateway), steady, QUESTIONS, repeats=2, judge_repeats=2
    )
    assert model.asked == 20 * 2 * 2 * 3


async def test_a_user_metric_that_uses_the_gateway_is_asked_again() -> None:
    async def by_model(_: EvalCase, run: AgentRun) -> float:
        request = ModelRequest(model="judge", messages=(Message("user", run.output),))
        return float((await current_gateway().ask(request, CallSite(role="judge"))).text)

    model = RandomModel("0", "1")
    subject = Evaluator([FunctionMetric(name="own", function=by_model)], gateway=Gateway(models={"judge": model}))
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=2, judge_repeats=3)
    assert model.asked == 20 * 2 * 3
    assert report.metrics[0].judge_variance == pytest.approx(0.25, rel=0.2)


@pytest.mark.slow
async def test_the_evaluation_of_a_metric_noise_report_has_as_many_repeats() -> None:
    def subject(repeats: int) -> Evaluator:
        gateway = Gateway(models={"agent": RandomModel("yes", "no")})
        options = EvaluationOptions(repeats=repeats, concurrency=3)
        return Evaluator([FunctionMetric(name="exact", function=is_yes)], gateway=gateway, options=options)

    report = await measure_metric_noise(subject(1), random_agent, QUESTIONS, repeats=3, judge_repeats=2)
    assert report.evaluation == await subject(3).evaluate(random_agent, QUESTIONS)
    assert (len(report.judgements), len(report.evaluation.rows)) == (2, 60)


async def test_cases_that_cannot_be_scored_have_no_noise() -> None:
    def broken(_: EvalCase, run: AgentRun) -> float:
        raise ValueError(run.output)

    subject = Evaluator([FunctionMetric(name="broken", function=broken)])
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=2, judge_repeats=2)
    assert report.metrics == (MetricNoise(metric="broken", agent_variance=None, judge_variance=None),)
    assert {finding.kind for finding in check_runs([report.evaluation])} == {"always_errors"}


@pytest.mark.parametrize(("repeats", "judge_repeats"), [(1, 2), (2, 1)])
async def test_metric_noise_needs_two_repeats_and_two_judgements(repeats: int, judge_repeats: int) -> None:
    with pytest.raises(SetupError, match=f"at least 2 repeats and 2 judge_repeats, got {repeats} and {judge_repeats}"):
        await measure_metric_noise(
            Evaluator([FunctionMetric(name="exact", function=is_yes)]),
            steady,
            QUESTIONS,
            repeats=repeats,
            judge_repeats=judge_repeats,
        )


@pytest.mark.slow
async def test_metrics_with_weights_are_judged_again_too() -> None:
    model = RandomModel(*VERDICTS)
    gateway = Gateway(models={"judge": model})
    metrics = [judge(gateway), FunctionMetric(name="exact", function=is_yes)]
    subject = Evaluator(metrics, gateway=gateway, weights={"exact": 3.0})
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=4, judge_repeats=4)
    assert [each.weights for each in report.judgements] == [{"exact": 3.0}] * 4
    assert report.split.judge_share == pytest.approx(1.0, abs=0.2)


@pytest.mark.slow
async def test_the_first_judgement_is_that_of_an_ordinary_evaluation() -> None:
    gateway = Gateway(models={"judge": RandomModel(*VERDICTS)})
    subject = Evaluator([judge(gateway)], gateway=gateway, options=EvaluationOptions(repeats=2))
    expected = await subject.evaluate(steady, QUESTIONS)
    found = await judge_repeatedly(subject, 3).evaluate(steady, QUESTIONS)
    judged = [split_judgements(row, 3) for row in found.rows]
    assert tuple(first for first, *_ in judged) == expected.rows
    assert any(first.scores != other.scores for first, *others in judged for other in others)


@pytest.mark.parametrize("count", [0, 1_000])
def test_a_run_is_judged_at_least_once(count: int) -> None:
    with pytest.raises(SetupError, match=f"judge_repeats is {count}; give a number from 1 to 999"):
        judge_repeatedly(Evaluator(), count)


@pytest.mark.slow
async def test_judgements_in_other_processes_are_the_same() -> None:
    def subject(executor: ProcessExecutor | None = None) -> Evaluator:
        gateway = Gateway(models={"judge": RandomModel(*VERDICTS)})
        return Evaluator([judge(gateway)], gateway=gateway, executor=executor)

    with ProcessExecutor(workers=1) as executor:
        there = await measure_metric_noise(subject(executor), steady, QUESTIONS, repeats=2)
    here = await measure_metric_noise(subject(), steady, QUESTIONS, repeats=2)
    assert there.judgements == here.judgements
