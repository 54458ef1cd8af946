"""A scripted expert for the LLM stages that knows nothing but what its prompt shows.

What counts as a fault differs from world to world: each world has a `Knowledge` that looks at one shown step at a time.
The expert never learns which nodes are faulty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from random import Random
from typing import Protocol, TypeAlias

import orjson

from promptiter.errors import UnexpectedCallError
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import estimate_tokens
from promptiter.stages.losses import Category
from tests.worlds.prompt_reader import (
    BlamePrompt,
    CorrectPrompt,
    MergePrompt,
    OptimizePrompt,
    ReflectPrompt,
    ShownRun,
    ShownStep,
    ShownSurface,
    read_prompt,
)
from traces.model import Json


@dataclass(frozen=True, slots=True)
class Complaint:
    """What is wrong with a surface, and the category of the fault."""

    text: str
    category: Category = "response"


class Knowledge(Protocol):
    """What an expert knows about a kind of task, without knowing the faults of the agent."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:
        """What is wrong with the surfaces of a step that had what it needed, by alias."""

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        """Whether the output of a step already has the fault, so that the cause is there or before."""

    def rewrite(self, prompt: OptimizePrompt) -> str:
        """The new value of a surface."""

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:
        """What the step should have given with its input; None if it could not do better."""


Faults: TypeAlias = Mapping[str, Complaint]
"""Complaints by the alias of the surface."""


@dataclass(slots=True)
class Spending:
    """Calls of a model, and their tokens: a quarter of the characters of prompts and answers."""

    calls: int = 0
    tokens: float = 0.0

    def add(self, request: ModelRequest, reply: ModelReply) -> None:
        self.calls += 1
        self.tokens += estimate_tokens(request.text) + estimate_tokens(reply.text)


class SightedExpert:
    """Answers for all LLM stages.

    It misreads a share of the runs it is shown, its `error_rate`: it finds no fault there, or blames the surface of
    another step. Shown the same run with the same surfaces, it answers the same. Unless it `is_sighted`, it rewrites
    the components of GEPA without looking at their steps.
    """

    def __init__(
        self, knowledge: Knowledge, *, error_rate: float = 0.0, seed: int = 0, is_sighted: bool = True
    ) -> None:
        self.spent = Spending()
        self.calls: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self._knowledge = knowledge
        self._error_rate, self._seed = error_rate, seed
        self._is_sighted = is_sighted

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - it has one opinion
        match read_prompt(request):
            case BlamePrompt() as prompt:
                stage, answer = "blame", self._blame(prompt)
            case MergePrompt() as prompt:
                stage, answer = "aggregate", _merge(prompt)
            case OptimizePrompt() as prompt:
                stage, answer = "optimize", _answer_optimize(prompt, self._knowledge.rewrite(prompt))
            case CorrectPrompt() as prompt:
                stage, answer = "correct", self._correct(prompt)
            case ReflectPrompt() as prompt:
                stage, answer = "reflect", {"reason": "as asked", "value": self._reflect(prompt)}
            case _:
                raise UnexpectedCallError("no stage asks for this")
        reply = ModelReply(text=orjson.dumps(answer).decode())
        self.calls[stage] += 1
        self.tokens[stage] += round(estimate_tokens(request.text) + estimate_tokens(reply.text))
        self.spent.add(request, reply)
        return reply

    def _blame(self, prompt: BlamePrompt) -> Json:
        gradients: list[Json] = []
        packets: list[Json] = []
        for run in prompt.runs:
            rng = Random(f"{self._seed} {run.user} {[each.output for each in run.steps]} {prompt.surfaces.values()}")
            is_wrong = rng.random() < self._error_rate
            found = [
                (step.alias, alias, complaint)
                for step in run.steps
                for alias, complaint in self._knowledge.find_faults(step, prompt.surfaces, run).items()
                if alias in step.blamable
            ]
            if is_wrong:
                found = _misread(run, found, rng)
            gradients += [_make_gradient(*each, run) for each in found]
            if not is_wrong:
                packets += [
                    {"predecessor": alias, "text": "its output is spoiled", "severity": "P1", "category": "response"}
                    for alias, output in run.predecessors.items()
                    if self._knowledge.is_spoiled(output, run)
                ]
        if prompt.is_one_step:
            return {"diagnosis": "see below", "gradients": gradients, "packets": packets}
        return {"diagnosis": "see below", "gradients": gradients}

    def _reflect(self, prompt: ReflectPrompt) -> str:
        """The new text, with what the steps lack; without sight, with all that the feedback names."""
        surfaces = {prompt.surface.alias: prompt.surface}
        points = [
            complaint.text
            for run in prompt.runs
            for step in run.steps
            for complaint in self._knowledge.find_faults(step, surfaces, run).values()
        ]
        if not self._is_sighted:
            points = [report for run in prompt.runs for report in run.reports.values()]
        signal = "\n".join(dict.fromkeys(points))
        return self._knowledge.rewrite(OptimizePrompt(surface=prompt.surface, signal=signal, examples=(), rejected=()))

    def _correct(self, prompt: CorrectPrompt) -> Json:
        output = self._knowledge.correct(prompt.step, prompt.run)
        reason = "as good as its input" if output is None else "what its input allows"
        return {"reason": reason, "is_correctable": output is not None, "output": output or ""}


_Blame: TypeAlias = tuple[str, str, Complaint]
"""A step, one of its surfaces, and what is wrong with it."""


def _misread(run: ShownRun, found: list[_Blame], rng: Random) -> list[_Blame]:
    """No fault, or the same complaint about another surface."""
    blamed = {alias for _, alias, _ in found}
    others = [(step.alias, alias) for step in run.steps for alias in step.blamable if alias not in blamed]
    if not others or rng.random() < 0.5:
        return []
    step, surface = rng.choice(others)
    return [(step, surface, found[0][2] if found else Complaint("It should say more."))]


def _make_gradient(step: str, surface: str, complaint: Complaint, run: ShownRun) -> Json:
    place: dict[str, Json] = {"step": step, "surface": surface} if step else {"surface": surface}
    place |= {"findings": [*run.reports]}
    return {**place, "text": complaint.text, "severity": "P1", "category": complaint.category, "confidence": 1.0}


def _merge(prompt: MergePrompt) -> Json:
    """All points, in the order of the prompt; their counts stay out."""
    texts = [point.partition(": ")[2] for point in prompt.points]
    return {"points": [{"text": text, "joins": [number]} for number, text in enumerate(texts, 1)]}


def _answer_optimize(prompt: OptimizePrompt, new: str) -> Json:
    """The new value in the form that the prompt asks for."""
    old = prompt.surface.value
    points = {int(number): text for number, text in re.findall(r"^(\d+)\. (.+)$", prompt.signal, re.MULTILINE)}
    if prompt.form == "value":
        return {"reason": "as asked", "value": new}
    if prompt.form == "changes":
        added = [line for line in new.split("\n") if line not in old.split("\n")]
        changes = [{"text": line, "points": _find_points(line, points)} for line in added]
        return {"reason": "as asked", "value": new, "changes": changes}
    edits = [
        {"find": find, "replace": replacement, "reason": "as asked", "points": _find_points(replacement, points)}
        for find, replacement in _compare_lines(old.split("\n"), new.split("\n"))
    ]
    return {"reason": "as asked", "edits": edits}


def _find_points(line: str, points: Mapping[int, str]) -> list[int]:
    """The points that share most words with a line."""
    words = set(line.lower().split())
    shared = {number: len(words & set(text.lower().split())) for number, text in points.items()}
    return [number for number, count in shared.items() if count and count == max(shared.values())]


def _compare_lines(old: Sequence[str], new: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The passages that differ. A line that was added comes with the line before it."""
    for kind, start, end, new_start, new_end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind != "equal":
            more = 1 if kind == "insert" and start else 0
            yield "\n".join(old[start - more : end]), "\n".join(new[new_start - more : new_end])
