"""The teacher: an agent or a model that writes missing expected answers, once, before a run.

It always runs with its own baseline, never with a candidate profile, so references do not change between candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.agents.base import Agent, CaseInput, RunContext, run_agent
from promptiter.errors import BudgetEndedError, PromptiterError, SetupError, UnexpectedCallError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest
from promptiter.profile import Profile

GENERATED = "generated_expected"
"""The metadata key that lists the turns whose expected answer was written by a teacher."""

MAX_CONCURRENT_CASES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """An eval set with the teacher's answers, and the cases that it failed on: (case id, error)."""

    eval_set: EvalSet
    errors: tuple[tuple[str, str], ...] = ()


async def write_expected_answers(eval_set: EvalSet, teacher: Agent | str, *, gateway: Gateway) -> LabelledSet:
    """Write the missing expected answers with an agent, or with the model of this name. Existing answers are kept.

    Scenarios and recorded conversations are not changed, nor are cases that the teacher fails on. Raises
    BudgetEndedError if the budget is spent, and SetupError if the teacher is set up wrongly.
    """
    slots = asyncio.Semaphore(MAX_CONCURRENT_CASES)
    answer = (
        _answer_with_model(teacher, gateway)
        if isinstance(teacher, str)
        else _answer_with_agent(teacher, seed=gateway.seed)
    )

    async def label_case(case: EvalCase) -> EvalCase:
        async with slots:
            return await _label_case(case, answer)

    with gateway.active():
        results = await asyncio.gather(*map(label_case, eval_set.cases), return_exceptions=True)
    cases, errors = [], []
    for case, result in zip(eval_set.cases, results, strict=True):
        if isinstance(result, EvalCase):
            cases.append(result)
            continue
        if isinstance(result, _ENDING) or not isinstance(result, Exception):
            raise result
        cases.append(case)
        errors.append((case.id, gateway.redactor.redact_text(_describe_error(result))))
    return LabelledSet(eval_set=replace(eval_set, cases=tuple(cases)), errors=tuple(errors))


AnswerFunction: TypeAlias = Callable[[EvalCase, str, tuple[Message, ...]], Awaitable[str]]
"""Answers the user's message of a case, given the conversation so far."""

_ENDING = (BudgetEndedError, UnexpectedCallError, SetupError)


class _TeacherFailedError(PromptiterError):
    """The teacher has no answer; the message says why."""


async def _label_case(case: EvalCase, answer: AnswerFunction) -> EvalCase:
    missing = [index for index, turn in enumerate(case.turns) if turn.expected is None]
    if not missing or case.scenario is not None or case.mode == "trace":
        return case
    history = list(case.context)
    turns: list[Turn] = []
    for turn in case.turns[: missing[-1] + 1]:
        if turn.expected is None:
            text = await answer(case, turn.user, tuple(history))
            if not text.strip():
                raise _TeacherFailedError(f"the answer to turn {len(turns)} is empty")
            turn = replace(turn, expected=text)
        turns.append(turn)
        history += [Message("user", turn.user), Message("assistant", turn.expected or "")]
    before = case.metadata.get(GENERATED)
    marked = sorted({*(before if isinstance(before, list) else ()), *missing})
    return replace(case, turns=(*turns, *case.turns[len(turns) :]), metadata={**case.metadata, GENERATED: marked})


def _answer_with_agent(agent: Agent, *, seed: int) -> AnswerFunction:
    profile = Profile.baseline(agent.describe())

    async def answer(case: EvalCase, text: str, history: tuple[Message, ...]) -> str:
        context = RunContext(case_id=case.id, seed=seed, role="teacher")
        asked = CaseInput(text=text, history=history, state=case.state)
        run = await run_agent(agent, asked, profile, context)
        if run.error is not None:
            raise _TeacherFailedError(str(run.error))
        return run.output

    return answer


def _answer_with_model(model: str, gateway: Gateway) -> AnswerFunction:
    async def answer(case: EvalCase, text: str, history: tuple[Message, ...]) -> str:
        request = ModelRequest(model=model, messages=(*history, Message("user", text)))
        site = CallSite(role="teacher", case_id=case.id)
        return (await gateway.ask(request, site, node_id="teacher")).text

    return answer


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, _TeacherFailedError) else f"{type(error).__name__}: {error}"
