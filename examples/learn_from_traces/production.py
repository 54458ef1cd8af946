"""A support desk in production, instrumented with OpenTelemetry, not with promptiter. It leaves spans and feedback.

The attributes are those of OpenTelemetry's conventions for generative AI: a span `invoke_agent` for each colleague, and
in it a span `chat` for the call of the model, with its messages.
"""

import asyncio
import csv
import json
import random
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from promptiter.llm import Message, ModelRequest
from promptiter.offline import SimulatedModel  # a model that works offline; yours is called here
from promptiter.starter.agent import agent as desk

INSTRUCTIONS = {each.node_id: str(each.value) for each in desk.describe().surfaces if each.type == "instruction"}
FIELDS = ("order id", "product", "purchase date", "amount", "city", "wish")
TICKETS, RATED = 60, 0.4
model = SimulatedModel(compliance=1.0)
tracer = trace.get_tracer("support-desk")


class FileExporter(SpanExporter):
    """Writes each span as a line of JSON."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("w")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.file.writelines(f"{span.to_json(indent=None)}\n" for span in spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        self.file.close()


async def ask(colleague: str, text: str) -> str:
    """One colleague of the desk: a call of the model with its instruction."""
    with tracer.start_as_current_span(f"invoke_agent {colleague}") as agent_span:
        agent_span.set_attributes({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": colleague})
        with tracer.start_as_current_span("chat simulated") as span:
            messages = (Message("system", INSTRUCTIONS[colleague]), Message("user", text))
            reply = await model(ModelRequest(model="simulated", messages=messages), repeat=0)
            span.set_attributes(
                {
                    "gen_ai.operation.name": "chat",
                    "gen_ai.request.model": "simulated",
                    "gen_ai.system_instructions": write_parts(INSTRUCTIONS[colleague]),
                    "gen_ai.input.messages": write_message("user", text),
                    "gen_ai.output.messages": write_message("assistant", reply.text),
                }
            )
        return reply.text


async def answer(message: str) -> tuple[str, str]:
    """The answer to a message, and the id of its trace."""
    with tracer.start_as_current_span("support desk") as span:
        note = await ask("reception", message)
        notes = await asyncio.gather(*(ask(each, note) for each in ("returns", "payments", "delivery")))
        summary = await ask("lead", "\n\n".join(notes))
        return await ask("filing", summary), f"{span.get_span_context().trace_id:032x}"


def write_parts(text: str) -> str:
    return json.dumps([{"type": "text", "content": text}])


def write_message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def make_ticket(number: int) -> dict[str, str]:
    rng = random.Random(number)
    return {
        "order id": f"{rng.choice('ABCDE')}-{rng.randrange(1000, 9999)}",
        "product": rng.choice(["Toaster", "Bookshelf", "Tent", "Monitor", "Bicycle", "Armchair"]),
        "purchase date": f"2026-{rng.randrange(1, 10):02d}-{rng.randrange(1, 28):02d}",
        "amount": f"{rng.randrange(20, 400)}.{rng.randrange(10, 99)} EUR",
        "city": rng.choice(["Lille", "Cork", "Tartu", "Basel", "Faro", "Split"]),
        "wish": rng.choice(["refund", "repair", "replacement"]),
    }


async def answer_tickets() -> list[list[str]]:
    """Answer all tickets. Returns what users said: rows of the feedback."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(FileExporter(Path("spans.jsonl"))))
    trace.set_tracer_provider(provider)
    rng = random.Random(1)
    feedback = []
    for number in range(TICKETS):
        ticket = make_ticket(number)
        given = "\n".join(f"{name}: {ticket[name]}" for name in FIELDS)
        filed, trace_id = await answer(f"Ticket {number}: please help me.\n{given}")
        if rng.random() < RATED:
            lost = [name for name in FIELDS if ticket[name] not in filed]
            bad = ["down", f"{', '.join(lost)} missing", json.dumps(ticket)]
            feedback.append([trace_id, *(bad if lost else ["up", "", ""])])
    provider.shutdown()
    return feedback


def main() -> None:
    feedback = asyncio.run(answer_tickets())
    with Path("feedback.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["trace_id", "rating", "comment", "expected"], *feedback])
    print(f"{TICKETS} tickets answered: spans.jsonl, feedback.csv")


main()
