"""Tool descriptions are surfaces: the model does not call a tool whose description does not say when to use it."""

from promptiter import Engine, Evaluator, GraphAgent, ModelNode, RunRequest, Tool, build_eval_set, build_metrics

ORDERS = {
    "A-1042": "on its way",
    "B-2077": "delivered",
    "C-3010": "in the warehouse",
    "D-4455": "returned",
    "E-5120": "cancelled",
    "F-6001": "at the customs",
}


def find_order(order_id: str) -> dict[str, str]:
    return {"order id": order_id, "status": ORDERS[order_id]}


tool = Tool(
    name="find_order",
    description="The order database.",
    function=find_order,
    parameters={"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]},
)
clerk = ModelNode(name="clerk", instruction="Include all details of what you found in the answer.", tools=(tool,))
agent = GraphAgent(name="shop", nodes=(clerk,))

rows = [
    {
        "input": f"What is the status of my order? (order id: {order_id})",
        "expected": status,
        "tool_calls": [{"name": "find_order", "arguments": {"order_id": order_id}}],
    }
    for order_id, status in ORDERS.items()
]
metrics = build_metrics([{"metric_name": "tool_trajectory"}, {"metric_name": "contains"}])
request = RunRequest(
    train=build_eval_set("train", rows[:3]),
    validation=build_eval_set("validation", rows[3:]),
    targets=["clerk#tool.find_order"],  # the only surface that may change
)
result = Engine(agent, Evaluator(metrics)).run_sync(request)

print(result)
for change in result.changes:
    print(f"{change.surface_id}: {change.before} → {change.after}")
