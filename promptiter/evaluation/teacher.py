"""The teacher: an agent, a function or a model that writes missing expected answers, once, before a run.

An agent runs with its own baseline, never with a candidate profile, so references do not change between candidates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.agents.base import CaseInput, RunContext
from promptiter.agents.runner import Runner, ask_runner, check_runner
from promptiter.errors import FATAL_ERRORS, RunnerError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest

GENERATED = "generated_expected"
"""The metadata key that lists the turns whose expected answer was written by a teacher."""

MAX_CONCURRENT_CASES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSet:
    """An eval set with the teacher's answers, and the cases that it failed on: (case id, error)."""

    eval_set: EvalSet
    errors: tuple[tuple[str, str], ...] = ()


async def write_expected_answers(eval_set: EvalSet, teacher: Runner | str, *, gateway: Gateway) -> LabelledSet:
    """Write the missing expected answers with an agent, a function, or the model of this name. Existing ones are kept.

    Scenarios and recorded conversations are not changed, nor are cases that the teacher fails on. Raises
    BudgetEndedError if the budget is spent, and SetupError if the teacher is set up wrongly.
    """
    slots = asyncio.Semaphore(MAX_CONCURRENT_CASES)
    teacher = teacher if isinstance(teacher, str) else check_runner(teacher, what="teacher")
    answer = _answer_with_model(teacher, gateway) if isinstance(teacher, str) else _answer_with_runner(teacher, gateway)

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
        if isinstance(result, FATAL_ERRORS) or not isinstance(result, Exception):
            raise result
        cases.append(case)
        errors.append((case.id, gateway.redactor.redact_text(_describe_error(result))))
    return LabelledSet(eval_set=replace(eval_set, cases=tuple(cases)), errors=tuple(errors))


_Answer: TypeAlias = Callable[[EvalCase, str, tuple[Message, ...]], Awaitable[str]]
"""Answers the user's message of a case, given the conversation so far."""


async def _label_case(case: EvalCase, answer: _Answer) -> EvalCase:
    missing = [index for index, turn in enumerate(case.turns) if turn.expected is None]
    if not missing or case.scenario is not None or case.mode == "trace":
        return case
    history = list(case.context)
    turns: list[Turn] = []
    for turn in case.turns[: missing[-1] + 1]:
        if turn.expected is None:
            text = await answer(case, turn.user, tuple(history))
            if not text.strip():
                raise RunnerError(f"the answer to turn {len(turns)} is empty")
            turn = replace(turn, expected=text)
        turns.append(turn)
        history += [Message("user", turn.user), Message("assistant", turn.expected or "")]
    before = case.metadata.get(GENERATED)
    marked = sorted({*(before if isinstance(before, list) else ()), *missing})
    return replace(case, turns=(*turns, *case.turns[len(turns) :]), metadata={**case.metadata, GENERATED: marked})


def _answer_with_runner(teacher: Runner, gateway: Gateway) -> _Answer:
    async def answer(case: EvalCase, text: str, history: tuple[Message, ...]) -> str:
        context = RunContext(case_id=case.id, seed=gateway.seed, role="teacher")
        message = CaseInput(text=text, history=history, state=case.state)
        return await ask_runner(teacher, message, context, gateway)

    return answer


def _answer_with_model(model: str, gateway: Gateway) -> _Answer:
    async def answer(case: EvalCase, text: str, history: tuple[Message, ...]) -> str:
        request = ModelRequest(model=model, messages=(*history, Message("user", text)))
        site = CallSite(role="teacher", case_id=case.id)
        return (await gateway.ask(request, site, node_id="teacher")).text

    return answer


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
