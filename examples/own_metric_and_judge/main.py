"""A metric and a judge of one's own: a function of case and run, and an agent that checks a rubric."""

import json
import re
from typing import Any

from promptiter import AgentRun, Engine, EvalCase, Evaluator, Gateway, RunRequest, build_eval_set, build_metrics
from promptiter.agents import agent, ask, surface
from promptiter.evaluation import FunctionMetric


@agent(instruction="Answer the customer politely.")
async def support(question: str) -> str:
    return await ask(question, instruction=surface("instruction"), model="simulated")


def is_brief(_: EvalCase, run: AgentRun) -> tuple[bool, str]:
    """A metric returns a number or a bool, and may give a reason."""
    words = len(run.output.split())
    return words <= 25, f"the answer has {words} words"


@agent(instruction="You are an inspector of support desks. Be strict.")
async def inspector(message: str) -> str:
    """A judge is an agent, a function or the name of a model. It gets the rubrics and the texts to judge."""
    return await ask(message, instruction=surface("instruction"), model="inspector-model")


def inspect_answer(messages: list[dict[str, Any]]) -> str:
    """A scripted model in place of a real one. A function of the messages is a model."""
    user, response = re.findall(r'<data name="(?:user|response)">(.*?)</data>', messages[-1]["content"], re.DOTALL)
    [order_id] = re.findall(r"[A-Z]-\d{4}", user)
    passed = order_id.lower() in response.lower()
    verdict = {"id": "names_order", "passed": passed, "reason": f"The answer should name {order_id}."}
    return json.dumps({"verdicts": [verdict]})


gateway = Gateway(models={"inspector-model": inspect_answer})
criterion = {"llm_judge": {"rubrics": [{"id": "names_order", "content": "The answer names the order."}]}}
metrics = (
    FunctionMetric(name="is_brief", function=is_brief),
    *build_metrics([{"metric_name": "llm_rubric_response", "criterion": criterion}], gateway=gateway, judge=inspector),
)

ORDERS = ("A-1042", "B-2077", "C-3010", "D-4455", "E-5120", "F-6001", "G-7317", "H-8240")
rows = [{"input": f"Where is my order? (order id: {each}; city: Lyon)", "expected": each} for each in ORDERS]
request = RunRequest(train=build_eval_set("train", rows[:4]), validation=build_eval_set("validation", rows[4:]))
result = Engine(support, Evaluator(metrics, gateway=gateway)).run_sync(request)

print(result)
for change in result.changes:
    print(f"{change.surface_id}: {change.before} → {change.after}")
print("calls by role:", {role: spent.calls for role, spent in result.measured.spent.by_role().items()})
