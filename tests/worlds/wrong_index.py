"""A search tool whose description names the wrong index, behind a router that knows one desk only.

    router ──▶ shop
       └─────▶ help, which searches pages

Questions about prices are answered by `shop`. Those about returns and warranty belong to `help`, but only returns get
there. It calls the tool as its description says, and finds nothing: the pages are in another index. So a question about
the warranty passes only if both are fixed, and the description shows in questions about returns only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import Turn
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from tests.worlds.planted_world import Answer, PlantedWorld, make_exact_world
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults
from traces.model import Json

ROUTER = "Name the desk for a question: help for returns, otherwise shop."
SEARCH = "Searches the pages of an index. All pages are in the index catalogue."
ROUTE = "Questions about the warranty belong to help."
INDEX = "Pages about returns and warranty are in the index terms."
THINGS = {
    "lamp": (14, 24, 39),
    "kettle": (30, 12, 25),
    "desk": (60, 36, 180),
    "clock": (7, 18, 52),
    "chair": (21, 48, 95),
}
"""The days for a return, the months of the warranty, and the price of each thing."""
TOPICS = ("returns", "warranty", "price")
_QUESTION = re.compile(r"Question [\w ]+ about the (\w+): (\w+)\?")


def make_wrong_index_world(seed: int, *, slip: float = 0.0) -> PlantedWorld:
    """The desks. `slip` is the chance of a wrong answer."""
    return make_exact_world(
        "wrong index",
        make_turn,
        agent=_make_agent(),
        answer=make_task_model(slip=slip),
        fixes={"router#instruction": f"{ROUTER} {ROUTE}", "help#tool.search": f"{SEARCH.partition('. ')[0]}. {INDEX}"},
        knowledge=IndexKnowledge(),
        seed=seed,
    )


def make_turn(name: str, number: int, rng: Random) -> Turn:
    """A question about each topic in turn."""
    thing, topic = rng.choice(tuple(THINGS)), TOPICS[number % len(TOPICS)]
    return Turn(
        user=f"Question {name} {number} about the {thing}: {topic}?",
        expected=f"{topic}: {THINGS[thing][TOPICS.index(topic)]}",
    )


def search(index: str, text: str) -> dict[str, Json]:
    """Return the pages of an index that are about a text."""
    thing, topic = text.split()
    if (index == "terms") != (topic != "price"):
        return {"index": index, "pages": [], "other indexes": ["catalogue", "terms"]}
    return {"index": index, "pages": [f"{thing} {topic}: {THINGS[thing][TOPICS.index(topic)]}"]}


def make_task_model(*, slip: float) -> Answer:
    def answer(request: ModelRequest, rng: Random) -> ModelReply:
        instruction = request.messages[0].content
        user = next(each.content for each in request.messages if each.role == "user")
        [(thing, topic)] = _QUESTION.findall(user)
        slips = rng.random() < slip / 2
        if request.model == "router":
            belongs = topic == "returns" or (topic == "warranty" and ROUTE in instruction)
            return ModelReply(text="help" if belongs != slips else "shop")
        if request.model == "shop":
            known = topic == "price" and not slips
            return ModelReply(text=f"price: {THINGS[thing][2]}" if known else f"{topic}: unknown")
        results = [each.content for each in request.messages if each.role == "tool"]
        if not results:
            index = "terms" if any("index terms" in tool.description for tool in request.tools) else "catalogue"
            return ModelReply(tool_requests=(ToolRequest("1", "search", {"index": index, "text": f"{thing} {topic}"}),))
        found = re.findall(rf"{thing} {topic}: (\d+)", results[-1])
        return ModelReply(text=f"{topic}: {found[0] if found and not slips else 'unknown'}")

    return answer


@dataclass(frozen=True, slots=True)
class IndexKnowledge:
    """What an expert knows: shop knows prices only, and a search that finds no page looked in the wrong index."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:
        if step.output in ("shop", "help"):
            is_wrong = step.output == "shop" and not run.expected.startswith("price")
            return dict.fromkeys(step.blamable, Complaint(ROUTE, "route")) if is_wrong else {}
        missed = [call for call in step.calls if re.search(r'"?pages"?:\s*\[\s*\]', call)]
        tools = [alias for alias in step.blamable if "#tool." in surfaces[alias].id]
        return dict.fromkeys(tools, Complaint(INDEX, "wrong_tool")) if missed and "unknown" in step.output else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        return output == "shop" and not run.expected.startswith("price")

    def rewrite(self, prompt: OptimizePrompt) -> str:
        value = prompt.surface.value
        if INDEX in prompt.signal:
            return f"{value.partition('. ')[0]}. {INDEX}"
        return f"{value} {ROUTE}" if ROUTE in prompt.signal and ROUTE not in value else value

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:  # noqa: ARG002 - another action is needed
        return None


def _make_agent() -> GraphAgent:
    texts = {"type": "string"}
    schema = {"type": "object", "properties": {"index": texts, "text": texts}, "required": ["index", "text"]}
    tool = Tool(name="search", description=SEARCH, function=search, parameters=schema)
    shop, pages = "You are the shop. Answer with topic and number.", "You search pages. Answer with topic and number."
    return GraphAgent(
        name="questions",
        nodes=(
            ModelNode(name="router", model="router", instruction=ROUTER),
            ModelNode(name="shop", model="shop", instruction=shop, prompt="{input}"),
            ModelNode(name="help", model="help", instruction=pages, prompt="{input}", tools=(tool,)),
        ),
        edges=(Choice("router", _find_desk, {"shop": "shop", "help": "help"}),),
    )


def _find_desk(context: NodeContext) -> str:
    return str(context.incoming)
