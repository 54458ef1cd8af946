"""Surfaces that no case run reads: patching them cannot change anything."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.record import get_passes
from promptiter.cli.views.run import print_end
from promptiter.engine.engine import Engine
from promptiter.profile import Profile
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.summary import summarize
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import DRAFT, Tries
from tests.worlds.desk_stages import Writes


def build_desk_with_lawyer(*, is_asked: bool = False) -> GraphAgent:
    """A desk with a third node, which only some questions reach."""
    usual = desk.agent()

    def route(node_context: NodeContext) -> str:
        return "lawyer" if is_asked and "question 0" in node_context.input else "polish"

    lawyer = ModelNode(name="lawyer", instruction="Check: careful.", model="scripted")
    choice = Choice("draft", route, {"lawyer": "lawyer", "polish": "polish"})
    return GraphAgent(name="desk", nodes=(*usual.nodes, lawyer), edges=(choice, Edge("lawyer", "polish")))


@pytest.mark.slow
async def test_surfaces_that_no_run_reads_are_reported_and_never_patched() -> None:
    class BlamesTheLawyer:
        async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
            step = request.trace.steps[-1].id
            gradients = [
                SurfaceGradient(surface_id=f"{name}#instruction", case_id="", step_id=step, text="be careful")
                for name in ("lawyer", "polish")
            ]
            return [BackwardResult(step_id=step, gradients=tuple(gradients))]

    agent, journal = build_desk_with_lawyer(), MemoryJournal()
    engine = Engine(agent, desk.evaluator(), BlamesTheLawyer(), None, Writes())
    result = await engine.run(desk.request(), journal=journal)
    assert result.unread_surfaces == ("lawyer#instruction",)
    assert RunResult.from_json(result.to_json()).unread_surfaces == result.unread_surfaces
    blamed = {
        signal.surface_id
        for each in result.rounds
        for one in get_passes(each)
        for signal in (*one.signals, *one.below_support)
    }
    assert blamed == {"polish#instruction"}
    assert fold(journal.events) == result
    part = MemoryJournal()
    for event in list(journal.events)[:9]:
        await part.append(event)
    again = Engine(agent, desk.evaluator(), BlamesTheLawyer(), None, Writes())
    assert await again.run(desk.request(), journal=part) == result


async def test_a_surface_that_one_run_reads_is_not_unread() -> None:
    result = await Engine(build_desk_with_lawyer(is_asked=True), desk.evaluator(), search=Tries(DRAFT)).run(
        desk.request()
    )
    assert result.unread_surfaces == ()


async def test_no_surface_is_unread_if_reads_are_unknown() -> None:
    class Opaque:
        """The desk, but its traces do not record what its last node read."""

        def describe(self) -> StructureSnapshot:
            return build_desk_with_lawyer().describe()

        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
            found = await build_desk_with_lawyer().run(case, profile, context)
            assert found.trace is not None
            steps = (*found.trace.steps[:-1], replace(found.trace.steps[-1], surface_reads=None))
            return replace(found, trace=replace(found.trace, steps=steps))

    result = await Engine(Opaque(), desk.evaluator(), search=Tries(DRAFT)).run(desk.request())
    assert result.unread_surfaces == ()


async def test_after_an_undeclared_read_no_surface_is_reported_as_unread() -> None:
    journal = MemoryJournal()
    await Engine(build_desk_with_lawyer(), desk.evaluator(), search=Tries(DRAFT)).run(desk.request(), journal=journal)
    events = list(journal.events)
    assert fold(events[:-1]).unread_surfaces == ("lawyer#instruction",)
    for found, dead in (([], ("lawyer#instruction",)), ([{"node_id": "draft", "case_id": "validation-0"}], ())):
        audit = events[-1].model_copy(update={"type": "audit", "data": {"undeclared": found}})
        assert fold([*events[:-1], audit]).unread_surfaces == dead


async def test_the_problems_and_the_summary_name_what_was_never_read() -> None:
    result = await Engine(build_desk_with_lawyer(), desk.evaluator(), search=Tries(DRAFT)).run(desk.request())
    problem = "never read: lawyer#instruction; a patch there cannot change anything"
    assert result.problems == (problem,)
    screen = Console(file=StringIO(), width=120)
    print_end(screen, summarize(result))
    assert isinstance(screen.file, StringIO)
    shown = screen.file.getvalue().splitlines()
    assert [line for line in shown if "never read" in line] == [f"  problem: {problem}"]
