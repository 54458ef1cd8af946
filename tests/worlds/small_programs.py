"""Four ordinary agents with a fault each, as somebody would write them who has read docs/agents.md."""

from __future__ import annotations

import traces
from promptiter import Edge, FunctionNode, GraphAgent, ModelNode, Tool
from promptiter.agents import Choice, NodeContext, agent, ask, chain, surface
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn


@agent(instruction={"plan": "Say what the customer wants.", "write": "Answer the customer politely."})
async def two_prompts(question: str) -> str:
    """Both prompts lose the order id."""
    with traces.step("plan", input=question) as step:
        plan = step.output = await ask(question, instruction=surface("instruction.plan"), model="simulated")
    with traces.step("write", input=plan) as step:
        answer = step.output = await ask(plan, instruction=surface("instruction.write"), model="simulated")
    return answer


def look_up(order_id: str) -> str:
    return f"order id: {order_id}; status: shipped"


def choose_branch(context: NodeContext) -> str:
    return "refund" if "refund" in context.input else "status"


router = GraphAgent(  # its refund branch loses the order id
    name="router",
    nodes=(
        ModelNode(name="intake", instruction="Keep the order id and the wish exactly as given."),
        ModelNode(name="refund", instruction="Answer politely about the refund."),
        ModelNode(
            name="status",
            instruction="Answer politely. Use the look_up tool to find the order.",
            tools=(
                Tool(
                    name="look_up",
                    description="Looks up an order.",
                    function=look_up,
                    parameters={
                        "type": "object",
                        "properties": {"order_id": {"type": "string"}},
                        "required": ["order_id"],
                    },
                ),
            ),
        ),
    ),
    edges=(Choice("intake", choose_branch, {"refund": "refund", "status": "status"}),),
)


def end_after_two_drafts(context: NodeContext) -> str:
    return "finish" if context.visits("draft") == 2 else "draft"


def finish(draft: str) -> str:
    return draft


loop = GraphAgent(  # its draft loses the order id
    name="loop",
    nodes=(
        ModelNode(name="draft", instruction="Answer the customer.", prompt="{input}\n{review}"),
        ModelNode(name="review", instruction="Repeat the draft. Keep everything exactly as given."),
        FunctionNode(name="finish", function=finish),
    ),
    edges=(
        Edge("draft", "review"),
        Choice("review", end_after_two_drafts, {"draft": "draft", "finish": "finish"}),
    ),
)

ticket = chain(  # the description of a field asks for the wrong format
    "ticket",
    ModelNode(
        name="ticket",
        instruction="Fill in the ticket.",
        schema={
            "type": "object",
            "properties": {
                "order": {"type": "string", "description": "The order id."},
                "bought": {"type": "string", "description": "Write dates as DD.MM.YYYY."},
            },
            "required": ["order", "bought"],
        },
    ),
)

PRODUCTS = ("kettle", "lamp", "chair", "rug", "fan", "sofa", "desk", "clock")


def build_cases(name: str, first: int, *, is_ticket: bool = False) -> EvalSet:
    """Eight cases; half of them are about refunds."""
    cases = []
    for number, product in enumerate(PRODUCTS, first):
        order, date = f"{chr(65 + number % 26)}-{1000 + 37 * number}", f"2026-0{1 + number % 9}-1{number % 9}"
        wish = "I want a refund for" if number % 2 else "Where is"
        user = f"{wish} my {product}? (order id: {order}; bought: {date})"
        expected = f'{{"order": "{order}", "bought": "{date}"}}' if is_ticket else order
        cases.append(EvalCase(id=f"{name}{number}", turns=(Turn(user=user, expected=expected),)))
    return EvalSet(id=name, cases=tuple(cases))
