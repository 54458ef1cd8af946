"""Record a run of a small research desk and write its trace.

The agent plans, retrieves and composes in parallel, reviews, rewrites the question once, and does it all again. It
fails at the end, because the final check finds no citation. No model is called; only the recording is real.
"""

from __future__ import annotations

import asyncio

import traces
from traces import ExecutionTrace, Usage

INSTRUCTIONS = {
    "planner#instruction": "Split the question into one search and one outline.",
    "compose#instruction": "Draft an answer in two sentences.",
    "reviewer#instruction": "Say ACCEPT, or say what is missing.",
    "rewrite#instruction": "Turn the review into a sharper question.",
}


async def planner(question: str) -> dict[str, str]:
    with traces.step("planner", kind="llm", input=question) as step:
        step.read_surface("planner#instruction")
        await asyncio.sleep(0.12)
        step.output = plan = {"search": "refund window EU", "outline": "rule, exception"}
        step.usage = Usage(input_tokens=212, output_tokens=38, cost_usd=0.0006)
        return plan


async def retrieve(query: str) -> list[str]:
    with traces.step("retrieve", kind="tool", input=query) as step:
        with step.call_tool("search", {"query": query, "top_k": 2}) as call:
            await asyncio.sleep(0.21)
            call.result = found = ["Directive 2011/83/EU, article 9: fourteen days."]
        step.output = found
        return found


async def compose(outline: str) -> str:
    with traces.step("compose", kind="llm", input=outline) as step:
        step.read_surface("compose#instruction")
        await asyncio.sleep(0.34)
        step.output = draft = "You have fourteen days. Sealed goods are an exception once opened."
        step.usage = Usage(input_tokens=420, output_tokens=96, cost_usd=0.0013)
        return draft


async def reviewer(found: list[str], draft: str, visit: int) -> str:
    with traces.step("reviewer", kind="llm", input={"evidence": found, "draft": draft}) as step:
        step.read_surface("reviewer#instruction")
        await asyncio.sleep(0.18)
        step.output = review = "the exception needs a source" if visit == 1 else "ACCEPT"
        step.usage = Usage(input_tokens=610, output_tokens=12, cost_usd=0.0014)
        return review


async def rewrite(question: str, review: str) -> str:
    with traces.step("rewrite", kind="llm", input={"question": question, "review": review}) as step:
        step.read_surface("rewrite#instruction")
        await asyncio.sleep(0.09)
        step.output = sharper = f"{question} Name the source of the exception."
        step.usage = Usage(input_tokens=180, output_tokens=21, cost_usd=0.0005)
        return sharper


async def finalize(draft: str) -> str:
    with traces.step("finalize", input=draft) as step:
        await asyncio.sleep(0.03)
        if "[1]" not in draft:
            raise ValueError("the answer cites no source: expected a mark like [1]")
        step.output = draft
        return draft


async def answer(question: str) -> str:
    for visit in (1, 2):
        plan = await planner(question)
        async with asyncio.TaskGroup() as group:
            found = group.create_task(retrieve(plan["search"]))
            draft = group.create_task(compose(plan["outline"]))
        review = await reviewer(found.result(), draft.result(), visit)
        if review != "ACCEPT":
            question = await rewrite(question, review)
    return await finalize(draft.result())


async def record() -> ExecutionTrace:
    with traces.record("refund-window", resolve=INSTRUCTIONS.__getitem__, conversation_id="desk-42") as recording:
        try:
            await answer("How long can I return an order?")
        except ValueError as error:
            print(f"the run failed: {error}")
            recording.fail()
    return recording.trace


if __name__ == "__main__":
    traces.write_traces("research_desk.jsonl", [asyncio.run(record())])
    print("to see it: promptiter trace show research_desk.jsonl")
