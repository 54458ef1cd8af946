"""Replays with substitutes: steps before one are free, steps after it use its output."""

from __future__ import annotations

from typing import Any

from promptiter.agents.base import SUBSTITUTED, AgentRun, CaseInput, RunContext, Substitute, SubstitutingAgent
from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice, Edge, FanOut, Join
from promptiter.agents.function import agent, chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from traces import Step


class Echo:
    """A model that answers with its name around the prompt, and counts its calls."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.model = ScriptedModel(self._answer)

    def _answer(self, request: ModelRequest) -> str:
        name, text = request.messages[0].content, request.messages[-1].content
        self.asked.append(name)
        return f"{name}({text})"


def echo(name: str, **options: Any) -> ModelNode:
    return ModelNode(name=name, instruction=name, model="echo", **options)


async def run(subject: GraphAgent, echoes: Echo, *substitutes: Substitute, turn: int = 0) -> AgentRun:
    with Gateway(models={"echo": echoes.model}).active():
        context = RunContext(case_id="c", turn=turn, substitutes=substitutes)
        return await subject.run(CaseInput(text="hi"), Profile.baseline(subject.describe()), context)


def steps(done: AgentRun) -> dict[str, Step]:
    assert done.trace is not None
    return {step.id: step for step in done.trace.steps}


async def test_a_substituted_step_is_not_executed_and_is_marked() -> None:
    echoes = Echo()
    subject = chain("three", echo("a"), echo("b"), echo("c"))
    done = await run(subject, echoes, Substitute(step_id="b", output="given"))
    assert done.output == "c(given)"
    assert echoes.asked == ["a", "c"]
    given = steps(done)["b"]
    assert given.attributes[SUBSTITUTED] is True
    assert (given.input.text, given.output.text) == ("a(hi)", "given")
    assert (given.surface_reads, given.usage, given.predecessors) == ({}, None, ("a",))
    assert SUBSTITUTED not in steps(done)["c"].attributes


async def test_one_visit_of_a_loop_can_be_substituted() -> None:
    echoes = Echo()
    subject = GraphAgent(
        name="loop",
        nodes=(echo("draft"), echo("review"), echo("end")),
        edges=(
            Edge("draft", "review"),
            Choice("review", lambda context: "end" if "ok" in str(context.outputs["review"]) else "draft", _SAME),
        ),
    )
    done = await run(subject, echoes, Substitute(step_id="review~2", output="ok"))
    assert [*steps(done)] == ["draft", "review", "draft~2", "review~2", "end"]
    assert done.output == "end(ok)"


_SAME = {"end": "end", "draft": "draft"}


async def test_one_item_of_a_fan_out_and_one_branch_of_a_join_can_be_substituted() -> None:
    echoes = Echo()
    subject = GraphAgent(
        name="wide",
        nodes=(
            FunctionNode(name="plan", function=_items),
            echo("search"),
            echo("side"),
            FunctionNode(name="merge", function=_merged),
        ),
        edges=(FanOut("plan", "search"), Edge("plan", "side"), Join(("search", "side"), "merge")),
    )
    done = await run(
        subject, echoes, Substitute(step_id="search[1]", output="given"), Substitute(step_id="side", output="beside")
    )
    assert done.output == "search(x), given, search(z) and beside"
    assert sorted(echoes.asked) == ["search", "search"]
    given = await run(subject, echoes, Substitute(step_id="plan", output=["only"]))
    assert given.output.startswith("search(only) and side(")


def _items(node_context: NodeContext) -> list[str]:
    return ["x", "y", "z"] if node_context.input else []


def _merged(node_context: NodeContext) -> str:
    return f"{', '.join(node_context.outputs['search'])} and {node_context.outputs['side']}"


async def test_a_step_with_tools_calls_none_when_it_is_substituted() -> None:
    called: list[str] = []

    def script(request: ModelRequest) -> ModelReply:
        if request.messages[-1].role == "user":
            return ModelReply(text="", tool_requests=(ToolRequest(id="1", name="look", arguments={}),))
        return ModelReply(text="looked")

    node = ModelNode(
        name="finder",
        instruction="look",
        model="echo",
        tools=(Tool(name="look", description="looks", function=lambda: called.append("look")),),
    )
    subject = chain("tools", node)
    with Gateway(models={"echo": ScriptedModel(script)}).active():
        profile = Profile.baseline(subject.describe())
        assert (await subject.run(CaseInput(text="q"), profile, RunContext())).output == "looked"
        substitutes = (Substitute(step_id="finder", output="known"),)
        done = await subject.run(CaseInput(text="q"), profile, RunContext(substitutes=substitutes))
    assert (done.output, done.tool_calls, called) == ("known", (), ["look"])


async def test_a_nested_agent_or_one_of_its_steps_can_be_substituted() -> None:
    echoes = Echo()
    subject = chain("outer", echo("first"), chain("inner", echo("a"), echo("b")), echo("last"))
    one = await run(subject, echoes, Substitute(step_id="inner/a", output="given"))
    assert one.output == "last(b(given))"
    whole = await run(subject, echoes, Substitute(step_id="inner", output="given"))
    assert whole.output == "last(given)"
    assert "inner/a" not in steps(whole)


async def test_a_substitute_is_for_its_turn_alone() -> None:
    subject, substitute = chain("one", echo("a")), Substitute(step_id="a", output="given", turn=1)
    assert (await run(subject, Echo(), substitute, turn=0)).output == "a(hi)"
    assert (await run(subject, Echo(), substitute, turn=1)).output == "given"


async def test_a_run_cannot_change_a_substitute() -> None:
    kept = ["x"]
    subject = GraphAgent(
        name="careless",
        nodes=(FunctionNode(name="plan", function=_nothing), FunctionNode(name="spoil", function=_spoil)),
        edges=(Edge("plan", "spoil"),),
    )
    await run(subject, Echo(), Substitute(step_id="plan", output=kept))
    assert kept == ["x"]


def _nothing(node_context: NodeContext) -> list[str]:
    return [] if node_context.input else ["x"]


def _spoil(plan: list[str]) -> str:
    plan.append("y")
    return "done"


def _is_right(case: EvalCase, run: AgentRun) -> bool:
    return run.output == f"d(c({case.turns[0].expected}))"


async def test_a_replay_pays_only_for_steps_after_the_substitute() -> None:
    echoes, subject = Echo(), chain("four", *map(echo, "abcd"))
    metric = FunctionMetric(name="right", function=_is_right)
    evaluator = Evaluator([metric], gateway=Gateway(models={"echo": echoes.model}))
    case = EvalCase(id="c", turns=(Turn(user="hi", expected="right"),))
    profile = Profile.baseline(subject.describe())
    first = await evaluator.replay(subject, case, profile, repeat=0, substitutes=())
    assert (first.scores[0].value, first.measured.paid_calls) == (0.0, 4)
    substitutes = (Substitute(step_id="b", output="right"),)
    for paid, known in ((2, 1), (0, 3)):
        row = await evaluator.replay(subject, case, profile, repeat=0, substitutes=substitutes)
        assert row.scores[0].value == 1.0
        assert (row.measured.paid_calls, row.measured.cache_hits) == (paid, known)
    same = await evaluator.replay(
        subject, case, profile, repeat=0, substitutes=(Substitute(step_id="b", output="b(a(hi))"),)
    )
    assert (same.output, same.measured.paid_calls) == (first.output, 0)


def test_only_nodes_of_the_graph_can_be_substituted() -> None:
    @agent(instruction="x")
    async def plain(text: str) -> str:
        return text

    assert isinstance(plain, SubstitutingAgent)
    assert plain.can_substitute("plain")
    assert not plain.can_substitute("plain/recorded_inside")

    class Opaque:
        describe = GraphAgent.describe
        run = GraphAgent.run

    assert not isinstance(Opaque(), SubstitutingAgent)
