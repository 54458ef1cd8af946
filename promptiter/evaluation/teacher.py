"""The teacher: an agent, a function or a model that writes missing expected answers, once, before a run.

An agent runs with its own baseline, never with a candidate profile, so references do not change between candidates.
`TeacherAgent` answers the cases in place of the agent, to see what the teacher itself reaches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.runner import Runner, ask_runner, check_runner
from promptiter.errors import FATAL_ERRORS, RunnerError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest
from promptiter.profile import Profile
from promptiter.structure import Node, StructureSnapshot

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

    async def answer(case: EvalCase, text: str, history: tuple[Message, ...]) -> str:
        context = RunContext(case_id=case.id, seed=gateway.seed, role="teacher")
        return await _ask_teacher(
            teacher, CaseInput(text=text, history=history, state=case.state), context, gateway=gateway
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
        if isinstance(result, FATAL_ERRORS) or not isinstance(result, Exception):
            raise result
        cases.append(case)
        errors.append((case.id, gateway.redactor.redact_text(_describe_error(result))))
    return LabelledSet(eval_set=replace(eval_set, cases=tuple(cases)), errors=tuple(errors))


@dataclass(frozen=True, slots=True)
class TeacherAgent:
    """A teacher that is a model or a function, as an agent that has no surfaces."""

    teacher: Runner | str
    gateway: Gateway

    def describe(self) -> StructureSnapshot:
        return StructureSnapshot(nodes=(Node(id="teacher"),), entry="teacher", name="teacher")

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        asked = replace(context, role="teacher")
        return AgentRun(output=await _ask_teacher(self.teacher, case, asked, gateway=self.gateway))


def has_generated_references(case: EvalCase) -> bool:
    """Whether a teacher wrote expected answers of a case."""
    return bool(case.metadata.get(GENERATED))


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


async def _ask_teacher(teacher: Runner | str, message: CaseInput, context: RunContext, *, gateway: Gateway) -> str:
    if not isinstance(teacher, str):
        return await ask_runner(teacher, message, context, gateway)
    request = ModelRequest(model=teacher, messages=(*message.history, Message("user", message.text)))
    site = CallSite(role=context.role, case_id=context.case_id, repeat=context.repeat)
    return (await gateway.ask(request, site, node_id="teacher")).text


def _describe_error(error: Exception) -> str:
    return str(error) if isinstance(error, RunnerError) else f"{type(error).__name__}: {error}"
