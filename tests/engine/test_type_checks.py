from __future__ import annotations

from typing import Any

import pytest

from promptiter.agents.function import node
from promptiter.agents.graph import GraphAgent
from promptiter.agents.runner import check_runner
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.engine.engine import Engine
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.offline import EvidenceAttributor
from promptiter.policies.acceptance import AnyGain, ComposablePolicy, MinGain
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stop_decision import StopDecision
from promptiter.policies.stopping import ComposableStop, MaxRounds, Patience, Progress, TargetScore
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import Watcher
from tests.worlds.desk_stages import Blames, Merges, Writes

ADVICE = "decorate it with @agent(instruction=...) from promptiter.agents"
AS_STOP = "give it as stop, and here an acceptance policy such as MinGain(0.005)"
AS_ACCEPTANCE = "give it as acceptance, and here a stop policy such as Patience(3)"


async def answer(question: str) -> str:
    return question


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (len, f"len is a plain function, not an agent; {ADVICE}"),
        (answer, f"answer is a plain function, not an agent; {ADVICE}"),
        (node()(answer), "answer is a node, not an agent; decorate it with @agent, or make one: chain('bot', answer)"),
        (GraphAgent, "GraphAgent is a class, not an agent; create an object of it: GraphAgent(...)"),
        ("my_agent:agent", "'my_agent:agent' is not an agent: it needs the methods describe and run; see GraphAgent"),
    ],
)
def test_what_is_not_an_agent_is_refused_with_advice(wrong: Any, message: str) -> None:
    with pytest.raises(SetupError) as caught:
        Engine(wrong, desk.evaluator())
    assert str(caught.value).startswith(message)


class AnswersText:
    def describe(self) -> StructureSnapshot:
        return desk.agent().describe()

    async def run(self, text: str) -> str:
        raise AssertionError(text)


class DescribesByName(AnswersText):
    def describe(self, name: str) -> StructureSnapshot:  # type: ignore[override]
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            AnswersText(),
            "AnswersText.run does not fit: too many positional arguments; define it as `async def run(self, case, ",
        ),
        (
            DescribesByName(),
            "DescribesByName.describe does not fit: missing a required argument: 'name'; define it as `def describe(",
        ),
    ],
)
def test_an_agent_whose_methods_take_other_arguments_is_refused_also_as_a_judge(wrong: Any, message: str) -> None:
    for give in (lambda: Engine(wrong, desk.evaluator()), lambda: check_runner(wrong, what="judge")):
        with pytest.raises(SetupError) as caught:
            give()
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((Writes(), None, None), "an object of class Writes is an optimizer, not a backwarder; give it as optimizer="),
        ((Blames, None, None), "Blames is a class, not a backwarder; create an object of it: Blames(...)"),
        (
            (EvidenceAttributor, None, None),
            "EvidenceAttributor is a class, not an attributor; create an object of it: EvidenceAttributor(...)",
        ),
        ((None, "gpt-5", None), "'gpt-5' is not an aggregator; give LLMAggregator('gpt-5')"),
        ((None, None, "gpt-5"), "'gpt-5' is not an optimizer; give LLMOptimizer('gpt-5')"),
        (
            (None, "my_parts:merge", None),
            "'my_parts:merge' is not an aggregator: it needs `def aggregate(self, request)`",
        ),
        (
            (None, None, Merges()),
            "an object of class Merges is an aggregator, not an optimizer; give it as aggregator=",
        ),
    ],
)
def test_a_stage_in_the_wrong_place_is_refused_with_advice(stages: Any, message: str) -> None:
    with pytest.raises(SetupError) as caught:
        Engine(desk.agent(), desk.evaluator(), *stages)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (EvaluationOptions, {"repeats": "3"}, "repeats is '3'; give a whole number of at least 1"),
        (EvaluationOptions, {"concurrency": 0}, "concurrency is 0; give a whole number of at least 1"),
        (EvaluationOptions, {"case_timeout_s": -1}, "case_timeout_s is -1; give seconds above 0, or None for no"),
        (EvaluationOptions, {"max_errored_fraction": 25}, "max_errored_fraction is 25; give a share from 0 to 1"),
        (Evaluator, {"gateway": {"m": len}}, "the gateway of an Evaluator is {'m': <built-in function len>}; give"),
        (Evaluator, {"options": {"repeats": 2}}, "the options of an Evaluator are {'repeats': 2}; give Evaluation"),
        (Evaluator, {"executor": "threads"}, "the executor of an Evaluator is 'threads'; give one, such as Thread"),
        (
            Evaluator,
            {"executor": AnswersText()},
            "AnswersText.run does not fit: too many positional arguments; define ",
        ),
        (FunctionMetric, {"name": "x", "function": 5}, "metric 'x' needs a function of (case, run), not 5: "),
        (FunctionMetric, {"name": "x", "function": id}, "metric 'x' needs a function of (case, run), not the fun"),
        (Gateway, {"models": {"m": 5}}, "the model 'm' is 5; give a function of the messages, or a model, such"),
        (Gateway, {"models": ["own"]}, "the models of a gateway are ['own']; give your own models by name, such as {"),
        (Gateway, {"budget": 5}, "the budget of a gateway is 5; give a Budget, such as Budget(max_usd=2)"),
        (Gateway, {"cache": "memory"}, "the cache of a gateway is 'memory'; give open_cache('memory')"),
        (Gateway, {"concurrency": 0}, "concurrency is 0; give a whole number of at least 1"),
        (Budget, {"max_usd": "5"}, "max_usd is '5'; give a finite number that is not negative, or None for no cap"),
        (FinalTest, {"repeats": 2.5}, "repeats of the final test is 2.5; give a whole number of at least 1"),
        (MinGain, {"min_gain": 5}, "min_gain is 5; give a number from 0 to 1, such as 0.005"),
        (LLMBackwarder, {"model": 5}, "the model of LLMBackwarder is 5; give a name that litellm knows, or one of the"),
        (
            Profile.baseline,
            {"snapshot": desk.agent()},
            "a profile is for a structure, and this is a GraphAgent; give agent.",
        ),
        (EvalCase, {"id": "c", "turns": ({"user": "hi"},)}, "case 'c' has the turn {'user': 'hi'}; give a Turn, as in"),
    ],
)
def test_a_wrong_argument_is_refused_where_it_is_given(make: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        make(**arguments)
    assert str(caught.value).startswith(message)


async def test_what_an_evaluation_needs_is_checked_before_anything_is_paid() -> None:
    evaluator, cases = desk.evaluator(Gateway(models={"scripted": ScriptedModel([])})), desk.eval_set("test", 1)
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((answer, cases), f"answer is a plain function, not an agent; {ADVICE}"),
        ((desk.agent(), "c.jsonl"), "the eval set is 'c.jsonl'; give an EvalSet; load_eval_set('c.jsonl') reads one"),
        ((desk.agent(), cases, {}), "the profile is {}; give a Profile, such as Profile.load('best.json')"),
    ]
    for arguments, message in wrong:
        with pytest.raises(SetupError) as caught:
            await evaluator.evaluate(*arguments)
        assert str(caught.value).startswith(message)


def test_metrics_are_no_evaluator() -> None:
    metric: Any = FunctionMetric(name="careful", function=desk.score)
    with pytest.raises(
        SetupError, match=r"the evaluator is \[FunctionMetric.*; give an Evaluator, such as Evaluator\("
    ):
        Engine(desk.agent(), [metric])  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"the metrics of an Evaluator are FunctionMetric.*; give a list"):
        Evaluator(metric)
    with pytest.raises(SetupError) as caught:
        Evaluator(desk.score)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "the metrics of an Evaluator are the function score; give a list: [FunctionMetric(name=..., function=...)], or "
        "build_metrics()"
    )
    with pytest.raises(SetupError, match="'contains' is not a metric; give FunctionMetric"):
        Evaluator(["contains"])  # type: ignore[list-item]


class StopsNever(ComposableStop):
    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002
        return StopDecision(False)


class AcceptsLater:
    async def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.accept("later")


class AcceptsUnasked:
    def decide(self) -> AcceptanceDecision:
        raise AssertionError


class StopsByTwo:
    def decide(self, progress: Progress, limit: int) -> StopDecision:
        raise AssertionError(progress, limit)


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"acceptance": Patience(2)},
        f"acceptance has Patience(2), which is a stop policy; {AS_STOP}",
    ),
    (
        {"acceptance": MinGain(0.1) & Patience(2)},  # type: ignore[operator]
        f"acceptance has Patience(2), which is a stop policy; {AS_STOP}",
    ),
    (
        {"acceptance": StopsNever()},
        f"acceptance has StopsNever(), which is a stop policy; {AS_STOP}",
    ),
    (
        {"stop": MinGain(0.1)},
        f"stop has MinGain(0.1), which is an acceptance policy; {AS_ACCEPTANCE}",
    ),
    ({"stop": "never"}, "stop is 'never'; give a stop policy, such as Patience(3), with the method decide"),
    (
        {"acceptance": AcceptsLater()},
        "acceptance has AcceptsLater(), whose decide is async; write it with def",
    ),
    (
        {"acceptance": MinGain(0.1) & AcceptsUnasked()},  # type: ignore[operator]
        (
            "acceptance has AcceptsUnasked(), whose decide does not fit: too many positional arguments; define it as "
            "`def decide(self, evidence)`"
        ),
    ),
    (
        {"stop": StopsByTwo()},
        (
            "stop has StopsByTwo(), whose decide does not fit: missing a required argument: 'limit'; define it as "
            "`def decide(self, progress)`"
        ),
    ),
    (
        {"stop": TargetScore(95) | Patience(2)},
        "target_score is 95, but mean_score is from 0 to 1; give a number in that range, such as 0.95 for 95%",
    ),
    (
        {"stop": TargetScore(-1), "objective": "weighted_loss"},
        "target_score is -1, but weighted_loss is from 0 to 1; give a number in that range",
    ),
    (
        {"test": "oops"},
        "test is 'oops'; give an EvalSet, or a list of them; load_eval_set('oops') reads one from a file",
    ),
    ({"final_test": True}, "final_test is True; give a FinalTest, such as FinalTest(repeats=2), or None"),
    ({"targets": [1]}, "targets holds 1; give surface ids, such as 'planner#instruction'"),
    ({"hints": None}, "hints is None; give a tuple of LossHint"),
    ({"run_id": 5}, "run_id is 5; give a text"),
    ({"seed": "a"}, "seed is 'a'; give a whole number"),
    ({"max_rounds": True}, "max_rounds is True; give a whole number"),
    ({"evaluation": 5}, "evaluation is 5; give EvaluationOptions, such as EvaluationOptions(repeats=2)"),
    ({"protected": "validation-0"}, "protected is 'validation-0'; give frozenset(['validation-0'])"),
    (
        {"initial_profile": {}},
        "initial_profile is {}; give a Profile, such as Profile.load('best.json') or Profile.of(structure, values)",
    ),
    ({"teacher": 5}, "teacher is 5; give a model name, an agent, or a function from message to answer"),
    ({"judge": 5}, "judge is 5; give a model name, an agent, or a function from message to answer"),
    ({"judge": isinstance}, "the judge takes (obj, class_or_tuple, /); give a function of one message: (message)"),
    (
        {"train": [{"input": "a"}]},
        "train is [{'input': 'a'}]; give an EvalSet, or a list of them; build_eval_set('name', rows) makes one of rows",
    ),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[message.split(";")[0] for _, message in WRONG])
async def test_a_wrong_value_in_a_request_is_refused_before_anything_is_paid(
    fields: dict[str, Any], message: str
) -> None:
    gateway = Gateway(models={"scripted": ScriptedModel([])})  # any call fails
    with pytest.raises(RequestError) as caught:
        await desk.engine(gateway=gateway).run(desk.request(**fields))
    assert caught.value.problems == (message,)


async def test_a_wrong_request_observer_or_structure_is_refused_before_anything_is_paid() -> None:
    gateway = Gateway(models={"scripted": ScriptedModel([])})
    engine = desk.engine(gateway=gateway)
    with pytest.raises(SetupError, match=r"the request is \{'train': 1\}; give a RunRequest"):
        await engine.run({"train": 1})  # type: ignore[arg-type]
    with pytest.raises(
        SetupError, match=r"the function print is not an observer: it needs `def observe\(self, event\)`"
    ):
        await engine.run(desk.request(), observers=[print])  # type: ignore[list-item]

    with pytest.raises(SetupError, match="observers is an object of class Watcher; give a list of objects with"):
        await engine.run(desk.request(), observers=Watcher())  # type: ignore[arg-type]
    with pytest.raises(
        SetupError, match=r"the journal is 'j.jsonl', which lacks append, read, last, reader; give a Jo"
    ):
        await engine.run(desk.request(), journal="j.jsonl")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="5 is not a reviewer: it needs `def review"):
        await engine.run(desk.request(), reviewer=5)  # type: ignore[arg-type]

    class Vague:
        def describe(self) -> StructureSnapshot:
            return None  # type: ignore[return-value]

        async def run(self, case: object, profile: object, context: object) -> None: ...

    with pytest.raises(SetupError, match=r"Vague\.describe\(\) returned None; return a StructureSnapshot"):
        await Engine(Vague(), desk.evaluator()).run(desk.request())  # type: ignore[arg-type]


class Mine(ComposablePolicy):
    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.accept_if((evidence.gain or 0) > 0, "mine")


class MyStop(ComposableStop):
    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002
        return StopDecision(False)


async def test_policies_of_ones_own_compose_from_both_sides() -> None:
    request = desk.request(
        acceptance=(Mine() & Mine()) | (Mine() & MinGain(0.1)) | (AnyGain() & Mine()),
        stop=MyStop() | (MyStop() & MaxRounds(1)) | (MaxRounds(9) & MyStop()),
    )
    assert repr(request.stop) == "MyStop() | MyStop() & MaxRounds(1) | MaxRounds(9) & MyStop()"
    result = await desk.engine(desk.DRAFT, desk.POLISH).run(request)
    assert (result.verdict, len(result.rounds)) == ("improved_on_validation", 2)
    assert result.rounds[0].decision is not None
    assert result.rounds[0].decision.reason.startswith("mine")


async def test_a_stop_policy_that_returns_something_else_is_named() -> None:
    class Always:
        def decide(self, progress: Any) -> bool:  # noqa: ARG002
            return True

    with pytest.raises(Exception, match=r"Always\(\) answered True; return a StopDecision"):
        await desk.engine(desk.DRAFT).run(desk.request(stop=Always()))
