from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.function import agent, ask
from promptiter.agents.surface_scope import surface
from promptiter.errors import BudgetEndedError, ModelUnavailableError, UnexpectedCallError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Scenario, Turn
from promptiter.evaluation.teacher import write_expected_answers
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.redaction import Redactor
from promptiter.llm.retries import Retries
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import Failure


def case(*turns: tuple[str, str | None], case_id: str = "c1") -> EvalCase:
    return EvalCase(id=case_id, turns=tuple(Turn(user=user, expected=expected) for user, expected in turns))


def eval_set(*cases: EvalCase) -> EvalSet:
    return EvalSet(id="set", cases=cases)


def echo(request: ModelRequest) -> str:
    return f"answer to {request.messages[-1].content}"


@agent(instruction="Be exact.")
async def tutor(question: str) -> str:
    return await ask(question, instruction=surface("instruction"), model="m")


async def test_a_model_writes_missing_answers_and_keeps_the_rest() -> None:
    model = ScriptedModel(echo)
    gateway = Gateway(models={"m": model})
    given = replace(
        case(("one", None), ("two", "given"), ("three", None), ("four", "last")),
        context=(Message("user", "before"),),
        metadata={"topic": "sums"},
    )
    taught = await write_expected_answers(eval_set(given), "m", gateway=gateway)
    (done,) = taught.eval_set.cases
    assert [turn.expected for turn in done.turns] == ["answer to one", "given", "answer to three", "last"]
    assert done.metadata == {"topic": "sums", "generated_expected": [0, 2]}
    assert taught.errors == ()
    assert model.requests[1].messages == (
        Message("user", "before"),
        Message("user", "one"),
        Message("assistant", "answer to one"),
        Message("user", "two"),
        Message("assistant", "given"),
        Message("user", "three"),
    )
    assert gateway.ledger.snapshot().by_role()["teacher"].calls == 2


async def test_complete_cases_scenarios_and_recordings_are_not_changed() -> None:
    cases = (
        case(("one", "1")),
        EvalCase(id="s", scenario=Scenario(starting_prompt="hi", plan="buy")),
        replace(case(("one", None), case_id="t"), mode="trace", actual=(Turn(user="one", expected="said"),)),
    )
    taught = await write_expected_answers(eval_set(*cases), "m", gateway=Gateway(models={"m": ScriptedModel([])}))
    assert taught.eval_set.cases == cases


async def test_answers_are_written_once_and_then_come_from_the_cache() -> None:
    model = ScriptedModel(echo)
    gateway = Gateway(models={"m": model})
    cases = eval_set(case(("one", None)))
    first = await write_expected_answers(cases, "m", gateway=gateway)
    assert await write_expected_answers(cases, "m", gateway=gateway) == first
    assert len(model.requests) == 1
    await write_expected_answers(cases, "m", gateway=gateway.with_seed(1))
    assert len(model.requests) == 2
    again = await write_expected_answers(first.eval_set, "m", gateway=gateway)
    assert again.eval_set == first.eval_set


async def test_an_agent_as_teacher_runs_with_its_own_baseline_and_role() -> None:
    model = ScriptedModel(echo)
    gateway = Gateway(models={"m": model})
    taught = await write_expected_answers(eval_set(case(("one", None))), tutor, gateway=gateway)
    assert taught.eval_set.cases[0].turns[0].expected == "answer to one"
    assert model.requests[0].messages[0] == Message("system", "Be exact.")
    assert list(gateway.ledger.snapshot().by_role()) == ["teacher"]


class Recorded:
    """Notes how it was run; fails on one question, and raises on another."""

    def __init__(self) -> None:
        self.seen: list[tuple[CaseInput, Profile, RunContext]] = []

    def describe(self) -> StructureSnapshot:
        return tutor.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        self.seen.append((case, profile, context))
        match case.text:
            case "fail":
                return AgentRun(error=Failure("ValueError", "the key canary-value is wrong"))
            case "raise":
                raise KeyError("oops")
            case "empty":
                return AgentRun(output=" \n")
        return AgentRun(output="fine")


async def test_a_failing_teacher_leaves_its_case_without_reference_and_is_reported() -> None:
    teacher = Recorded()
    cases = (
        case(("one", None), ("fail", None), case_id="a"),
        case(("one", None), case_id="b"),
        case(("raise", None), case_id="c"),
        case(("empty", None), case_id="d"),
    )
    gateway = Gateway(redactor=Redactor(["canary-value"]))
    taught = await write_expected_answers(eval_set(*cases), teacher, gateway=gateway.with_seed(3))
    assert [done == given for done, given in zip(taught.eval_set.cases, cases, strict=True)] == [
        True,
        False,
        True,
        True,
    ]
    assert taught.errors == (
        ("a", "ValueError: the key *** is wrong"),
        ("c", "KeyError: 'oops'"),
        ("d", "the answer to turn 0 is empty"),
    )
    assert all(profile == Profile.baseline(tutor.describe()) for _, profile, _ in teacher.seen)
    assert {(context.role, context.seed, context.repeat) for _, _, context in teacher.seen} == {("teacher", 3, 0)}


class Down:
    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - a Model is given both
        raise ModelUnavailableError("503")


async def test_a_model_that_is_down_is_reported() -> None:
    gateway = Gateway(models={"m": Down()}, retries=Retries(attempts=1))
    given = eval_set(case(("one", None)))
    taught = await write_expected_answers(given, "m", gateway=gateway)
    assert taught.eval_set == given
    assert taught.errors == (("c1", "ModelUnavailableError: 'm' failed 1 times, last: 503"),)


@pytest.mark.parametrize("teacher", ["m", tutor])
async def test_a_spent_budget_and_an_unexpected_call_end_labelling(teacher: object) -> None:
    cases = eval_set(case(("one", None)), case(("two", "given"), case_id="c2"))
    with pytest.raises(UnexpectedCallError):
        await write_expected_answers(cases, teacher, gateway=Gateway(models={"m": ScriptedModel([])}))  # type: ignore[arg-type]
    spent = Gateway(models={"m": ScriptedModel(echo)}, budget=Budget(max_tokens=10))
    with pytest.raises(BudgetEndedError):
        await write_expected_answers(cases, teacher, gateway=spent)  # type: ignore[arg-type]
