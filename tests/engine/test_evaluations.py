from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from promptiter.agents import Agent, agent, ask, surface
from promptiter.engine.engine import Engine
from promptiter.engine.run import RunFailedError
from promptiter.errors import ModelNotFoundError, ModelUnavailableError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, ScoreFunction, build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelRequest
from promptiter.runs.directory import RunDirectory
from promptiter.wording import path_from_here
from tests.worlds import desk

FAULT = (
    "the run failed in round 0: BrokenSetupError: the first 3 case runs failed by a mistake in the code or the "
    "settings, and no other was made: "
)


class Counter:
    """Counts the calls of the scripted model."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, _: ModelRequest) -> None:
        self.calls += 1


def run_with(metric: ScoreFunction, calls: Counter, *, subject: Agent | None = None) -> Engine:
    gateway = Gateway(models={"scripted": desk.model(calls), "missing": find_no_model})
    metrics = [FunctionMetric(name="own", function=metric)]
    return Engine(subject or desk.agent(), Evaluator(metrics, gateway=gateway), search=desk.Tries())


@agent(instruction="Answer.")
async def forgetful(question: str) -> None:
    await ask(question, instruction=surface("instruction"), model="scripted")


@agent(instruction="Answer.")
async def mistyped(question: str) -> str:
    draft = await ask(question, instruction=surface("instruction"), model="scripted")
    return await ask(draft, model="missing")


@agent(instruction="Answer.")
async def hasty(question: str) -> str:
    draft = await ask(question, instruction=surface("instruction"), model="scripted")
    return ", ".join([draft, len(draft)])  # type: ignore[list-item]  # the mistake


def find_no_model(messages: object) -> str:
    raise ModelNotFoundError("no such model")


def score_in_percent(_case: EvalCase, _run: object) -> float:
    return 95.0


def read_missing(case: EvalCase, _run: object) -> float:
    return float(case.metadata["weight"])


@pytest.mark.parametrize(
    ("subject", "metric", "calls", "cause"),
    [
        (forgetful, desk.score, 3, "AnswerError: 'forgetful' returned None; return the answer, as a text or as data"),
        (None, read_missing, 6, "MetricError: metric 'own' raised KeyError: 'weight'"),
        (mistyped, desk.score, 3, "ModelNotFoundError: no such model"),
        (None, score_in_percent, 6, "MetricError: metric 'own' returned 95; return a score from 0 to 1"),
    ],
)
def test_a_mistake_in_the_code_ends_the_run_at_its_first_cases(
    subject: Agent | None, metric: ScoreFunction, calls: int, cause: str
) -> None:
    made = Counter()
    with pytest.raises(RunFailedError) as failed:
        run_with(metric, made, subject=subject).run_sync(desk.request(validation=desk.eval_set("v", 40)))
    assert str(failed.value) == f"{FAULT}{cause}"
    assert made.calls == calls


class Judge:
    """Gives the answers of a function, which may raise, and counts how often it is asked."""

    def __init__(self, answer: Callable[[int], object]) -> None:
        self.answer = answer
        self.asked = 0

    def run(self, _message: str) -> Any:
        self.asked += 1
        return self.answer(self.asked)


def raise_timeout(_: int) -> object:
    raise TimeoutError("the server is down")


def judge_with(judge: Judge, calls: Counter) -> Engine:
    gateway = Gateway(models={"scripted": desk.model(calls)})
    rubrics = [{"id": "polite", "content": "It is polite."}]
    criterion = {"llm_judge": {"judge_model": "scripted", "rubrics": rubrics}}
    config = {"metric_name": "tone", "evaluator_name": "llm_rubric_response", "criterion": criterion}
    metrics = build_metrics([config], gateway=gateway)
    return Engine(desk.agent(), Evaluator(metrics, gateway=gateway).with_judge(judge), search=desk.Tries())


@pytest.mark.parametrize(
    ("answer", "asked", "cause"),
    [
        (raise_timeout, 3, "RunnerError: TimeoutError: the server is down"),
        (lambda _: None, 3, "RunnerError: Judge returned None; return the answer as text"),
        (lambda _: "fine", 12, "BadAnswerError: 'Judge' gave no usable answer in 4 tries: it holds no JSON; the last"),
    ],
    ids=["raises", "returns None", "answers in prose"],
)
def test_a_judge_without_a_usable_answer_ends_the_run_at_its_first_cases(
    answer: Callable[[int], object], asked: int, cause: str
) -> None:
    made, judge = Counter(), Judge(answer)
    with pytest.raises(RunFailedError) as failed:
        judge_with(judge, made).run_sync(desk.request(validation=desk.eval_set("v", 40)))
    assert str(failed.value).startswith(
        "the run failed in round 0: BrokenSetupError: the first 3 case runs could not be scored, and no other was "
        f"made: the judge of 'tone' failed: {cause}"
    )
    assert (made.calls, judge.asked) == (6, asked)


def give_verdict(asked: int) -> object:
    if asked <= 2:
        raise TimeoutError("the server is down")
    return {"verdicts": [{"id": "polite", "reason": "it is", "passed": True}]}


def test_a_judge_that_works_for_one_of_the_first_cases_does_not_end_the_run() -> None:
    judge = Judge(give_verdict)
    result = judge_with(judge, Counter()).run_sync(desk.request(validation=desk.eval_set("v", 10)))
    assert result.baseline is not None
    assert [row.judge_error is None for row in result.baseline.rows].count(True) == 8


@agent(instruction="Answer.")
async def misspelled(question: str) -> str:
    return await ask(question, instruction=surface("instructon"), model="scripted")


def test_a_misspelled_surface_ends_the_run_before_a_model_is_asked() -> None:
    made = Counter()
    with pytest.raises(
        RunFailedError, match=r"unknown surface 'misspelled#instructon' \(did you mean 'misspelled#instr"
    ):
        run_with(desk.score, made, subject=misspelled).run_sync(desk.request())
    assert made.calls == 0


def test_a_bug_in_the_agent_ends_the_run_at_its_first_cases_with_its_line() -> None:
    made = Counter()
    with pytest.raises(RunFailedError) as failed:
        run_with(desk.score, made, subject=hasty).run_sync(desk.request(validation=desk.eval_set("v", 40)))
    cause = "TypeError: sequence item 1: expected str instance, int found"
    line = inspect.getsourcelines(hasty)[1] + 3
    assert str(failed.value) == f"{FAULT}{cause} ({path_from_here(Path(__file__))}:{line})"
    assert made.calls == 3


@agent(instruction="Answer.")
async def refusing(_question: str) -> str:
    raise ValueError("the answer cites no source")


@agent(instruction="Answer.")
async def misreading(question: str) -> str:
    labels: dict[str, str] = {}
    if question.endswith("0"):
        return labels["first"]
    return labels["other"]


@pytest.mark.parametrize("subject", [refusing, misreading])
def test_errors_raised_on_purpose_or_at_several_lines_do_not_end_the_run_early(subject: Agent) -> None:
    result = run_with(desk.score, Counter(), subject=subject).run_sync(desk.request(validation=desk.eval_set("v", 5)))
    assert result.baseline is not None
    assert (result.verdict, len(result.baseline.rows)) == ("invalid_eval", 5)


def test_a_mistake_that_only_some_cases_show_is_counted_as_errors() -> None:
    def fail_early(case: EvalCase, run: object) -> float:
        if case.id in ("v-0", "v-1"):
            raise KeyError(case.id)
        return desk.score(case, run)

    result = run_with(fail_early, Counter()).run_sync(desk.request(validation=desk.eval_set("v", 10)))
    assert result.baseline is not None
    errors = {row.case_id: row.setup_error for row in result.baseline.rows if not row.is_scored}
    assert errors == {name: f"MetricError: metric 'own' raised KeyError: '{name}'" for name in ("v-0", "v-1")}


def test_a_fixed_metric_resumes_the_run_without_paying_again(tmp_path: Path) -> None:
    made, request = Counter(), desk.request(validation=desk.eval_set("v", 5))
    run = RunDirectory.begin(tmp_path, run_with(read_missing, made), request)
    with pytest.raises(RunFailedError):
        run.run_sync()
    result = RunDirectory.resume(run.path, run_with(desk.score, made), request).run_sync()
    assert (result.baseline_score, made.calls) == (0.0, 10)


@pytest.mark.slow
@pytest.mark.parametrize("answer", [raise_timeout, lambda _: None], ids=["raised", "returned None"])
def test_a_fixed_judge_is_asked_again_when_the_run_is_resumed(tmp_path: Path, answer: Callable[[int], object]) -> None:
    made, request = Counter(), desk.request(validation=desk.eval_set("v", 5))
    run = RunDirectory.begin(tmp_path, judge_with(Judge(answer), made), request)
    with pytest.raises(RunFailedError):
        run.run_sync()
    fixed = Judge(lambda _: give_verdict(3))
    result = RunDirectory.resume(run.path, judge_with(fixed, made), request).run_sync()
    assert (result.baseline_score, made.calls, fixed.asked) == (1.0, 10, 5)


def test_a_metric_whose_model_fails_is_an_outage_and_not_a_mistake_in_the_code() -> None:
    def fails(_case: EvalCase, _run: object) -> float:
        raise ModelUnavailableError("503")

    with pytest.raises(
        RunFailedError, match=r"in round 0: metric 'own' raised ModelUnavailableError: 503; 5 case runs"
    ):
        run_with(fails, Counter()).run_sync(desk.request(validation=desk.eval_set("v", 5)))


@agent(instruction="Answer.")
async def down(_question: str) -> str:
    raise ModelUnavailableError("the service 'a.example' cannot be reached")


def test_a_service_that_is_down_is_reported_in_words() -> None:
    with pytest.raises(RunFailedError) as failed:
        run_with(lambda *_: 1.0, Counter(), subject=down).run_sync(desk.request(validation=desk.eval_set("v", 5)))
    assert str(failed.value) == (
        "the run failed in round 0: the service 'a.example' cannot be reached; 5 case runs were lost to such errors; "
        "fix the cause, then run `promptiter resume`"
    )
