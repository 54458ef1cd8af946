"""Stand-ins for three language models, so that the example runs without a key: the analyst, a critic and an applier.

The analyst searches the archive, reads the figures that it finds, and computes. It makes the mistakes that the numbers
and texts of agent.yaml are about: with few documents a figure may be missing, with many it may pick a wrong one, a high
temperature makes it careless, and it computes in its head (badly) unless its instructions tell it to use tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from random import Random

from promptiter.llm import ModelReply, ModelRequest, ToolRequest
from traces import Usage

QUESTION = re.compile(r"(?:change in|ratio of the|was the) (?!change|ratio)([a-z ]+) of ([A-Z][a-zA-Z ]+) (?:from|in) ")
USES_TOOLS = re.compile(r"\bcall (?:subtract|divide)|\buse (?:the|your) tools", re.IGNORECASE)
PLAN = "Plan the calculation first, then call subtract or divide with the figures of the archive."


async def analyst(request: ModelRequest, *, repeat: int = 0, seed: int = 0) -> ModelReply:
    """Answer a question, or call the next tool."""
    rng = Random(f"{request.digest} {repeat} {seed}")
    question = next(message.content for message in reversed(request.messages) if message.role == "user")
    results = [message.content for message in request.messages if message.role == "tool"]
    if not results:
        return _call(request, "archive", {"query": question})
    if len(results) > 1:
        return _say(request, f"I computed it with a tool.\n{results[-1]}")
    years = sorted(re.findall(r"\b20\d\d\b", question))
    found = QUESTION.search(question)
    item, company = found.groups() if found else ("", "")
    documents = json.loads(results[0])
    careless = 0.4 * float(request.options.get("temperature", 1.0)) ** 2 + 0.04 * max(0, len(documents) - 8)
    figures = [_find_figure(documents, f"{company} ", year, item, careless=careless, rng=rng) for year in years]
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(years):
        return _say(request, "The archive does not have this figure.\n0")
    if len(known) == 1:
        return _say(request, f"According to the archive:\n{known[0]}")
    is_ratio = "ratio" in question
    if USES_TOOLS.search(request.messages[0].content):
        return _call(request, "divide" if is_ratio else "subtract", {"a": known[1], "b": known[0]})
    early, late = map(float, known)
    answer = late / early if is_ratio else late - early
    return _say(request, f"In my head that is about\n{answer * rng.choice([0.9, 1.0, 1.1, 0.1]):.4f}")


async def critic(request: ModelRequest, *, repeat: int = 0) -> ModelReply:
    """Diagnose the instructions, if the arithmetic tools were not called."""
    del repeat
    text = request.messages[-1].content
    current = text.partition("# The current text\n")[2].partition("\n\n# ")[0]
    is_cause = "analyst" in current and "was not called" in text and PLAN not in current
    diagnosis = {
        "failing_pattern": "Questions that need arithmetic are answered without a tool.",
        "root_cause_hypothesis": "The text does not tell the agent to compute with its tools.",
        "suggested_change_direction": f"Add this rule: {PLAN}",
        "confidence": 0.8 if is_cause else 0.2,
        "citations": sorted(set(re.findall(r"\b[A-Z]{2,4}-20\d\d-[a-z-]+", text)))[:3],
        "avoid": [],
    }
    return _say(request, json.dumps(diagnosis))


async def applier(request: ModelRequest, *, repeat: int = 0) -> ModelReply:
    """Add the rule of the diagnosis to the text."""
    del repeat
    quoted = request.messages[-1].content.partition("# The current text\n")[2].partition("\n\n# ")[0]
    lines = [line for line in quoted.splitlines() if re.match(r"[A-Z]", line)]
    edit = {
        "edit_type": "insert",
        "rationale": "A rule says when to use the arithmetic tools.",
        "new_text": "\n".join([*lines, PLAN]) + "\n",
        "diff_summary": "one line added",
    }
    return _say(request, json.dumps(edit))


def _find_figure(
    documents: Sequence[str], company: str, year: str, item: str, *, careless: float, rng: Random
) -> str | None:
    """The figure of a company and year in the documents; a careless reader takes any document."""
    place = next((each for each in documents if company in each and f", {year}" in each), None)
    if place is not None and rng.random() < careless:
        place = rng.choice(documents)
    found = None if place is None else re.search(rf"{item}: ([\d.]+)", place)
    return None if found is None else found[1]


def _call(request: ModelRequest, name: str, arguments: dict[str, str]) -> ModelReply:
    call = ToolRequest(f"call_{request.digest[:8]}", name, arguments)
    return ModelReply(text="", tool_requests=(call,), usage=_count(request, str(arguments)))


def _say(request: ModelRequest, text: str) -> ModelReply:
    return ModelReply(text=text, usage=_count(request, text))


def _count(request: ModelRequest, text: str) -> Usage:
    """Tokens, at a price of $1 per million."""
    before, after = len(request.text.split()), len(text.split())
    return Usage(input_tokens=before, output_tokens=after, cost_usd=(before + after) / 1e6)
