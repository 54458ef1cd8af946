"""Traces and requests for the tests of blame from evidence: written by hand, or made by agents of simulated models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.loss import category_of
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.metrics.builtin import FinalResponseMetric
from promptiter.evaluation.metrics.criteria import FinalResponseCriterion
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.metrics.text_match import TextCriterion, compare_text
from promptiter.evaluation.score import Finding
from promptiter.llm.gateway import Gateway
from promptiter.offline.attribution.attributor import EvidenceAttributor
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.profile import Profile
from promptiter.stages.contracts import AttributeRequest, BackwardResult, Peer, SurfaceGradient
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from traces import ExecutionTrace, Snapshot, Step
from traces.canonical_order import sort_canonically

JSON = FinalResponseMetric(name="json", criterion=FinalResponseCriterion(json=JsonCriterion()))
EXACT = FinalResponseMetric(name="exact", criterion=FinalResponseCriterion(text=TextCriterion()))


def step(step_id: str, given: str, output: str, *, after: str = "", **more: Any) -> Step:
    """A step of the node that its id names: `planner~2` is one of `planner`."""
    return Step(
        id=step_id,
        node_id=step_id.partition("~")[0],
        kind="llm",
        predecessors=tuple(after.split()),
        input=Snapshot(given),
        output=Snapshot(output),
        **more,
    )


def chain(*texts: str) -> list[Step]:
    """Steps n1, n2, … of which each is given what the one before it made; the first text is the request."""
    return [
        step(f"n{at}", given, output, after=f"n{at - 1}" if at > 1 else "")
        for at, (given, output) in enumerate(pairwise(texts), 1)
    ]


def trace(steps: Iterable[Step]) -> ExecutionTrace:
    return ExecutionTrace(id="t", steps=sort_canonically(tuple(steps)))


def request(
    steps: Sequence[Step],
    expected: str | None,
    *,
    findings: Sequence[Finding] | None = None,
    at: str = "",
    instructions: Mapping[str, str] | None = None,
    surfaces: Sequence[Surface] = (),
    targets: Iterable[str] | None = None,
    peers: Sequence[Peer] = (),
    category: Any = None,
    edges: Sequence[StructureEdge] = (),
    said: str | None = None,
) -> AttributeRequest:
    """A failed trace whose nodes have one instruction each; without findings, its last output is compared exactly."""
    ran = trace(steps)
    last = ran.steps[-1]
    if findings is None:
        assert expected is not None
        findings = compare_text(last.output.text or "", expected, TextCriterion())
    texts = {each.node_id: "" for each in ran.steps} | dict(instructions or {})
    all_surfaces = (*(Surface(node_id=name, type="instruction", value=text) for name, text in texts.items()), *surfaces)
    nodes = tuple(Node(id=name, kind="llm") for name in texts)
    snapshot = StructureSnapshot(nodes=nodes, edges=tuple(edges), surfaces=all_surfaces)
    loss = Loss(
        metric="m",
        step_id=at or last.id,
        severity="P0",
        category=category or category_of(findings),
        text="it is wrong",
        score=0.0,
        expected=expected,
        findings=tuple(findings),
    )
    given = said if said is not None else ran.steps[0].input.text or ""
    return AttributeRequest(
        case_loss=CaseLoss(case_id="c1", input=given, trace_digest="d", losses=(loss,)),
        trace=ran,
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(snapshot.surface_ids if targets is None else targets),
        peers=tuple(peers),
    )


def peer(steps: Sequence[Step], *, passed: bool = True, expected: str | None = None, case_id: str = "p") -> Peer:
    return Peer(case_id=case_id, trace=trace(steps), passed=passed, expected=expected)


async def attribute(asked: AttributeRequest) -> list[BackwardResult]:
    return await EvidenceAttributor().attribute(asked)


async def gradients(asked: AttributeRequest) -> list[SurfaceGradient]:
    return [gradient for result in await attribute(asked) for gradient in result.gradients]


async def blamed(asked: AttributeRequest) -> list[str]:
    """The surfaces that are blamed, each once, in the order of the trace."""
    return list(dict.fromkeys(gradient.surface_id for gradient in await gradients(asked)))


REQUESTS = (
    {"order_id": "A-17", "date": "2026-03-02", "amount": 49.9, "city": "Berlin", "request": "The kettle is broken."},
    {
        "order_id": "B-04",
        "date": "2026-01-15",
        "amount": 120,
        "city": "Oslo",
        "request": "I want a refund for my lamp.",
    },
    {"order_id": "C-33", "date": "2025-12-24", "amount": 1399.5, "city": "Rome", "request": "The desk has a scratch."},
    {"order_id": "D-51", "date": "2026-02-28", "amount": 75.25, "city": "Lima", "request": "Please change my address."},
    {"order_id": "E-90", "date": "2026-05-06", "amount": 18, "city": "Kyoto", "request": "The shoes are too small."},
)
CARRY = "Pass all fields on."
LAZY = "You are a clerk."


def model_chain(instructions: Mapping[str, str]) -> GraphAgent:
    names = list(instructions)
    return GraphAgent(
        name="chain",
        nodes=tuple(ModelNode(name=name, instruction=text) for name, text in instructions.items()),
        edges=tuple(Edge(source, target) for source, target in pairwise(names)),
    )


async def blamed_in_runs(good: GraphAgent, bad: GraphAgent, metric: Metric) -> dict[str, int]:
    """In how many runs of the bad agent each surface is blamed; references are what the good agent answers.

    The models are simulated and always comply.
    """
    done: list[tuple[EvalCase, AgentRun, bool]] = []
    with Gateway(models={"simulated": SimulatedModel(compliance=1.0)}).active():
        for number, fields in enumerate(REQUESTS):
            text = json.dumps(fields)
            answer = await _run(good, text, f"c{number}")
            case = EvalCase(id=f"c{number}", turns=(Turn(user=text, expected=answer.output),))
            run = await _run(bad, text, f"c{number}")
            done.append((case, run, (await metric(case, run)).passed))
    counts: dict[str, int] = {}
    for case, run, passed in done:
        if passed:
            continue
        peers = [_peer(other, ran, has_passed) for other, ran, has_passed in done if other.id != case.id]
        asked = await _failed(bad, case, run, metric=metric, peers=peers)
        for surface_id in await blamed(asked):
            counts[surface_id] = counts.get(surface_id, 0) + 1
    return counts


async def _run(agent: GraphAgent, text: str, case_id: str) -> AgentRun:
    done = await agent.run(CaseInput(text=text), Profile.baseline(agent.describe()), RunContext(case_id=case_id))
    assert done.error is None
    return done


def _peer(case: EvalCase, run: AgentRun, passed: bool) -> Peer:
    assert run.trace is not None
    return Peer(case_id=case.id, trace=run.trace, passed=passed, expected=case.turns[0].expected)


async def _failed(
    agent: GraphAgent, case: EvalCase, run: AgentRun, *, metric: Metric, peers: Sequence[Peer]
) -> AttributeRequest:
    assert run.trace is not None
    score = await metric(case, run)
    snapshot = agent.describe()
    followed = {source for each in run.trace.steps for source in each.predecessors}
    loss = Loss(
        metric=metric.name,
        step_id="",
        severity="P0",
        category=category_of(score.findings),
        text=score.reason,
        expected=case.turns[0].expected,
        findings=score.findings,
    )
    ends = [each.id for each in run.trace.steps if each.id not in followed]
    losses = tuple(replace(loss, step_id=end) for end in ends)
    return AttributeRequest(
        case_loss=CaseLoss(case_id=case.id, input=case.turns[0].user, trace_digest="d", losses=losses),
        trace=run.trace,
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(snapshot.surface_ids),
        peers=tuple(peers),
    )
