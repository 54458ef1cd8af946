"""A scripted model that edits the skill of `file_task`, as the stages ask it over HTTP.

From each text it first tries what is wrong in a way of its own: a skill that crashes, one that violates a constraint,
one that changes too many lines. Then it adds a missing section, and once none is missing, it drops sentences.
"""

from __future__ import annotations

import json
from typing import Any

from promptiter.llm.messages import Message, ModelRequest
from tests.worlds.file_task import SECTIONS
from tests.worlds.prompt_reader import BlamePrompt, MergePrompt, OptimizePrompt, read_prompt
from traces import digest

FILLERS = ("Write them for readers who were not there. ", "Keep every note short.")


def answer_editor(body: dict[str, Any]) -> str:
    """The reply to a request of a stage."""
    messages = tuple(Message(each["role"], str(each["content"])) for each in body["messages"])
    schema = body["response_format"]["json_schema"]["schema"]
    prompt = read_prompt(ModelRequest(model=body["model"], messages=messages, schema=schema))
    match prompt:
        case OptimizePrompt():
            value = edit(prompt.surface.value, len(prompt.rejected), salt=digest([str(each) for each in messages])[:8])
            return json.dumps({"reason": "as the signal asks", "value": value, "changes": []})
        case MergePrompt():
            return json.dumps({"points": [{"text": "add what the cases lack", "joins": [1]}]})
        case BlamePrompt():
            return json.dumps({"diagnosis": "a section is missing", **blame(prompt)})
        case _:
            raise AssertionError(f"the editor was asked {prompt!r}")


def blame(prompt: BlamePrompt) -> dict[str, Any]:
    """Blame the only surface for everything."""
    [surface] = prompt.surfaces
    gradient = {"surface": surface, "findings": ["F1"], "text": "a section is missing", "severity": "P1"}
    [step, *_] = prompt.runs[0].steps
    return {"gradients": [{**gradient, "step": step.alias, "confidence": 0.9}], "packets": []}


def edit(text: str, rejected: int, *, salt: str) -> str:
    """The next text: by how many of the latest attempts were rejected."""
    missing = [name for name in SECTIONS if f"## {name}" not in text]
    if missing:
        wrong = (f"CRASH {salt}", f"TODO {salt}", "\n".join(f"line {number} {salt}" for number in range(130)))
        if rejected < len(wrong):
            return f"{text.rstrip()}\n\n{wrong[rejected]}\n"
        return f"{text.rstrip()}\n\n## {missing[0]}\n\nOne sentence about it.\n"
    left = [each for each in FILLERS if each in text]
    return text.replace(left[0], "") if left else f"{text.rstrip()}\n\nAnother sentence {salt}.\n"
