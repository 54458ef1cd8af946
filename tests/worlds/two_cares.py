"""The desk with models for which each of its instructions decides one half of the cases, and one that rewrites them.

Even cases need care in the draft, odd ones care in the polish. So a candidate with one of them wins on one half of the
cases, both kinds are on a frontier, and their merge wins everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import orjson

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.stopping import TargetScore
from promptiter.search.gepa import GepaSearch
from tests.worlds import desk, desk_stages
from traces import Usage

EDITOR = "editor"
THINGS = (
    "a kettle that whistles in the key of F",
    "an umbrella with eleven ribs",
    "the lamp from the harbour office",
    "two tickets to Oslo on the ninth",
    "a violin without its bridge",
    "the green door at number forty",
)

Rewrite = Callable[[str], str]
"""The new text of a component, given the whole prompt."""


def answer(request: ModelRequest) -> ModelReply:
    instruction, asked = request.messages[0].content, request.messages[-1].content
    word = instruction.split()[0].strip(".").lower()
    text = f"{asked} {word}-care" if "careful" in instruction else asked
    return ModelReply(text=text, usage=Usage(input_tokens=10, output_tokens=5, cost_usd=0.001))


def eval_set(name: str, count: int) -> EvalSet:
    return EvalSet(
        id=name,
        cases=tuple(
            EvalCase(
                id=f"{name}-{n}", turns=(Turn(user=f"{name} question {n} about {THINGS[n % 6]}", expected=expect(n)),)
            )
            for n in range(count)
        ),
    )


def expect(number: int) -> str:
    return ("draft-care", "polish-care")[number % 2]


def score(case: EvalCase, run: object) -> float:
    return float(str(case.turns[0].expected) in str(getattr(run, "output", "")))


def is_calm(_case: EvalCase, run: object) -> float:
    return float("!" not in str(getattr(run, "output", "")))


def is_fair(case: EvalCase, run: object) -> float:
    """Care for the other half of the cases alone is worse than none."""
    output = str(getattr(run, "output", ""))
    return 0.5 if "-care" in output and str(case.turns[0].expected) not in output else 1.0


def read_current(prompt: str) -> str:
    """The current text of the component."""
    return str(re.findall(r'<data name="current value">\n?(.*?)\n?</data>', prompt, re.DOTALL)[0])


def add_care(prompt: str) -> str:
    """Ask for care, whatever the cases show."""
    current = read_current(prompt)
    return current if "careful" in current else f"{current} Be careful."


class Editor:
    """The reflection model. It fails on its first `failures` calls; `prompts` are those it was shown."""

    def __init__(self, rewrite: Rewrite = add_care, *, failures: int = 0) -> None:
        self.prompts: list[str] = []
        self._rewrite = rewrite
        self._failures = failures

    def __call__(self, request: ModelRequest) -> ModelReply:
        prompt = request.messages[1].content
        self.prompts.append(prompt)
        usage = Usage(input_tokens=100, output_tokens=20, cost_usd=0.002)
        if len(self.prompts) <= self._failures:
            return ModelReply(text="I would rather not.", usage=usage)
        value = self._rewrite(prompt)
        return ModelReply(text=orjson.dumps({"reason": "care", "value": value}).decode(), usage=usage)


def build_merging_search() -> GepaSearch:
    """Finds two candidates that are best on one half of the cases each, and merges them."""
    return GepaSearch(
        desk_stages.Blames(),
        desk_stages.Merges(),
        reflection_model=EDITOR,
        use_merge=True,
        merge_val_overlap_floor=2,
        seed=3,
    )


def build_engine(
    search: GepaSearch,
    editor: Editor | None = None,
    *,
    cache: Cache | None = None,
    budget: Budget | None = None,
    task: ScriptedModel | None = None,
    second: Callable[[EvalCase, object], float] = is_calm,
    **options: int,
) -> Engine:
    models = {"scripted": task or ScriptedModel(answer), EDITOR: ScriptedModel(editor or Editor())}
    evaluator = Evaluator(
        [FunctionMetric(name="care", function=score), FunctionMetric(name="second", function=second)],
        gateway=Gateway(models=models, cache=cache, budget=budget),
        options=EvaluationOptions(**options),
    )
    return Engine(desk.agent(), evaluator, search=search)


def build_request(**changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": eval_set("train", 6),
        "validation": eval_set("validation", 6),
        "final_test": None,
        "max_rounds": 8,
        "stop": TargetScore(1.0),
        "run_id": "r",
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]
