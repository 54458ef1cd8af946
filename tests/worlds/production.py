"""A world in production: its agent has answered many questions, and only spans of a foreign convention are left.

The spans are those of OpenTelemetry's GenAI conventions: `invoke_agent` for a node, with a `chat` span for each model
call and `execute_tool` for each call of a tool. Nothing of promptiter is in them: no step ids, links or predecessors.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from promptiter.agents.edges import Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import CaseRow
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from tests.worlds.planted_world import PlantedWorld
from traces import ExecutionTrace, Step

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Production:
    """What was recorded: the rows with their scores, which nobody in production sees, and the traces, by case."""

    world: PlantedWorld
    cases: EvalSet
    rows: tuple[CaseRow, ...]
    traces: dict[str, ExecutionTrace]

    def write_spans(self, path: Path) -> None:
        """Write the traces as OTLP/JSON lines, one run a line, a minute apart."""
        structure = self.world.agent.describe()
        with path.open("w") as file:
            for number, row in enumerate(self.rows):
                spans = list_spans(self.traces[row.case_id], structure, number=number)
                request = {
                    "resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {"name": "app"}, "spans": spans}]}]
                }
                file.write(json.dumps(request) + "\n")

    def write_feedback(self, path: Path, *, share: float, seed: int = 0) -> None:
        """Write what users said about a share of the runs: a thumb, and of bad ones what was wrong and expected."""
        rng = Random(seed)
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["trace_id", "rating", "comment", "expected"])
            expected = {case.id: case.turns[0].expected for case in self.cases.cases}
            for number, row in enumerate(self.rows):
                if rng.random() < share:
                    reasons = "; ".join(score.reason for score in row.scores if not score.passed)
                    wanted = "" if row.passed else expected[row.case_id]
                    writer.writerow([make_trace_id(number), "up" if row.passed else "down", reasons, wanted])


async def run_in_production(world: PlantedWorld, cases: EvalSet) -> Production:
    """Run the agent with its faults on these cases."""
    evaluator = world.build_evaluator()
    evaluation = await evaluator.evaluate(world.agent, cases, Profile.baseline(world.agent.describe()))
    traces = {row.case_id: await evaluator.trace_store.get(row.trace_digests[0]) for row in evaluation.rows}
    return Production(world=world, cases=cases, rows=evaluation.rows, traces=traces)


def change_node(agent: GraphAgent, name: str, *, new_name: str, added: str) -> GraphAgent:
    """The agent after some time: a node has another name, and its instruction a sentence more."""
    nodes = [
        replace(
            node,
            name=new_name if node.name == name else node.name,
            instruction=f"{node.instruction} {added}" if node.name == name else node.instruction,
            prompt=node.prompt and node.prompt.replace(f"{{{name}}}", f"{{{new_name}}}"),
        )
        for node in agent.nodes
        if isinstance(node, ModelNode)
    ]

    def rename(each: str) -> str:
        return new_name if each == name else each

    edges = [
        Join(tuple(map(rename, edge.sources)), rename(edge.target))
        if isinstance(edge, Join)
        else Edge(rename(edge.source), rename(edge.target))
        for edge in agent.edges
        if isinstance(edge, Edge | Join)
    ]
    return GraphAgent(name=agent.name, nodes=tuple(nodes), edges=tuple(edges))


def make_trace_id(number: int) -> str:
    return f"{number + 1:032x}"


def list_spans(trace: ExecutionTrace, structure: StructureSnapshot, *, number: int) -> list[dict[str, Any]]:
    """The spans of a run. Steps start when the last of their predecessors ends, and last as long as their text."""
    trace_id, ids = make_trace_id(number), iter(range(number * 1000 + 1, number * 1000 + 1000))
    root = f"{next(ids):016x}"
    spans: list[dict[str, Any]] = []
    ends: dict[str, int] = {}
    began = START + number * 60 * SECOND
    for at, step in enumerate(trace.steps):
        start = max((ends[source] for source in step.predecessors), default=began) + 1_000_000
        ends[step.id] = start + SECOND + at * 10_000_000
        spans += _list_step_spans(step, structure, trace_id, root, ids, start, ends[step.id])
    spans.append(_make_span(trace_id, root, "", "invoke_workflow app", began, max(ends.values()) + 1_000_000, {}))
    return spans


def _list_step_spans(
    step: Step, structure: StructureSnapshot, trace_id: str, parent: str, ids: Iterable[int], start: int, end: int
) -> list[dict[str, Any]]:
    numbers = iter(ids)
    node, chat = f"{next(numbers):016x}", f"{next(numbers):016x}"
    surfaces = {each.type: each for each in structure.surfaces_of(step.node_id) if each.type != "tool"}
    tools = [each for each in structure.surfaces_of(step.node_id) if each.type == "tool"]
    asked: list[dict[str, Any]] = [_say("user", _text(step.input.text))]
    calls = [
        {"type": "tool_call", "id": f"c{at}", "name": call.name, "arguments": call.arguments}
        for at, call in enumerate(step.tool_calls)
    ]
    if calls:
        answers = [
            {"type": "tool_call_response", "id": f"c{at}", "response": call.result}
            for at, call in enumerate(step.tool_calls)
        ]
        asked += [{"role": "assistant", "parts": calls}, {"role": "tool", "parts": answers}]
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "some-model",
        "gen_ai.system_instructions": json.dumps([_text(surfaces["instruction"].value)]),
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([_say("assistant", _text(step.output.text))]),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
    }
    if tools:
        attributes["gen_ai.tool.definitions"] = json.dumps(
            [
                {"type": "function", "name": each.part, "description": each.value, "parameters": dict(each.arguments)}
                for each in tools
            ]
        )
    found = [_make_span(trace_id, chat, node, "chat some-model", start + (end - start) // 2, end - 1, attributes)]
    for at, call in enumerate(step.tool_calls):
        found.append(
            _make_span(
                trace_id,
                f"{next(numbers):016x}",
                node,
                f"execute_tool {call.name}",
                start + 10 + at,
                start + (end - start) // 3,
                {
                    "gen_ai.operation.name": "execute_tool",
                    "gen_ai.tool.name": call.name,
                    "gen_ai.tool.call.id": f"c{at}",
                    "gen_ai.tool.call.arguments": json.dumps(call.arguments),
                    "gen_ai.tool.call.result": json.dumps(call.result),
                },
            )
        )
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": step.node_id}
    return [*found, _make_span(trace_id, node, parent, f"invoke_agent {step.node_id}", start, end, agent)]


def _say(role: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def _text(content: object) -> dict[str, Any]:
    return {"type": "text", "content": content or ""}


def _make_span(
    trace_id: str, span_id: str, parent: str, name: str, start: int, end: int, attributes: dict[str, Any]
) -> dict[str, Any]:
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": parent,
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": [{"key": key, "value": _write_value(value)} for key, value in attributes.items()],
        "status": {},
    }


def _write_value(value: object) -> dict[str, Any]:
    return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": str(value)}
