"""A graph of functions and model calls: `@node`, a tool, and one model call per item of a list (FanOut)."""

from promptiter import (
    Edge,
    Engine,
    Evaluator,
    FanOut,
    GraphAgent,
    ModelNode,
    RunRequest,
    Tool,
    build_eval_set,
    build_metrics,
)
from promptiter.agents import ask, node, surface

PRICES = {"kettle": 49, "lamp": 120, "chair": 85, "rug": 240, "fan": 31, "sofa": 899, "desk": 310, "clock": 27}


@node()
def split(message: str) -> list[str]:
    """A function in a graph. It returns a list, for the fan-out."""
    return [f"What does it cost? (product: {name})" for name in PRICES if name in message]


def find_price(product: str) -> dict[str, object]:
    return {"product": product, "price": PRICES[product]}


clerk = ModelNode(
    name="clerk",
    instruction="Answer the customer.",  # a lazy model does not pass on the price that it looked up
    tools=(
        Tool(
            name="find_price",
            description="Use this tool when a customer asks what a product costs.",
            function=find_price,
            parameters={"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]},
        ),
    ),
)


@node(instruction="Thank the customer politely.")
async def reply(clerk: list[str]) -> str:
    """A function with a prompt. Its parameter is named after the node whose outputs it receives."""
    notes = "\n".join(clerk)
    opening = await ask(notes, instruction=surface("instruction"), model="simulated")
    return f"{opening}\n{notes}"


shop = GraphAgent(name="shop", nodes=(split, clerk, reply), edges=(FanOut("split", "clerk"), Edge("clerk", "reply")))

names = list(PRICES)
rows = [
    {"input": f"What do the {one} and the {other} cost?", "expected": str(PRICES[one])}
    for one, other in zip(names, names[1:] + names[:1], strict=True)
]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
result = Engine(shop, Evaluator(build_metrics([{"metric_name": "contains"}]))).run_sync(request)

print(result)
for change in result.changes:
    print(f"{change.surface_id}: {change.before} → {change.after}")
