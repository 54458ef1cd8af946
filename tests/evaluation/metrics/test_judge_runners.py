"""Judges that are agents or functions, and the references that judges are shown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from promptiter.agents.base import Agent, AgentRun
from promptiter.agents.function import agent, ask
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.agents.runner import Runner
from promptiter.agents.surface_scope import surface
from promptiter.engine.model_checks import check_models
from promptiter.errors import MetricError, ModelTimeoutError, RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.criteria import Rubric
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.metrics.judge_prompts import mentions_reference
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from traces import Usage
from traces.model import Json

HERE = __name__


def verdict(passed: bool, reason: str = "because") -> str:
    return json.dumps({"verdicts": [{"id": "short", "reason": reason, "passed": passed}]})


@agent(instruction="You count words. Be strict.")
async def strict(message: str) -> str:
    return await ask(message, instruction=surface("instruction"), model="counter")


def count_words(message: str) -> Json:
    """A judge without a model: a response of more than two words is not short."""
    response = re.findall(r'<data name="response">\n(.*?)\n</data>', message, re.DOTALL)[-1]
    words = len(response.split())
    return {"verdicts": [{"id": "short", "reason": f"it has {words} words", "passed": words <= 2}]}


async def refuse(message: str) -> str:
    raise OSError(f"no line to the judge of {len(message) > 0}")


def make_strict() -> Agent:
    return strict


class Client:
    """A runner: the client of a judge that runs elsewhere."""

    def run(self, message: str) -> Json:
        return count_words(message)


CLIENT = Client()
NOT_A_RUNNER = 3


def short(
    judge: Json = None, *, rubric: str = "At most two words.", name: str = "llm_rubric_response", **more: Json
) -> Any:
    named = {} if judge is None else {"judge_model": judge}
    rubrics = [{"id": "short", "content": rubric}]
    criterion = {"llm_judge": {**named, "rubrics": rubrics, **more}}
    return [{"metric_name": "brief", "evaluator_name": name, "criterion": criterion}]


def build(gateway: Gateway, given: Any, judge: Runner | str | None = None) -> JudgeMetric:
    (built,) = build_metrics(given, gateway=gateway, judge=judge)
    assert isinstance(built, JudgeMetric)
    return built


def counter(*answers: str) -> Gateway:
    return Gateway(models={"counter": ScriptedModel(answers)})


def asked_of(gateway: Gateway) -> list[ModelRequest]:
    model = gateway.model("counter")
    assert isinstance(model, ScriptedModel)
    return model.requests


CASE = EvalCase(id="c", turns=(Turn(user="Where?", expected="In Rome."),))
BRIEF, LONG = AgentRun(output="In Rome."), AgentRun(output="It is in Rome, of course.")


@pytest.mark.parametrize("judge", [f"{HERE}:strict", f"{HERE}:make_strict"])
async def test_an_agent_of_a_metric_file_judges_with_its_own_instruction(judge: str) -> None:
    gateway = counter(verdict(False, "six words"))
    score = await build(gateway, short(judge))(CASE, LONG)
    assert (score.value, score.reason) == (0.0, "rubric 'short' failed: six words")
    [asked] = asked_of(gateway)
    assert asked.messages[0].content == "You count words. Be strict."
    assert "At most two words." in asked.messages[1].content
    assert "It is in Rome, of course." in asked.messages[1].content
    assert gateway.ledger.snapshot().by_role()["judge"].calls == 1


@pytest.mark.parametrize("judge", [strict, "counter"])
async def test_the_judge_of_metrics_that_name_none_is_an_agent_or_a_model(judge: Runner | str) -> None:
    gateway = counter(verdict(True))
    assert (await build(gateway, short(), judge)(CASE, BRIEF)).value == 1.0


async def test_an_agent_is_shown_its_unusable_answer_and_asked_again() -> None:
    gateway = counter("short enough", verdict(True))
    assert (await build(gateway, short(f"{HERE}:strict"))(CASE, BRIEF)).value == 1.0
    first, again = (request.messages[-1].content for request in asked_of(gateway))
    assert again.startswith(f"{first}\n\nYou answered:\nshort enough\n\nThat answer cannot be used: it holds no JSON")


@pytest.mark.parametrize("judge", ["count_words", "CLIENT", "Client"])
async def test_a_function_or_an_object_that_runs_judges_and_its_answers_are_kept(judge: str) -> None:
    gateway = Gateway()
    metric = build(gateway, short(f"{HERE}:{judge}"))
    assert [(await metric(CASE, run)).value for run in (BRIEF, LONG, LONG)] == [1.0, 0.0, 0.0]
    assert (await metric(CASE, LONG)).reason == "rubric 'short' failed: it has 6 words"
    spent = gateway.ledger.snapshot().total
    assert (spent.calls, spent.cache_hits) == (2, 2)


async def test_a_judge_can_be_replaced_by_an_agent_or_a_function() -> None:
    metric = build(counter(), short("counter"))
    assert (await metric.with_judge(count_words)(CASE, LONG)).value == 0.0
    evaluator = Evaluator([metric], gateway=metric.gateway).with_judge(count_words)
    assert (await evaluator.metrics[0](CASE, BRIEF)).value == 1.0


async def test_a_failing_judge_is_named_by_its_metric_and_as_the_user_names_it() -> None:
    score = await build(Gateway(), short(f"{HERE}:refuse"))(CASE, BRIEF)
    assert score.error == "the judge of 'brief' failed: RunnerError: OSError: no line to the judge of True"

    score = await build(counter(*["so-so"] * 4), short(f"{HERE}:strict"))(CASE, BRIEF)
    assert score.error == (
        f"the judge of 'brief' failed: BadAnswerError: '{HERE}:strict' gave no usable answer in 4 tries: "
        "it holds no JSON; the last one is 'so-so'"
    )


async def test_a_judge_with_its_own_key_is_named_as_in_the_file() -> None:
    gateway = Gateway()
    metric = build(gateway, short({"model_name": "gpt-x", "api_key": "sk-1", "base_url": "http://127.0.0.1:9/v1"}))
    [judge] = metric.judges
    assert re.fullmatch(r"judge-[0-9a-f]{8}/gpt-x", judge.model)
    gateway.add_model(judge.model, ScriptedModel(["nonsense"] * 4))
    score = await metric(CASE, BRIEF)
    assert "BadAnswerError: 'gpt-x' gave no usable answer in 4 tries" in str(score.error)
    assert "the last one is 'nonsense'" in str(score.error)


@pytest.mark.parametrize(
    ("judge", "problem"),
    [
        (f"{HERE}:strictt", "has no 'strictt'.*did you mean 'strict'"),
        ("no_such_module:judge", "the judge 'no_such_module:judge': cannot import 'no_such_module'"),
        (f"{HERE}:NOT_A_RUNNER", "is 3; give an agent, or a function from message to answer"),
        ({"model_name": f"{HERE}:strict", "generation_config": {"temperature": 0}}, "generation_config is for models"),
        (count_words, "is an agent or a function; name it as module:attr, or give it as judge= of build_metrics"),
    ],
)
def test_a_wrong_judge_is_found_before_anything_is_paid(judge: Json, problem: str) -> None:
    with pytest.raises(MetricError, match=rf"metrics\[0\].*: .*{problem}"):
        build(Gateway(), short(judge))


def test_a_judge_of_the_wrong_kind_is_found_when_metrics_are_built() -> None:
    wrong: Any = 42
    with pytest.raises(MetricError, match="the judge is 42; give an agent, or a function from message to answer"):
        build(Gateway(), short(), wrong)


JUDGE = GraphAgent(name="judge", nodes=(ModelNode(name="judge", instruction="Be strict.", model="nobody/knows"),))


@pytest.mark.slow
def test_the_models_of_a_judging_agent_are_checked_before_anything_is_paid() -> None:
    gateway = Gateway()
    evaluator = Evaluator(build_metrics(short(f"{HERE}:JUDGE"), gateway=gateway), gateway=gateway)
    with pytest.raises(RequestError, match="nobody/knows"):
        check_models(echo, evaluator)


def answer(request: ModelRequest) -> ModelReply:
    return ModelReply(text=verdict(True), usage=Usage(input_tokens=1, output_tokens=1))


@agent(instruction="Answer.")
async def echo(message: str) -> str:
    return message


@pytest.mark.slow
async def test_agents_and_functions_judge_in_other_processes_too() -> None:
    gateway = Gateway(models={"counter": ScriptedModel(answer)}, cache=MemoryCache())
    metrics = [*build_metrics(short(f"{HERE}:strict"), gateway=gateway)]
    metrics += build_metrics([{**short(f"{HERE}:count_words")[0], "metric_name": "counted"}], gateway=gateway)
    cases = EvalSet(id="s", cases=tuple(EvalCase(id=text, turns=(Turn(user=text),)) for text in ("a", "a b c")))
    with ProcessExecutor(workers=1) as executor:
        evaluator = Evaluator(metrics, gateway=gateway, executor=executor, options=EvaluationOptions())
        evaluation = await evaluator.evaluate(echo, cases)
    scores = {row.case_id: [score.value for score in row.scores] for row in evaluation.rows}
    assert scores == {"a": [1.0, 1.0], "a b c": [1.0, 0.0]}


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("The city agrees with the reference.", True),
        ("It says the same as the expected answer", True),
        ("It gives the correct answer.", True),
        ("最终给出的数字答案是否与参考答案一致（数值相同即视为通过）。", True),
        ("回答中是否给出清晰、可追溯的推理或计算步骤。", False),
        ("The answer says which it prefers, and states a preference.", False),
    ],
)
def test_a_rubric_speaks_of_the_reference(text: str, mentions: bool) -> None:
    assert mentions_reference(Rubric(id="r", text=text)) is mentions


@pytest.mark.parametrize(
    ("name", "rubric", "option", "shown", "needed"),
    [
        ("llm_rubric_response", "It agrees with the reference answer.", None, True, False),
        ("llm_rubric_critic", "It agrees with the reference answer.", None, True, False),
        ("llm_rubric_response", "It agrees with the reference answer.", False, False, False),
        ("llm_rubric_response", "It is polite.", None, False, False),
        ("llm_rubric_response", "It is polite.", True, True, True),
        ("llm_rubric_reference_critic", "It is polite.", None, True, True),
        ("llm_rubric_reference_critic", "It is polite.", False, True, True),
    ],
)
async def test_a_judge_is_shown_the_reference_if_a_rubric_or_the_metric_asks_for_it(
    name: str, rubric: str, option: bool | None, shown: bool, needed: bool
) -> None:
    gateway = counter(verdict(True), verdict(True))
    more = {} if option is None else {"show_reference": option}
    metric = build(gateway, short("counter", rubric=rubric, name=name, **more))
    assert metric.needs_reference is needed
    await metric(CASE, AgentRun(output="Rome"))
    rules, exchange = asked_of(gateway)[0].messages
    assert ('<data name="reference">\nIn Rome.\n</data>' in exchange.content) is shown
    assert ("The reference is" in rules.content) is shown

    without = EvalCase(id="c", turns=(Turn(user="Where?"),))
    score = await metric(without, AgentRun(output="Rome"))
    assert score.is_scored is not needed


def compare(question: str, answer: str) -> bool:
    return question == answer


def test_a_judge_is_a_function_of_one_message() -> None:
    wrong: Any = compare
    taken = re.escape("takes (question: 'str', answer: 'str') -> 'bool'; give a function of one message: (message)")
    with pytest.raises(SetupError, match=f"the judge {taken}"):
        build_metrics(short(), gateway=Gateway(), judge=wrong)
    with pytest.raises(SetupError, match=f"the judge '{HERE}:compare' {taken}"):
        build_metrics(short(f"{HERE}:compare"), gateway=Gateway())


class Down:
    """A model whose service refuses every call."""

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
        raise ModelTimeoutError("no answer in 60 s")


def lose_connection(_: str) -> Json:
    raise ConnectionResetError("reset by peer")


@agent(instruction="You count words.")
async def offline(_: str) -> Json:
    return lose_connection(surface("instruction"))


async def ask_counter(_: EvalCase, run: AgentRun) -> float:
    request = ModelRequest(model="counter", messages=(Message("user", run.output),))
    return float((await current_gateway().ask(request, CallSite(role="judge"))).text)


@pytest.mark.parametrize(
    "judge", ["counter", f"{HERE}:strict", f"{HERE}:offline", f"{HERE}:lose_connection", "own metric"]
)
async def test_a_run_whose_judge_is_out_of_service_is_lost_and_not_judged_badly(judge: str) -> None:
    gateway = Gateway(models={"counter": Down()}, retries=Retries(attempts=1))
    own = FunctionMetric(name="own", function=ask_counter)
    metrics = [own] if judge == "own metric" else build_metrics(short(judge), gateway=gateway)
    found = await Evaluator(metrics, gateway=gateway).evaluate(echo, EvalSet(id="s", cases=(CASE,)))
    (row,) = found.rows
    assert row.outage is not None
    assert (row.judge_error, row.setup_error) == (None, None)


@pytest.mark.parametrize("answer", ["nonsense", "The tool failed: RateLimitedError: try again later"])
async def test_a_judge_that_gives_no_usable_answer_is_not_an_outage(answer: str) -> None:
    gateway = counter(*[answer] * 4)
    found = await Evaluator(build_metrics(short("counter"), gateway=gateway), gateway=gateway).evaluate(
        echo, EvalSet(id="s", cases=(CASE,))
    )
    assert found.rows[0].outage is None
    assert found.rows[0].judge_error is not None
