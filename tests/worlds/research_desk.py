"""A small research desk as a graph agent: plan, retrieve and compose in parallel, review, rewrite once, finalize.

Its cases and metrics are in `research_desk_data`.
"""

from __future__ import annotations

from promptiter import Edge, FunctionNode, GraphAgent, ModelNode
from promptiter.agents import Choice, Join, NodeContext

MODEL = "simulated"
ORDERS = {
    "A-17": "order id: A-17\nproduct: kettle\nordered: 2026-03-02\namount: 49.9",
    "B-04": "order id: B-04\nproduct: lamp\nordered: 2026-01-15\namount: 120",
    "C-33": "order id: C-33\nproduct: desk\nordered: 2025-12-24\namount: 1399.5",
}


def retrieve(input: str) -> str:  # noqa: A002 - parameters are named after what they get
    """Look up the order that the question names."""
    return next((record for order_id, record in ORDERS.items() if order_id in input), "no such order")


def route(context: NodeContext) -> str:
    """Rewrite the question once, unless the review accepts the draft."""
    is_done = context.visits("rewrite") == 1 or "ACCEPT" in context.outputs["reviewer"]
    return "finalize" if is_done else "need_revision"


agent = GraphAgent(
    name="research_desk",
    nodes=(
        ModelNode(name="planner", model=MODEL, instruction="Restate the question in one sentence."),
        FunctionNode(name="retrieve", function=retrieve, kind="tool"),
        ModelNode(name="compose", model=MODEL, instruction="Draft a polite answer."),
        ModelNode(
            name="reviewer",
            model=MODEL,
            instruction="Say what the draft is missing.",
            prompt="{retrieve}\n\nDraft: {compose}",
        ),
        ModelNode(name="rewrite", model=MODEL, instruction="Turn the review into a sharper question."),
        ModelNode(
            name="finalize",
            model=MODEL,
            instruction="Answer the customer.",
            prompt="{retrieve}\n\nquestion: {input}",
        ),
    ),
    edges=(
        Edge("planner", "retrieve"),
        Edge("planner", "compose"),
        Join(("retrieve", "compose"), "reviewer"),
        Choice("reviewer", route, {"need_revision": "rewrite", "finalize": "finalize"}),
        Edge("rewrite", "planner"),
    ),
)
