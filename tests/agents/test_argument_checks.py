"""Wrong arguments of nodes, edges, agents and profiles: what is wrong, and what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice, Edge, FanOut, Join
from promptiter.agents.function import agent, ask, chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.errors import SetupError
from promptiter.profile import Profile


def find(order: str) -> str:
    return order


async def find_async(order: str) -> str:
    return order


def make_node(**arguments: Any) -> ModelNode:
    return ModelNode(**{"name": "bot", "instruction": "Answer.", **arguments})


def make_graph(edges: Any) -> GraphAgent:
    return GraphAgent(name="desk", nodes=(make_node(), make_node(name="end")), edges=edges)


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: make_node(prompt=3), "node 'bot': prompt is 3; give a text, such as '{input}'"),
    (
        lambda: make_node(tools=[find]),
        "node 'bot': tools has the function find; give a list of Tool(name=..., description=..., function=...)",
    ),
    (
        lambda: make_node(examples="Hi"),
        "node 'bot': examples is 'Hi'; give a list of Message('user', '...') of promptiter.llm",
    ),
    (lambda: make_node(models="gpt"), "node 'bot': models is 'gpt'; give a list of names of models"),
    (lambda: make_node(options=[1]), "node 'bot': options is [1]; give options by name, such as {'temperature': 0.2}"),
    (
        lambda: make_node(skills=["refunds"]),
        "node 'bot': skills is ['refunds']; give texts by name, such as {'refunds': '...'}",
    ),
    (
        lambda: make_node(parameters={"temperature": 0.1}),
        (
            "node 'bot': parameters has 'temperature': 0.1; give parameters by name, such as "
            "{'temperature': Parameter(value=0.2)}; what is not tuned is in options"
        ),
    ),
    (
        lambda: make_node(schema="ticket"),
        "node 'bot': schema is 'ticket'; give a JSON schema as a dict, or a pydantic model",
    ),
    (lambda: make_node(limits=900), "node 'bot': limits is 900; give Limits, such as Limits(max_chars=900)"),
    (
        lambda: Tool(name="find", description="Finds.", function="find"),  # type: ignore[arg-type]
        "tool 'find': function is 'find'; give a function",
    ),
    (
        lambda: Tool(name="find", description="Finds.", function=find, parameters=["order"]),  # type: ignore[arg-type]
        "tool 'find': parameters is ['order']; give a JSON schema, as a dict",
    ),
    (
        lambda: FunctionNode(name="look", function="find"),  # type: ignore[arg-type]
        "node 'look': function is 'find'; give a function",
    ),
    (
        lambda: FunctionNode(name="look", function=find, declared="Look."),  # type: ignore[arg-type]
        "node 'look': declared is 'Look.'; give surfaces by type, such as {'instruction': '...'}",
    ),
    (
        lambda: make_graph([("bot", "end")]),
        "agent 'desk': edges has ('bot', 'end'); give a list of edges, such as Edge('plan', 'answer')",
    ),
    (
        lambda: make_graph(Edge("bot", "end")),
        "agent 'desk': edges is Edge(source='bot', target='end'); give a list of edges, such as Edge('plan', 'answer')",
    ),
    (
        lambda: make_graph([Edge(find, "end")]),  # type: ignore[arg-type]
        "agent 'desk': an edge names the function find, which is not a node; known are bot, end",
    ),
    (
        lambda: Choice("bot", "end", {"end": "end"}),  # type: ignore[arg-type]
        "the choice after 'bot': route is 'end'; give a function of the context that returns a key of branches",
    ),
    (
        lambda: Choice("bot", lambda: "end", {"end": "end"}),  # type: ignore[arg-type,misc]
        "the choice after 'bot': route takes (); give a function of the context that returns a key of branches",
    ),
    (
        lambda: Choice("bot", partial(find_async, order="1"), {"end": "end"}),  # type: ignore[arg-type]
        (
            "the choice after 'bot': route is async; give a function of the context that returns a key of branches, "
            "without awaiting anything"
        ),
    ),
    (
        lambda: FanOut("bot", "end", items=lambda: ["a"]),  # type: ignore[arg-type,misc]
        "the fan-out after 'bot': items takes (); give a function of the context that returns a list",
    ),
    (
        lambda: Choice("bot", lambda _: "end", ["end"]),  # type: ignore[arg-type]
        "the choice after 'bot': branches is ['end']; give names of nodes by key, such as {'yes': 'answer'}",
    ),
    (
        lambda: Join("bot", "end"),  # type: ignore[arg-type]
        "the join before 'end': sources is 'bot'; give a list of names of nodes",
    ),
    (
        lambda: make_graph([FanOut("bot", "end")]),
        (
            "agent 'desk': the fan-out after 'bot' needs a list, but that node returns a text; make a list of it, such "
            "as items=lambda context: context.incoming.splitlines()"
        ),
    ),
    (
        lambda: GraphAgent(name="desk", nodes=[find]),  # type: ignore[arg-type]
        "agent 'desk': nodes has the function find; decorate a function with @node, or give a ModelNode",
    ),
    (lambda: chain("desk", make_node(name=3)), "agent 'desk': the name of a node is 3; give a text"),
    (lambda: chain(3, make_node()), "the name of an agent is 3; give a text"),  # type: ignore[arg-type]
    (
        lambda: chain("desk", make_node()).with_profile({"bot#instruction": "Hi."}),  # type: ignore[arg-type]
        (
            "{'bot#instruction': 'Hi.'} is not a profile; give a Profile, or the path of a profile file; "
            "Profile.of(agent.describe(), values) makes one of values"
        ),
    ),
    (
        lambda: Profile.of(chain("desk", make_node()).describe(), ["Hi."]),  # type: ignore[arg-type]
        "the values of a profile are ['Hi.']; give a dict from surface ids to values",
    ),
]


async def test_a_message_is_a_text_or_a_case() -> None:
    desk = chain("desk", make_node())
    with pytest.raises(SetupError, match="the message to 'desk' is 3; give a text, or a CaseInput"):
        await desk(3)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"the case for 'desk' is 'hi'; give a CaseInput, such as CaseInput\(text='hi"):
        await desk.run("hi")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"prompt": [{"role": "user", "content": "hi"}]},
            (
                "the prompt of ask() has {'role': 'user', 'content': 'hi'}; give a list of Message('user', '...') of "
                "promptiter.llm, or a text"
            ),
        ),
        ({"model": None}, "the model of ask() is None; give the name of a model"),
        ({"instruction": 3}, "the instruction of ask() is 3; give a text, such as surface('instruction')"),
    ],
)
async def test_wrong_arguments_of_ask_are_named(arguments: dict[str, Any], message: str) -> None:
    @agent(instruction="Answer.")
    async def bot(question: str) -> str:
        return await ask(**{"prompt": question, "model": "echo", **arguments})

    with pytest.raises(SetupError) as caught:
        await bot("hi")
    assert str(caught.value) == message


@pytest.mark.parametrize(("make", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_a_wrong_argument_is_named_with_what_to_write(make: Callable[[], object], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        make()
    assert str(caught.value) == message


def test_lists_are_as_good_as_tuples() -> None:
    tool = Tool(name="find", description="Finds.", function=find)
    graph = GraphAgent(
        name="desk",
        nodes=[make_node(tools=[tool], models=["simulated"]), make_node(name="end")],  # type: ignore[arg-type]
        edges=[Join(["bot"], "end")],  # type: ignore[arg-type]
    )
    assert "bot#tool.find" in graph.describe().surface_ids
