"""An agent that is written by hand: a class with `describe` and `run`."""

import traces
from promptiter import (
    AgentRun,
    CaseInput,
    Engine,
    Evaluator,
    Profile,
    RunContext,
    RunRequest,
    StructureSnapshot,
    Surface,
    build_eval_set,
    build_metrics,
)
from promptiter.agents import Node, StructureEdge, ask

STOCK = {"kettle": 12, "lamp": 40, "chair": 7, "rug": 25, "fan": 31, "sofa": 56, "desk": 18, "clock": 93}


class ShopBot:
    """Looks a product up in the stock, then lets a model write the answer."""

    def describe(self) -> StructureSnapshot:
        return StructureSnapshot(
            name="shop_bot",
            nodes=(Node(id="lookup", kind="tool"), Node(id="write", kind="llm")),
            edges=(StructureEdge(source="lookup", target="write"),),
            surfaces=(Surface(node_id="write", type="instruction", value="Answer the customer."),),
            entry="lookup",
        )

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        snapshot = self.describe()
        with traces.record(context.case_id, resolve=lambda name: profile.value(name, snapshot)) as recording:
            with traces.step("lookup", kind="tool", input=case.text) as step:
                product = next(name for name in STOCK if name in case.text)
                step.output = found = f"product: {product}\npieces left: {STOCK[product]}"
            with traces.step("write", kind="llm", input=found) as step:
                instruction = step.read_surface("write#instruction")
                step.output = answer = await ask(found, instruction=instruction, model="simulated")
        return AgentRun(output=answer, trace=recording.trace)


rows = [{"input": f"Do you have a {name}?", "expected": str(count)} for name, count in STOCK.items()]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
result = Engine(ShopBot(), Evaluator(build_metrics([{"metric_name": "contains"}]))).run_sync(request)

print(result)
for change in result.changes:
    print(f"{change.surface_id}: {change.before} → {change.after}")
