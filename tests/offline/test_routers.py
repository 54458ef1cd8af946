"""Whole runs of routers with a tool in one branch, with the stages that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pytest

from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.runlog.results import RunResult
from traces.model import Json

Row: TypeAlias = Mapping[str, Json]

TITLES = ("Emma", "Dune", "Solaris", "Walden", "Candide", "Rebecca")
SHELVES = {title: 11 * number for number, title in enumerate(TITLES, 1)}
BOOKS: list[Row] = [
    {
        "input": f"Where do I find it? (title: {title})",
        "expected": str(shelf),
        "tool_calls": [{"name": "find_shelf", "arguments": {"title": title}}],
    }
    for title, shelf in SHELVES.items()
]
CARDS: list[Row] = [
    {"input": f"I want to renew it. (reader: {name}; place: P-{number})", "expected": f"P-{number}", "tool_calls": []}
    for number, name in enumerate(["Ada", "Ben", "Cleo", "Dora", "Emil", "Fay"], 31)
]


class Library(NamedTuple):
    """The instructions of the nodes; the right ones by default."""

    desk: str = 'Answer "catalog" if the input mentions "title". Otherwise answer "members".'
    catalog: str = "Answer. Call the find_shelf tool."
    members: str = "Answer. Include the place."
    tool: str = "Finds a book."
    default: str = "members"

    def build(self) -> GraphAgent:
        def route(context: NodeContext) -> str:
            answer: str = context.outputs["desk"]
            return answer if answer in ("catalog", "members") else self.default

        find_shelf = Tool(
            name="find_shelf",
            description=self.tool,
            function=lambda title: f"It is on shelf {SHELVES.get(title, 0)}.",
            parameters={"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        )
        return GraphAgent(
            name="library",
            nodes=(
                ModelNode(name="desk", instruction=self.desk),
                ModelNode(name="catalog", instruction=self.catalog, prompt="{input}", tools=(find_shelf,)),
                ModelNode(name="members", instruction=self.members, prompt="{input}"),
            ),
            edges=(Choice("desk", route, {"catalog": "catalog", "members": "members"}),),
        )


async def optimize(library: Library, *, targets: Sequence[str] | None = None) -> RunResult:
    evaluator = Evaluator(
        build_metrics([{"metric_name": "contains"}, {"metric_name": "tool_trajectory"}]),
        gateway=Gateway(models={"simulated": SimulatedModel(compliance=1.0)}),
    )
    request = RunRequest(
        train=build_eval_set("train", BOOKS[:3] + CARDS[:3]),
        validation=build_eval_set("validation", BOOKS[3:] + CARDS[3:]),
        targets=targets,
        final_test=None,
    )
    return await Engine(library.build(), evaluator).run(request)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "changed"),
    [
        pytest.param(
            Library(desk='Answer "catalog" if the input mentions "magazine". Otherwise answer "members".'),
            {"desk#instruction"},
            id="the branch with the tool is missed",
        ),
        pytest.param(
            Library(
                desk='Answer "members" if the input mentions "fee". Otherwise answer "catalog".', default="catalog"
            ),
            {"desk#instruction"},
            id="the branch without a tool is missed",
        ),
        pytest.param(
            Library(desk='Answer "catalog" if the input mentions "reader". Otherwise answer "members".'),
            {"desk#instruction"},
            id="the branches are swapped",
        ),
        pytest.param(Library(catalog="Answer."), {"catalog#instruction"}, id="the tool is not called"),
        pytest.param(Library(members="Answer."), {"members#instruction"}, id="a field is left out"),
        pytest.param(
            Library(
                desk='Answer "members" if the input mentions "fee". Otherwise answer "catalog".',
                catalog="Answer.",
                default="catalog",
            ),
            {"desk#instruction", "catalog#instruction"},
            id="two faults in a row",
        ),
    ],
)
async def test_each_fault_of_a_router_is_fixed_where_it_is(library: Library, changed: set[str]) -> None:
    result = await optimize(library)
    assert (result.baseline_score or 0.0) < 1.0
    assert (result.accepted_score, set(result.accepted_profile.overrides)) == (1.0, changed)


async def test_the_description_of_a_tool_is_fixed_if_it_is_the_only_target() -> None:
    result = await optimize(Library(catalog="Answer.", tool="Service 7."), targets=["catalog#tool.find_shelf"])
    assert result.accepted_score == 1.0
    assert dict(result.accepted_profile.overrides) == {
        "catalog#tool.find_shelf": "Service 7. Use this tool when the input gives the title."
    }
