"""The same agent as a graph, as scripts in two languages and as a service: same steps, same result."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.llm.cache.cache import MemoryCache
from promptiter.policies.final_test import FinalTest
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from tests.worlds.planted_world import PlantedWorld, WorldOutcome, optimize_world
from tests.worlds.triage_forms import FORMS, make_form
from tests.worlds.triage_world import make_triage_world


def describe_steps(run: AgentRun) -> list[Any]:
    assert run.trace is not None
    return [
        (
            step.id,
            step.node_id,
            step.kind,
            step.predecessors,
            step.sources,
            step.input,
            step.output,
            [(call.name, call.arguments, call.result) for call in step.tool_calls],
        )
        for step in run.trace.steps
    ]


async def run_cases(world: PlantedWorld, agent: Agent, count: int) -> list[AgentRun]:
    found = []
    for values in ({}, world.fixes):
        profile = Profile.of(agent.describe(), dict(values))
        for case in world.train.cases[:count]:
            given = CaseInput(text=case.turns[0].user)
            found.append(await agent.run(given, profile, RunContext(case_id=case.id)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_traces_have_the_same_steps_as_those_of_a_graph(form: str) -> None:
    world = make_triage_world(0)

    async def compare() -> None:
        with make_form(form) as agent, world.build_evaluator().gateway.active():
            expected = await run_cases(world, world.agent, 4)
            found = await run_cases(world, agent, 4)
        assert [run.error for run in found] == [None] * 8
        assert [run.output for run in found] == [run.output for run in expected]
        assert list(map(describe_steps, found)) == list(map(describe_steps, expected))

    asyncio.run(compare())


def summarize(result: RunResult) -> Any:
    values = {change.surface_id: change.after for change in result.changes}
    return values, result.verdict, result.status


async def optimize(form: str | None, cache: MemoryCache) -> WorldOutcome:
    world = make_triage_world(0)
    if form is None:
        return await optimize_world(world, final_test=FinalTest(), cache=cache)
    with make_form(form) as agent:
        return await optimize_world(world, final_test=FinalTest(), agent=agent, cache=cache)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_a_run_has_the_same_result_and_a_second_one_is_answered_from_the_cache(form: str) -> None:
    graph = asyncio.run(optimize(None, MemoryCache()))
    cache = MemoryCache()
    first = asyncio.run(optimize(form, cache))
    assert summarize(first.result) == summarize(graph.result)
    assert first.changed == make_triage_world(0).faulty
    again = asyncio.run(optimize(form, cache))
    assert summarize(again.result) == summarize(first.result)
    assert first.task.calls > 0
    assert again.task.calls == 0
