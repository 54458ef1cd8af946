"""An agent, models, metrics and cases for contract suites: a small office that exercises every kind of call.

All functions are at the top level of this module, so that other processes can import them.
"""

from __future__ import annotations

import asyncio
import re
import sys

import orjson

from promptiter.agents.base import AgentRun
from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.function import ask_sync, chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import Executor
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.user_simulator import UserSimulator
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.prices import Price, Prices
from traces import Usage

NOTES = {"A-1": "kettle, 12 €", "B-2": "茶, 3 €", "C-3": "lamp — 40 €"}


def sort_mail(text: str) -> str:
    """Fails on letters that ask for it, in the ways that agents fail."""
    if "broken" in text:
        raise ValueError("this letter is broken: Ω")
    if "exit" in text:
        sys.exit(3)
    return text.strip()


def look_up(order: str) -> dict[str, str]:
    if order not in NOTES:
        raise KeyError(order)
    return {"order": order, "note": NOTES[order]}


async def count_letters(text: str) -> int:
    await asyncio.sleep(0)
    return len(text)


def route(context: NodeContext) -> str:
    return "done" if "checked" in str(context.outputs["clerk"]) else "again"


def stamp(clerk: str) -> str:
    """A synchronous node that asks a model."""
    seal = ask_sync(clerk, model="sealer", instruction=str(surface("instruction")))
    return f"{clerk} [{seal}]"


agent = GraphAgent(
    name="office",
    nodes=(
        FunctionNode(name="sort", function=sort_mail),
        ModelNode(
            name="clerk",
            model="clerk",
            instruction="Answer the letter.",
            tools=(
                Tool(name="look_up", description="An order by its id.", function=look_up),
                Tool(name="count_letters", description="The length.", function=count_letters, is_live=True),
            ),
        ),
        FunctionNode(name="check", function=sort_mail, version="1"),
        FunctionNode(name="stamp", function=stamp, declared={"instruction": "Seal it."}),
    ),
    edges=(
        Edge("sort", "clerk"),
        Choice("clerk", route, {"done": "stamp", "again": "check"}),
        Edge("check", "clerk"),
    ),
)
"""It sorts the letter, looks up the order, checks its draft in a loop, and stamps it."""


async def sleep(text: str) -> str:
    await asyncio.sleep(60)
    return text


sleeper = chain("sleeper", sleep)
"""An agent that does not answer in time."""


async def answer_as_clerk(request: ModelRequest, *, repeat: int) -> ModelReply:
    """Looks up the order that a letter names, then writes a draft; shown its own draft, it marks it as checked."""
    letter = next(message.content for message in reversed(request.messages) if message.role == "user")
    results = [message.content for message in request.messages if message.role == "tool"]
    usage = Usage(input_tokens=len(request.text), output_tokens=len(letter))
    if "draft" in letter:
        return ModelReply(text=f"checked {letter}", usage=usage)
    if request.tools and not results:
        order = (re.findall(r"\b[A-Z]-\d\b", letter) or ["none"])[0]
        calls = (
            ToolRequest("1", "look_up", {"order": order}),
            ToolRequest("2", "count_letters", {"text": letter}),
            ToolRequest("3", "shred", {}),
        )
        return ModelReply(tool_requests=calls, usage=usage)
    return ModelReply(text=f"draft {repeat}: {' | '.join(results)}", usage=usage)


async def answer_as_sealer(request: ModelRequest, *, repeat: int) -> ModelReply:
    text = f"sealed {repeat}, {request.messages[0].content}"
    return ModelReply(text=text, usage=Usage(input_tokens=len(text), output_tokens=1))


async def answer_as_judge(request: ModelRequest, *, repeat: int) -> ModelReply:
    has_euro = "€" in request.messages[-1].content
    verdict = {"id": "price", "reason": f"opinion {repeat}: ¿price?", "passed": has_euro}
    return ModelReply(text=orjson.dumps({"verdicts": [verdict]}).decode(), usage=Usage(input_tokens=9, output_tokens=3))


async def answer_as_user(request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG001 - a model's parameters
    is_done = request.messages[-1].content.count("sealed") >= 2
    return ModelReply(text=orjson.dumps({"done": is_done, "message": "" if is_done else "And B-2, 谢谢?"}).decode())


def mentions(case: EvalCase, run: AgentRun, *, word: str) -> tuple[float, str]:
    """A metric with an option."""
    return float(word in run.output), f"{word!r} in {case.id}"


def raise_error(case: EvalCase, run: AgentRun) -> float:
    """A metric that fails."""
    raise RuntimeError(f"no opinion on {case.id}: {run.output[:5]}")


METRICS = {
    "metrics": [
        {"metric_name": "contains", "threshold": 1.0, "criterion": {"expected": "sealed"}},
        {"metric_name": "tool_trajectory", "criterion": {"subset_matching": True}},
        {"metric_name": "cost", "criterion": {"limit_usd": 0.001}},
        {"metric_name": "says_euro", "evaluator_name": "mentions", "criterion": {"word": "€"}},
        {"metric_name": "fails", "evaluator_name": "raise_error"},
        {
            "metric_name": "judged",
            "evaluator_name": "llm_rubric_response",
            "criterion": {
                "llm_judge": {
                    "judge_model": {"model_name": "judge", "num_samples": 2},
                    "rubrics": [{"id": "price", "content": {"text": "names the price"}}],
                }
            },
        },
    ],
    "evaluators": {name: f"{__name__}:{name}" for name in ("mentions", "raise_error")},
}

CASES = EvalSet(
    id="letters",
    cases=(
        *(
            EvalCase(
                id=f"order-{name}",
                turns=(
                    Turn(
                        user=f"Where is {name}? 你好",
                        expected_tool_calls=(ExpectedToolCall(name="look_up", arguments={"order": name}),),
                    ),
                ),
                state={"seen": [1, 2.5, None, {"ключ": True}]},
            )
            for name in (*NOTES, "Z-9")
        ),
        EvalCase(id="talk", turns=(Turn(user="I have A-1"), Turn(user="and B-2"), Turn(user="and again A-1"))),
        EvalCase(id="scenario", scenario=Scenario(starting_prompt="About C-3…", plan="Ask for B-2, too.")),
        EvalCase(id="broken", turns=(Turn(user="broken"),)),
        EvalCase(id="exit", turns=(Turn(user="A-1"), Turn(user="exit"))),
        EvalCase(id="half", turns=(Turn(user="half a pair: \ud83d and A-1"),)),
        EvalCase(id="recorded", mode="trace", turns=(Turn(user="q"),), actual=(Turn(user="q", expected="sealed 3 €"),)),
        EvalCase(id="empty"),
    ),
)


def make_evaluator(
    executor: Executor | None = None, *, budget: Budget | None = None, case_timeout_s: float | None = None
) -> Evaluator:
    """An evaluator of the office, with models that answer the same in every process."""
    models = {
        "clerk": answer_as_clerk,
        "sealer": answer_as_sealer,
        "judge": answer_as_judge,
        "user": answer_as_user,
    }
    price = Price(input_usd_per_million=1.0, output_usd_per_million=4.0)
    gateway = Gateway(models=models, budget=budget, prices=Prices(dict.fromkeys(models, price)), seed=7)
    config = parse_eval_config(METRICS)
    return Evaluator(
        build_metrics(config, gateway=gateway),
        gateway=gateway,
        options=EvaluationOptions(repeats=2, case_timeout_s=case_timeout_s),
        executor=executor,
        user_simulator=UserSimulator(gateway, model="user", max_turns=3),
    )
