from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from promptiter.agents.base import AgentRun
from promptiter.engine.aa_test import measure_noise
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.errors import RateLimitedError, RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.stats.headroom import ContenderResult
from promptiter.evaluation.stats.noise import NoiseReport
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import open_cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.profile import Profile
from tests.worlds.chances import make_eval_set
from tests.worlds.desk import DRAFT, agent, answer, engine, eval_set, evaluator, model, request, score
from tests.worlds.noisy_judge import RUBRICS, CoinJudge, clerk
from traces import Usage


class Wavering:
    """A model that answers correctly in some repeats only, and counts its calls."""

    def __init__(self, *, latency_s: float = 0.0) -> None:
        self.asked: list[int] = []
        self.was_asked = asyncio.Event()
        self.latency_s = latency_s

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked.append(repeat)
        self.was_asked.set()
        await asyncio.sleep(self.latency_s)
        text = request.messages[-1].content
        if Random(f"{request.digest} {repeat}").random() < 0.5:
            text += " careful"
        return ModelReply(text=text, usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.001))


def wavering(subject: Wavering | None = None, *, budget: Budget | None = None, cache: str = "memory") -> Engine:
    gateway = Gateway(models={"scripted": subject or Wavering()}, budget=budget, cache=open_cache(cache))
    return engine(gateway=gateway)


async def test_only_the_validation_cases_run_with_the_requested_repeats() -> None:
    subject, rows = Wavering(), list[CaseRow]()
    found = await measure_noise(wavering(subject), request(), repeats=4, on_row=rows.append)
    assert sorted(subject.asked) == sorted([0, 1, 2, 3] * 2 * 2)  # two cases, two nodes
    assert {(row.case_id, row.repeat) for row in rows} == {
        (f"validation-{n}", repeat) for n in (0, 1) for repeat in range(4)
    }
    assert (found.repeats, found.stop_reason, found.problem, found.paid_runs) == (4, None, None, 8)
    assert found.noise.std > 0
    assert found.spent.calls == 16
    assert found.case_run_cost.tokens == 30
    assert found.case_run_cost.usd == pytest.approx(0.002)


async def test_it_measures_the_initial_profile() -> None:
    assert (await measure_noise(engine(), request())).noise.mean == 0.0
    profile = Profile.of(agent().describe(), DRAFT)
    found = await measure_noise(engine(), request(initial_profile=profile, objective="weighted_loss"))
    assert found.evaluation.profile_digest == profile.digest
    assert (found.repeats, found.noise.mean, found.noise.variance) == (6, -0.5, 0.0)


async def test_cached_answers_are_not_paid_again() -> None:
    subject = Wavering()
    conducted = wavering(subject)
    first = await measure_noise(conducted, request(), repeats=3)
    again = await measure_noise(conducted, request(), repeats=3)
    assert len(subject.asked) == 12
    assert again.evaluation == first.evaluation
    assert (again.spent.calls, again.paid_runs) == (0, 0)
    assert again.case_run_cost == first.case_run_cost
    assert (await measure_noise(conducted, request(), repeats=4)).paid_runs == 2


async def test_when_the_budget_ends_the_complete_repeats_are_reported() -> None:
    gateway = Gateway(models={"scripted": Wavering()}, budget=Budget(max_calls=11))  # a repeat of both cases takes 4
    found = await measure_noise(Engine(agent(), evaluator(gateway, concurrency=1)), request(), repeats=6)
    assert (found.stop_reason, found.problem, found.repeats) == ("max_calls", None, 2)
    assert (found.spent.calls, found.paid_runs) == (11, 5)


async def test_without_two_complete_repeats_there_is_no_noise_report() -> None:
    found = await measure_noise(wavering(budget=Budget(max_calls=4)), request(), repeats=6)
    assert found.stop_reason == "max_calls"
    assert "every case needs at least 2 repeats" in str(found.problem)


async def test_after_an_interrupt_the_complete_repeats_are_reported() -> None:
    interrupt, rows = Interrupt(), list[CaseRow]()

    def heard(row: CaseRow) -> None:
        rows.append(row)
        if len(rows) == 5:
            interrupt.stop("Ctrl-C")

    conducted = Engine(agent(), evaluator(Gateway(models={"scripted": Wavering()}), concurrency=1))
    found = await measure_noise(conducted, request(), on_row=heard, interrupt=interrupt)
    assert (len(rows), found.repeats, found.stop_reason) == (5, 2, "user_stop")
    assert {row.repeat for row in found.evaluation.rows} == {0, 1}  # the one row of the third repeat does not count


async def test_a_second_signal_gives_a_report_but_a_cancelled_task_is_cancelled() -> None:
    interrupt = Interrupt()

    async def cancelled() -> asyncio.Task[NoiseReport]:
        subject = Wavering(latency_s=30)
        task = asyncio.create_task(measure_noise(wavering(subject), request(), interrupt=interrupt))
        await subject.was_asked.wait()
        task.cancel()
        return task

    with pytest.raises(asyncio.CancelledError):
        await (await cancelled())
    interrupt.stop("Ctrl-C")
    found = await (await cancelled())
    assert (found.stop_reason, found.repeats) == ("user_stop", 0)


async def test_an_interrupt_after_the_last_row_changes_nothing() -> None:
    interrupt, rows = Interrupt(), list[CaseRow]()

    def heard(row: CaseRow) -> None:
        rows.append(row)
        if len(rows) == 4:
            interrupt.stop("Ctrl-C")

    assert (await measure_noise(engine(), request(), repeats=2, on_row=heard, interrupt=interrupt)).stop_reason is None


async def test_too_many_failures_end_it_at_once() -> None:
    subject = model(hook=lambda _: 1 / 0)  # type: ignore[arg-type]
    failing = Engine(agent(), evaluator(Gateway(models={"scripted": subject}), concurrency=1))
    rows: list[CaseRow] = []
    found = await measure_noise(failing, request(), repeats=8, on_row=rows.append)
    assert len(rows) == 5  # more than a quarter of 16
    assert "100% of the runs or scores failed, the limit is 25%" in str(found.problem)


async def test_a_teacher_writes_missing_references_first() -> None:
    bare = EvalSet(id="bare", cases=(EvalCase(id="a", turns=(Turn(user="question"),)),))
    metric = FunctionMetric(
        name="same", function=lambda case, run: float(run.output == case.turns[0].expected), needs_reference=True
    )
    gateway = Gateway(models={"scripted": model()})
    conducted = Engine(agent(), Evaluator([metric], gateway=gateway))
    train = eval_set("train", 1)
    with pytest.raises(RequestError, match="a"):
        await measure_noise(conducted, request(train=train, validation=bare))
    found = await measure_noise(conducted, request(train=train, validation=bare, teacher=agent()))
    assert (found.noise.mean, found.noise.variance) == (1.0, 0.0)
    assert found.spent.calls == 6 * 2  # not what the teacher spent


async def test_one_repeat_is_refused() -> None:
    with pytest.raises(SetupError, match=r"repeats is 1, .*; give 2 or more"):
        await measure_noise(engine(), request(), repeats=1)


@pytest.mark.slow
async def test_the_noise_of_a_judge_is_told_apart_from_that_of_the_agent() -> None:
    coin = CoinJudge("noise")
    gateway = Gateway(models={"coin": coin})
    metrics = build_metrics(
        [
            {
                "metric_name": "llm_rubric_response",
                "criterion": {"llm_judge": {"judge_model": "coin", "rubrics": RUBRICS}},
            }
        ],
        gateway=gateway,
    )
    asked = request(validation=make_eval_set("validation", 12))
    found = await measure_noise(Engine(clerk, Evaluator(metrics, gateway=gateway)), asked, repeats=4)
    assert coin.asked == 12 * 4 * 2
    assert found.noise.std == pytest.approx(0.5, abs=0.1)
    assert found.split.judge_share == pytest.approx(1.0, abs=0.25)
    assert [each.metric for each in found.metrics] == ["llm_rubric_response"]
    again = await measure_noise(Engine(clerk, Evaluator(metrics, gateway=gateway)), asked, repeats=4, judge_repeats=1)
    assert (again.rejudged, again.split.judge_share) == ((), None)


async def test_a_case_run_is_judged_once_in_the_cost_of_a_plan() -> None:
    def judged(_: ModelRequest) -> ModelReply:
        verdicts = '{"verdicts": [{"id": "right", "reason": "", "passed": true}]}'
        return ModelReply(text=verdicts, usage=Usage(input_tokens=6, output_tokens=4, cost_usd=0.01))

    gateway = Gateway(models={"scripted": model(), "judge": ScriptedModel(judged)})
    criterion = {"llm_judge": {"judge_model": "judge", "rubrics": RUBRICS}}
    metrics = build_metrics([{"metric_name": "llm_rubric_response", "criterion": criterion}], gateway=gateway)
    found = await measure_noise(Engine(agent(), Evaluator(metrics, gateway=gateway)), request(), repeats=2)
    assert (found.spent.calls, found.judge_spent.calls) == (4 * 2 + 4 * 2, 4 * 2)
    assert found.case_run_cost.tokens == pytest.approx(2 * 15 + 10)
    assert found.case_run_cost.usd == pytest.approx(2 * 0.001 + 0.01)


async def test_a_stronger_model_takes_the_place_of_the_models_of_the_agent() -> None:
    strong = ScriptedModel(lambda asked: ModelReply(text=f"{asked.messages[-1].content} careful"))
    gateway = Gateway(models={"scripted": model(), "strong": strong})
    found = await measure_noise(engine(gateway=gateway), request(), repeats=2, stronger="strong")
    (reached,) = found.headroom.reached
    assert (reached.name, reached.problem, len(strong.requests)) == ("strong", None, 2 * 2)
    assert reached.passed == {"validation-0", "validation-1"} == set(found.headroom.failing)
    assert found.noise.mean == 0.0
    assert found.spent.calls == 2 * 2 * 2  # not those of the stronger model


async def test_a_model_that_the_agent_cannot_be_given_reaches_nothing() -> None:
    asked = request(validation=make_eval_set("validation", 2))
    gateway = Gateway(models={"strong": model()})
    subject = Evaluator([FunctionMetric(name="careful", function=score)], gateway=gateway)
    found = await measure_noise(Engine(clerk, subject), asked, repeats=2, stronger="strong")
    assert found.headroom.reached == (
        ContenderResult(name="strong", problem="the agent asked no model through the gateway"),
    )


@pytest.mark.slow
async def test_a_stronger_model_that_cannot_be_called_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    subject = Wavering()
    with pytest.raises(RequestError, match="stronger: openai/gpt-none needs OPENAI_API_KEY"):
        await measure_noise(wavering(subject), request(), stronger="openai/gpt-none")
    assert subject.asked == []


async def test_a_teacher_is_scored_on_the_cases_whose_references_are_not_its_own() -> None:
    def is_same(case: EvalCase, run: AgentRun) -> float:
        return float(run.output == case.turns[0].expected)

    mixed = EvalSet(
        id="mixed",
        cases=(
            EvalCase(id="known", turns=(Turn(user="one", expected="ONE"),)),
            EvalCase(id="taught", turns=(Turn(user="two"),)),
        ),
    )
    metric = FunctionMetric(name="same", function=is_same, needs_reference=True)
    conducted = Engine(agent(), Evaluator([metric], gateway=Gateway(models={"scripted": model()})))
    found = await measure_noise(conducted, request(validation=mixed, teacher=str.upper), repeats=2)
    (reached,) = found.headroom.reached
    assert (reached.name, set(reached.passed)) == ("teacher", {"known"})
    assert reached.evaluation is not None
    assert [row.case_id for row in reached.evaluation.rows] == ["known"]

    only_taught = EvalSet(id="taught", cases=mixed.cases[1:])
    found = await measure_noise(conducted, request(validation=only_taught, teacher=str.upper), repeats=2)
    assert found.reached == (ContenderResult(name="teacher", problem="it wrote the references of all cases itself"),)


async def test_a_run_that_an_outage_lost_is_made_again() -> None:
    calls = Counter[str]()

    async def flaky(request: ModelRequest, *, repeat: int) -> ModelReply:
        calls[f"{request.digest} {repeat}"] += 1
        if repeat == 1 and calls[f"{request.digest} {repeat}"] == 1:
            raise RateLimitedError("busy")
        return answer(request)

    gateway = Gateway(models={"scripted": flaky}, retries=Retries(attempts=1))
    found = await measure_noise(engine(gateway=gateway), request(), repeats=8)
    assert (found.problem, sum(case.unscored for case in found.cases)) == (None, 0)
    assert max(calls.values()) == 2
