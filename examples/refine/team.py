"""An editor plans an answer to a customer, and a writer writes it. The models are functions, so it runs offline."""

from __future__ import annotations

from promptiter import AgentRun, Edge, EvalCase, GraphAgent, ModelNode

FACTS = {
    "price": "The kettle costs 49 EUR.",
    "delivery": "It arrives within two days.",
    "returns": "You can return it within 30 days.",
}


def edit(messages: list[dict[str, str]]) -> str:
    """The editor's model: it plans the topics that the message is about."""
    asked = messages[-1]["content"].lower()
    return "Topics: " + ", ".join(topic for topic in FACTS if topic in asked)


def write(messages: list[dict[str, str]]) -> str:
    """The writer's model: one sentence about each topic of the plan."""
    return " ".join(text for topic, text in FACTS.items() if topic in messages[-1]["content"])


agent = GraphAgent(
    name="team",
    nodes=(
        ModelNode(name="editor", model="editor-model", instruction="Plan which topics the answer is about."),
        ModelNode(name="writer", model="writer-model", instruction="Write one sentence about each topic."),
    ),
    edges=(Edge("editor", "writer"),),
)


def complete(_case: EvalCase, run: AgentRun) -> tuple[float, str]:
    """A metric: whether a customer learns all that matters."""
    missing = [topic for topic, text in FACTS.items() if text not in run.output]
    return 1 - len(missing) / len(FACTS), f"the customer does not learn about {', '.join(missing)}" if missing else ""
