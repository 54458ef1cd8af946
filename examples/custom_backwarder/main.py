"""A backwarder of one's own: a step that loses a value is to blame; otherwise blame goes to the steps before it."""

from promptiter import Edge, Engine, Evaluator, GraphAgent, ModelNode, RunRequest, build_eval_set, build_metrics
from promptiter.backprop import get_passes
from promptiter.stages import BackwardRequest, BackwardResult, GradientPacket, SurfaceGradient


class ValueTracer:
    """Follows the expected value back to the step that received it and did not pass it on."""

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        step, value = request.step, request.expected or ""
        if value in (step.input.text or ""):
            text = f"The step received {value!r} and did not pass it on."
            gradients = tuple(
                SurfaceGradient(surface_id=each, case_id=request.case_id, step_id=step.id, text=text)
                for each in request.blamable
            )
            return BackwardResult(step_id=step.id, gradients=gradients)
        packets = tuple(
            GradientPacket(source=step.id, target=each.id, text=f"{value!r} did not arrive.")
            for each in request.predecessors
        )
        return BackwardResult(step_id=step.id, packets=packets)


desk = GraphAgent(
    name="desk",
    nodes=(
        ModelNode(name="intake", instruction="Write a note with the product."),
        ModelNode(name="reply", instruction="Include all details of the note in the answer."),
    ),
    edges=(Edge("intake", "reply"),),
)
ORDERS = {"kettle": "A-1042", "lamp": "B-2077", "chair": "C-3010", "rug": "D-4455", "fan": "E-5120", "sofa": "F-6001"}
rows = [
    {"id": name, "input": f"Where is it? (order id: {order_id}; product: {name})", "expected": order_id}
    for name, order_id in ORDERS.items()
]
request = RunRequest(train=build_eval_set("train", rows[:3]), validation=build_eval_set("validation", rows[3:]))
evaluator = Evaluator(build_metrics([{"metric_name": "contains"}]))
result = Engine(desk, evaluator, ValueTracer()).run_sync(request)

for gradient in get_passes(result.rounds[0])[0].gradients:
    print(f"{gradient.case_id}: {gradient.surface_id}: {gradient.text}")
print(result)
for change in result.changes:
    print(f"{change.surface_id}: {change.before} → {change.after}")
