"""From production traces to a patch: OpenTelemetry spans are read and blamed, and their inputs are run again."""

import asyncio
import re
from pathlib import Path

import traces
from promptiter import CaseInput, Edge, GraphAgent, ModelNode, Profile, RunContext
from promptiter.backprop import Finding, JudgedTrace, Loss, backpropagate

SPANS = Path("spans.otlp.jsonl")
QUESTIONS = [
    "Where is it? (order id: A-1042; product: kettle)",
    "Where is it? (order id: B-2077; product: lamp)",
    "Where is it? (order id: C-3010; product: chair)",
    "Where is it? (order id: D-4455; product: rug)",
]
desk = GraphAgent(
    name="desk",
    nodes=(
        ModelNode(name="intake", instruction="Write a note with the product."),
        ModelNode(name="reply", instruction="Include all details of the note in the answer."),
    ),
    edges=(Edge("intake", "reply"),),
)


async def run_desk(questions: list[str], profile: Profile | None = None) -> list[traces.ExecutionTrace]:
    cases = [(CaseInput(text=text), RunContext(case_id=f"q{number}")) for number, text in enumerate(questions, 1)]
    runs = [await desk.run(case, profile, context) for case, context in cases]
    return [run.trace for run in runs if run.trace is not None]


def judge(trace: traces.ExecutionTrace) -> JudgedTrace:
    """The answer has to name the order of the question."""
    question, answer = trace.steps[0].input.text or "", trace.steps[-1].output.text or ""
    [order_id] = re.findall(r"[A-Z]-\d{4}", question)
    loss = Loss(text="the answer does not name the order", findings=(Finding(kind="missing", expected=order_id),))
    return JudgedTrace(case_id=trace.id, trace=trace, losses=() if order_id in answer else (loss,))


async def main() -> None:
    traces.write_otel(SPANS, await run_desk(QUESTIONS))  # in production, your OpenTelemetry exporter does this

    recorded = traces.read_otel(SPANS)
    judged = [judge(trace) for trace in recorded]
    print(f"{len(recorded)} traces, {sum(each.has_passed for each in judged)} passed")

    found = await backpropagate(judged, structure=desk.describe())
    for patch in found.patches:
        print(f"{patch.surface_id}: {patch.value}")

    patched = Profile.baseline(desk.describe()).apply(found.patches, desk.describe())
    replayed = await run_desk([trace.steps[0].input.text or "" for trace in recorded], patched)
    print(f"replayed with the patch: {sum(judge(trace).has_passed for trace in replayed)} passed")


asyncio.run(main())
