"""The guide's desk: plan, retrieve and compose in parallel, review, rewrite once if urgent, finalize.

One instruction leaves out a field. The numbers of a case are easily confused: an amount of 10 to 29 is also the day of
its date, and a part of its order number.
"""

from __future__ import annotations

import json
import re

from promptiter.agents.edges import Choice, Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn

FIELDS = ("order number", "product", "amount", "quantity", "date", "priority")
REPORTED = ("order number", "product", "amount", "quantity", "date", "city")
PRODUCTS = ("kettle", "lamp", "desk", "chair", "sofa", "mirror", "clock")
CITIES = ("Berlin", "Lyon", "Porto", "Graz", "Turin")
ROWS = tuple(
    {
        "order number": f"A-{amount}" if amount % 2 else str(100 + amount),
        "product": PRODUCTS[amount % len(PRODUCTS)],
        "amount": str(amount),
        "quantity": str(1 + amount % 3),
        "date": f"2026-03-{amount}",
        "priority": "normal" if amount % 4 else "high",
        "city": CITIES[amount % len(CITIES)],
    }
    for amount in range(10, 30)
)


def make_agent(*, faulty: str, lost: str) -> GraphAgent:
    """The desk with one faulty node, which loses a field."""

    def retrieve(planner: str) -> str:
        numbers = re.findall(r"A-\d+|\b\d{3}\b", planner)
        records = (row for row in ROWS if row["order number"] in numbers)
        return "\n".join(f"order number: {row['order number']}\ncity: {row['city']}" for row in records)

    def route(context: NodeContext) -> str:
        is_urgent = re.search(r"priority\W+high", str(context.outputs["reviewer"]))
        return "need_revision" if is_urgent and "rewrite" not in context.outputs else "finalize"

    def keep(name: str, *fields: str) -> str:
        *others, last = (f"the {field}" for field in fields if (name, field) != (faulty, lost))
        return f"You are the {name} of a support desk. Keep {', '.join(others)} and {last}. Copy the values verbatim."

    def answer(name: str) -> str:
        *others, last = (field for field in REPORTED if (name, field) != (faulty, lost))
        keys = f"{', '.join(others)} and {last}"
        return f"Reply only with a JSON object with the keys {keys}. Copy the values exactly as given."

    return GraphAgent(
        name="desk",
        nodes=(
            ModelNode(name="planner", instruction=keep("planner", *FIELDS)),
            FunctionNode(name="retrieve", function=retrieve, kind="tool"),
            ModelNode(name="compose", instruction=keep("compose", *FIELDS)),
            ModelNode(name="reviewer", instruction=keep("reviewer", *FIELDS, "city"), prompt="{retrieve}\n\n{compose}"),
            ModelNode(name="rewrite", instruction=keep("rewrite", *FIELDS)),
            ModelNode(name="finalize", instruction=answer("finalize")),
        ),
        edges=(
            Edge("planner", "retrieve"),
            Edge("planner", "compose"),
            Join(("retrieve", "compose"), "reviewer"),
            Choice("reviewer", route, {"need_revision": "rewrite", "finalize": "finalize"}),
            Edge("rewrite", "planner"),
        ),
    )


def make_sets() -> tuple[EvalSet, EvalSet]:
    """The train and the validation cases."""
    cases = [
        EvalCase(
            id=f"case-{row['amount']}",
            turns=(
                Turn(
                    user="\n".join(("A customer asks about an order.", *(f"{name}: {row[name]}" for name in FIELDS))),
                    expected=json.dumps({name: row[name] for name in REPORTED}),
                ),
            ),
        )
        for row in ROWS
    ]
    train = [case for number, case in enumerate(cases) if number % 5 > 1]
    validation = [case for number, case in enumerate(cases) if number % 5 <= 1]
    return EvalSet(id="train", cases=tuple(train)), EvalSet(id="validation", cases=tuple(validation))
