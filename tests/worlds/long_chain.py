"""A chain of many model calls whose quality depends on one sentence of a late instruction, and on luck.

The first step has some luck in each repeat, which all later steps share. The editable step has luck of its own. A case
passes if both are good enough for it; HELPS or HURTS in the instruction of that step changes how good is good enough.
Every other wording has no effect, but new luck. Calls are counted where they are answered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Literal, TypeAlias

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator, list_case_runs
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.result import Evaluation, merge_evaluations
from promptiter.evaluation.stats.final_test import decide_for_these_cases, plan_blocks
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.pairing import pair_scores
from promptiter.profile import Profile
from traces import Usage

Effect: TypeAlias = Literal["better", "worse", "no effect"]

HELPS, HURTS = "Check every figure twice.", "Be quick."
INSTRUCTION = "Write the answer."
ALPHA = 0.05


@dataclass
class LongChain:
    """The agent, its model and its cases. `calls` counts the calls of each step."""

    seed: str = "0"
    steps: int = 50
    edited: int = 46
    cases: int = 100
    effect: float = 0.3
    calls: Counter[str] = field(default_factory=Counter)

    @property
    def surface_id(self) -> str:
        return f"step{self.edited}#instruction"

    def make_agent(self) -> GraphAgent:
        names = [f"step{number}" for number in range(self.steps)]
        return GraphAgent(
            name="chain",
            nodes=tuple(
                ModelNode(name=name, instruction=INSTRUCTION if name == f"step{self.edited}" else name, model="lucky")
                for name in names
            ),
            edges=tuple(Edge(one, other) for one, other in pairwise(names)),
        )

    def make_eval_set(self) -> EvalSet:
        cases = (EvalCase(id=f"case{number}", turns=(Turn(user=f"case{number}"),)) for number in range(self.cases))
        return EvalSet(id="chain", cases=tuple(cases))

    def make_evaluator(self, *, cache: Cache | None = None, seed: int = 0, concurrency: int = 8) -> Evaluator:
        return Evaluator(
            [FunctionMetric(name="right", function=_is_right)],
            gateway=Gateway(models={"lucky": self.answer}, cache=cache, seed=seed),
            options=EvaluationOptions(concurrency=concurrency),
        )

    def make_profiles(self, effect: Effect, number: int = 0) -> tuple[Profile, Profile]:
        """The baseline, and one sentence more."""
        snapshot = self.make_agent().describe()
        sentence = {"better": HELPS, "worse": HURTS, "no effect": "Mind the style."}[effect]
        edited = {self.surface_id: f"{INSTRUCTION} {sentence} (Edit {number}.)"}
        return Profile.baseline(snapshot), Profile.of(snapshot, edited)

    async def answer(self, request: ModelRequest, *, repeat: int, seed: int = 0) -> ModelReply:
        instruction, text = request.messages[0].content, request.messages[-1].content
        case = text.partition(" ")[0]
        is_edited = instruction.startswith(INSTRUCTION)
        self.calls[f"step{self.edited}" if is_edited else instruction] += 1
        usage = Usage(input_tokens=10, output_tokens=2, cost_usd=0.001)
        if " " not in text:
            return ModelReply(text=f"{case} luck={self._sample(request, repeat, seed):.3f}", usage=usage)
        if not is_edited:
            return ModelReply(text=text, usage=usage)
        bar = 0.2 + 0.6 * Random(f"bar {self.seed} {case}").random()
        bar += self.effect * ((HELPS in instruction) - (HURTS in instruction))
        luck = (float(text.partition("luck=")[2]) + self._sample(request, repeat, seed)) / 2
        return ModelReply(text=f"{case} {'right' if luck < bar else 'wrong'}", usage=usage)

    def _sample(self, request: ModelRequest, repeat: int, seed: int) -> float:
        return Random(f"{self.seed} {seed} {repeat} {request.digest}").random()


def _is_right(_case: EvalCase, run: AgentRun) -> bool:
    return run.output.endswith(" right")


async def evaluate_fully(world: LongChain, before: Profile, after: Profile, *, seed: int) -> str:
    """Run both profiles from the first step on, each with answers of its own, until the final test decides.

    The answer is `improved`, `worse` or `within_noise`: both directions are tested, each at half of alpha.
    """
    agent, cases, answer, done = world.make_agent(), world.make_eval_set(), "open", 0
    arms: list[list[Evaluation]] = [[], []]
    while answer == "open":
        block = plan_blocks(ALPHA / 2)[done // 2]
        runs = list_case_runs(cases, range(done, done + block.repeats))
        for place, profile in enumerate((before, after)):
            evaluator = world.make_evaluator(seed=seed + place)
            rows = [row async for row in evaluator.stream_rows(agent, cases, profile, runs=runs)]
            arms[place].append(evaluator.build_evaluation(rows, cases, profile))
        done += block.repeats
        first, second = map(merge_evaluations, arms)
        assert first is not None
        assert second is not None
        answer = _decide_both_ways(pair_scores(first, second))
    return answer


def _decide_both_ways(scores: Sequence[PairedScores]) -> str:
    blocks = plan_blocks(ALPHA / 2)
    swapped = [replace(each, before=each.after, after=each.before) for each in scores]
    gain, loss = (decide_for_these_cases(each, blocks=blocks) for each in (scores, swapped))
    if gain.is_shown or loss.is_shown:
        return "improved" if gain.is_shown else "worse"
    return "open" if "open" in (gain.outcome, loss.outcome) else "within_noise"
