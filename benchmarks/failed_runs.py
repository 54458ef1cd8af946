"""Failed runs of agents of any size, which the backward pass is measured on: a trace of a given graph and its loss.

Every node has an instruction of its own and reads what its predecessors returned, as the nodes of a real agent do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from random import Random
from typing import TypeAlias

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.text_match import TextCriterion
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.search.replays import ReplayContext
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import ExecutionTrace, Step
from traces.model import Snapshot

Graph: TypeAlias = Mapping[str, tuple[str, ...]]
"""The predecessors of each step, in the order of execution."""

MAX_NODES = 1_000
"""Longer traces visit their nodes repeatedly."""

SAID = "Where is my order A-1000, and what did the carrier say about it?"
EXPECTED = "Your order A-1000 arrives on Friday; the carrier was told to ring twice."


class RecordedAgent:
    """An agent whose every run has the given graph. Its answer is that of the last step, and never the expected one."""

    def __init__(self, graph: Graph) -> None:
        nodes = [f"clerk_{number}" for number in range(min(len(graph), MAX_NODES))]
        self.structure = StructureSnapshot(
            nodes=tuple(Node(id=node) for node in nodes),
            surfaces=tuple(Surface(node_id=node, type="instruction", value=write_instruction(node)) for node in nodes),
        )
        outputs = {step_id: write_output(number) for number, step_id in enumerate(graph)}
        steps = [
            Step(
                id=step_id,
                node_id=node,
                kind="llm",
                predecessors=sources,
                input=Snapshot(text="\n".join(outputs[each] for each in sources) or SAID),
                output=Snapshot(text=outputs[step_id]),
                surface_reads={f"{node}#instruction": "digest"},
            )
            for number, (step_id, sources) in enumerate(graph.items())
            for node in [nodes[number % len(nodes)]]
        ]
        self.answer = outputs[steps[-1].id]
        self.trace = ExecutionTrace(id="run", steps=tuple(steps))

    def describe(self) -> StructureSnapshot:
        return self.structure

    def can_substitute(self, node_id: str) -> bool:  # noqa: ARG002 - any node of a recorded run can be replayed
        return True

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002 - recorded
        return AgentRun(output=self.answer, trace=self.trace)


async def fail(graph: Graph, gateway: Gateway) -> ReplayContext:
    """Evaluate an agent of this graph on one case, which fails."""
    agent = RecordedAgent(graph)
    metric = FinalResponseMetric(name="right", criterion=FinalResponseCriterion(text=TextCriterion()))
    evaluator = Evaluator([metric], gateway=gateway)
    eval_set = EvalSet(id="failed", cases=(EvalCase(id="case", turns=(Turn(user=SAID, expected=EXPECTED),)),))
    profile = Profile.baseline(agent.structure)
    evaluation = await evaluator.evaluate(agent, eval_set, profile)
    return ReplayContext(agent=agent, evaluator=evaluator, eval_set=eval_set, evaluation=evaluation, profile=profile)


def write_instruction(node: str) -> str:
    return (
        f"You are {node}, one of the clerks of a shipping desk. Read what the clerks before you wrote about the order. "
        "Keep the number of the order, the day of arrival and what the carrier was told; leave out small talk. Answer "
        "in one sentence, without greeting."
    )


def write_output(number: int) -> str:
    return (
        f"Note {number}: the order A-1000 was handed to carrier {number % 7} at gate {number}, is due in the next days "
        "and nobody has asked about it since."
    )


def make_chain(size: int) -> Graph:
    ids = [f"s{number}" for number in range(size)]
    return {ids[0]: (), **{after: (before,) for before, after in pairwise(ids)}}


def make_fan(size: int) -> Graph:
    """One step, parallel steps after it, and one that joins them."""
    branches = [f"branch[{number}]" for number in range(size - 2)]
    return {"split": (), **dict.fromkeys(branches, ("split",)), "join": tuple(branches)}


def make_layers(size: int) -> Graph:
    """Layers of 10 to 50 steps (smaller in small graphs), each with two or three edges back to the layer before."""
    rng = Random(size)
    widest = min(50, max(2, size // 5))
    graph: dict[str, tuple[str, ...]] = {}
    before: list[str] = []
    while len(graph) < size:
        width = min(rng.randint(min(10, widest), widest), size - len(graph))
        layer = [f"s{len(graph) + number}" for number in range(width)]
        graph |= {step_id: tuple(rng.sample(before, min(len(before), rng.choice((2, 3))))) for step_id in layer}
        before = layer
    return graph


SHAPES: Mapping[str, Callable[[int], Graph]] = {"chain": make_chain, "wide": make_fan, "layered": make_layers}
