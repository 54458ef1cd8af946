"""Whole runs of the Engine with one patch that has no true gain: a check that the final test is wired as simulated.

Every patch that the search proposes is accepted, so that the final test alone decides. The scenarios are those of
`tests.worlds.final_tests`. Seed, case, repeat and profile decide the score of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.policies.acceptance import AcceptancePolicy
from promptiter.policies.evidence import Answer, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from promptiter.structure import StructureSnapshot
from tests.worlds.chances import BETA, Proposes, make_eval_set
from traces import Failure, Usage

TEXT, MODEL = "answer#instruction", "answer#model"
NODE = ModelNode(name="answer", instruction="As it was.", model="large", models=("large", "small"))
SNAPSHOT = GraphAgent(name="null", nodes=(NODE,)).describe()
PRICES = {
    "large": Price(input_usd_per_million=10.0, output_usd_per_million=30.0),
    "small": Price(input_usd_per_million=1.0, output_usd_per_million=3.0),
}
MARGIN = 0.1
OUTAGES = 0.2
DRIFT = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a case: which of them, in which arm, and how many half blocks of case runs were made before."""

    case: int
    cases: int
    chance: float
    is_candidate: bool
    halves: float


Score: TypeAlias = Callable[[Run, Random], float]


def _pass(chance: float, random: Random) -> float:
    return float(random.random() < chance)


def _compare_constant(score: float) -> Score:
    return lambda run, random: _pass(score, random) if run.is_candidate else score


def _harm_rarely(run: Run, random: Random) -> float:
    if 3 * run.case < run.cases:
        return _pass(0.8 if run.is_candidate else 0.6, random)
    return _pass(0.9 if run.is_candidate else 1.0, random)


SCORES: dict[str, Score] = {
    "noisy agent": lambda run, random: _pass(run.chance, random),
    "drifting model": lambda run, random: _pass(run.chance + DRIFT * run.halves, random),
    "outages on 20% of one arm": lambda run, random: _pass(run.chance, random),
    "equal mean, symmetric noise": lambda run, random: random.choice((0.6, 1.0)) if run.is_candidate else 0.8,
    **{f"equal mean, {score:g} or 1-or-0": _compare_constant(score) for score in (0.9, 0.95, 0.99)},
    "helps a third, harms the rest rarely": _harm_rarely,
    "fewer_tokens, noisy tokens": lambda *_: 1.0,
    "cheaper, noisy dollars": lambda *_: 1.0,
}
GOALS: dict[str, Goal] = {
    "fewer_tokens, noisy tokens": Goal(kind="fewer_tokens", margin=MARGIN),
    "cheaper, noisy dollars": Goal(kind="cheaper", margin=MARGIN, models=("small",)),
}


class NullAgent:
    """An agent whose score under a profile is that of the scenario, and whose tokens have the same noise under both."""

    def __init__(self, scenario: str, *, size: int, seed: str) -> None:
        self.scenario = scenario
        self.size = size
        self.seed = seed
        random = Random(seed)
        self.chances = [random.betavariate(*BETA) for _ in range(size)]
        self.made = 0
        self.attempts: dict[tuple[str, int, bool], int] = {}

    def describe(self) -> StructureSnapshot:
        return SNAPSHOT

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        self.made += 1
        values = profile.value(TEXT, SNAPSHOT), profile.value(MODEL, SNAPSHOT)
        is_candidate = values != ("As it was.", "large")
        key = (context.case_id, context.repeat, is_candidate)
        attempt = self.attempts[key] = self.attempts.get(key, 0) + 1
        random = Random(f"{self.seed} {key} {attempt}")
        if "outages" in self.scenario and context.repeat and not is_candidate and random.random() < OUTAGES:
            return AgentRun(error=Failure("RateLimitedError", "429"))
        at = int(context.case_id.rpartition("-")[2])
        run = Run(
            case=at,
            cases=self.size,
            chance=self.chances[at],
            is_candidate=is_candidate,
            halves=self.made / (2 * self.size),
        )
        tokens = round(200 * (1 + at % 5) * random.lognormvariate(0, 0.4))
        usage = Usage(input_tokens=tokens, output_tokens=tokens // 4, cost_usd=tokens * 1e-5)
        return AgentRun(output=str(SCORES[self.scenario](run, random)), usage=usage)


class AcceptsAll:
    """Accepts everything, so that the final test does not depend on what the search saw."""

    def decide(self, evidence: Evidence) -> Answer:
        return evidence.accept("kept")


async def _read_score(_case: EvalCase, run: AgentRun) -> float:
    return float(run.output)


async def run_null_patch(scenario: str, *, size: int, seed: str) -> RunResult:
    """Run one patch without a true gain through the Engine."""
    goal = GOALS.get(scenario, SCORE)
    patch = (MODEL, "small") if goal.kind == "cheaper" else (TEXT, "In other words.")
    acceptance: AcceptancePolicy = AcceptsAll() if goal.figure is None else NonInferior(MARGIN, goal.figure)
    request = RunRequest(
        train=make_eval_set("train", 1),
        validation=make_eval_set("validation", size),
        acceptance=acceptance,
        final_test=FinalTest(ablate=False),
        goal=goal,
        targets=[patch[0]],
        max_rounds=1,
        run_id="null",
    )
    metric = FunctionMetric(name="score", function=_read_score)
    gateway = Gateway(models={name: ScriptedModel([]) for name in PRICES}, prices=Prices(PRICES))
    evaluator = Evaluator([metric], gateway=gateway, options=EvaluationOptions(concurrency=4))
    agent = NullAgent(scenario, size=size, seed=seed)
    return await Engine(agent, evaluator, search=Proposes([patch], until_accepted=False)).run(request)
