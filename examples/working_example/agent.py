"""A support desk with branches, a join and a loop.

                ┌─ retrieve ─┐
    planner ────┤            ├── reviewer ──── finalize
       ▲        └─ compose ──┘       │ need_revision
       └──────────── rewrite ◀───────┘

The instruction of the planner names every field of a request but the amount, so every answer lacks the amount. The
planner is the first node, and the failure shows at the last one.
"""

from promptiter import Edge, FunctionNode, GraphAgent, ModelNode
from promptiter.agents import Choice, Join, NodeContext

MODEL = "simulated"  # works offline; for a real model write "gpt-4o-mini", "anthropic/claude-…", "ollama/…"
CITIES = {"A": "Lyon", "B": "Graz", "C": "Porto"}


def retrieve(planner: str) -> str:
    """Look up the city of the warehouse: the first letter of an order number says which."""
    return next((f"city: {city}" for letter, city in CITIES.items() if f"{letter}-" in planner), "")


def route(context: NodeContext) -> str:
    """Urgent requests are planned again, once."""
    is_urgent = "priority: high" in context.outputs["reviewer"]
    return "need_revision" if is_urgent and context.visits("rewrite") == 0 else "finalize"


agent = GraphAgent(
    name="desk",
    nodes=(
        ModelNode(
            name="planner",
            model=MODEL,
            instruction="You plan the work of a support desk. Keep the order number, the product, the quantity, the "
            "date and the priority. Copy the values verbatim.",
        ),
        FunctionNode(name="retrieve", function=retrieve, kind="tool"),
        ModelNode(
            name="compose",
            model=MODEL,
            instruction="You write drafts for a support desk. Keep the order number, the product, the amount, the "
            "quantity, the date and the priority. Copy the values verbatim.",
        ),
        ModelNode(
            name="reviewer",
            model=MODEL,
            instruction="You review drafts of a support desk. Keep the order number, the product, the amount, the "
            "quantity, the date, the priority and the city. Copy the values verbatim.",
            prompt="{retrieve}\n\n{compose}",
        ),
        ModelNode(
            name="rewrite",
            model=MODEL,
            instruction="You rewrite requests to a support desk. Keep the order number, the product, the amount, the "
            "quantity, the date and the priority. Copy the values verbatim.",
        ),
        ModelNode(
            name="finalize",
            model=MODEL,
            instruction="Reply only with a JSON object with the keys order number, product, amount, quantity, date and "
            "city. Copy the values exactly as given.",
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
