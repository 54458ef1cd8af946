"""Worlds on which searches are measured: what a search is given there, whether it reached the goal, and what it took.

A world is a function from the name of a search and a seed to a `WorldRun`, or None if the search has nothing to change
there: numeric searches need numbers, few-shot needs examples. Every run ends at the goal, by the rules of its search,
or after MOST evaluated cases. A run *reaches* the goal if the profile that it ends with does, measured without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.policies.stop_limits import MaxEvaluations
from promptiter.policies.stopping import TargetScore
from promptiter.profile import SurfacePatch
from promptiter.registry import SEARCHES
from promptiter.runlog.results import RunResult
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds import convention, quadratic_world
from tests.worlds.planted_world import EXPERT, TaskModel
from tests.worlds.rules_world import make_rules_world
from tests.worlds.sighted_expert import SightedExpert

MOST = 1_500
"""Evaluated cases of one run. Repeats of a case count once, so case runs can be several times as many."""

ROUNDS = 200
"""More rounds than a search needs: evaluated cases are the cap. An iteration that proposes nothing is a round, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRun:
    """What one run reached and took, up to its last validation."""

    reached: bool
    case_runs: int
    stage_calls: int = 0


World: TypeAlias = Callable[[str, int], Coroutine[Any, Any, WorldRun | None]]


async def run_rules(name: str, seed: int, *, in_one_group: bool = False) -> WorldRun | None:
    """Two faulty instructions in ten nodes, and an expert that sees what its prompts show. No numbers, no examples.

    With `in_one_group`, coordinate descent may change all instructions in one trial; other searches do so anyway.
    """
    world = make_rules_world("coupled", seed)
    stages = {
        "backwarder": CheapestAttributor(LLMAttributor(EXPERT), LLMBackwarder(EXPERT)),
        "aggregator": LLMAggregator(EXPERT),
        "optimizer": LLMOptimizer(EXPERT),
    }
    reflecting = {"reflection_model": EXPERT, "module_selector": "blame", "seed": seed}
    options: Mapping[str, Mapping[str, Any]] = {
        "backprop": stages,
        "gepa": {**{key: stages[key] for key in ("backwarder", "aggregator")}, **reflecting},
        "coordinate_descent": {**stages, "phases": ("textual",), "textual_max_trials": 50, "textual_patience": 20},
        "few_shot": {},
    }
    if in_one_group:
        texts = [each.id for each in world.agent.describe().surfaces if each.type == "instruction"]
        options = {"coordinate_descent": {**options["coordinate_descent"], "co_optimize": [texts]}}
    if name not in options:
        return None
    expert = SightedExpert(world.knowledge, seed=seed)
    evaluator = world.build_evaluator(TaskModel(answer=world.answer, seed=seed))
    evaluator.gateway.add_model(EXPERT, expert)
    kind = "examples" if name == "few_shot" else "instruction"
    result = await Engine(world.agent, evaluator, search=_make(name, options[name])).run(
        RunRequest(
            train=world.train,
            validation=world.validation,
            targets=[each.id for each in world.agent.describe().surfaces if each.type == kind],
            final_test=None,
            stop=TargetScore(1.0) | MaxEvaluations(MOST),
            max_rounds=ROUNDS,
            seed=seed,
            run_id=f"rules-{seed}",
        )
    )
    score = await world.measure_score(world.make_profile(result.working_profile.overrides))
    return WorldRun(reached=score == 1.0, case_runs=_count_case_runs(result), stage_calls=expert.spent.calls)


async def run_quadratic(name: str, seed: int) -> WorldRun | None:
    """Six noisy numbers, and a text that moves their optimum and lifts its score. Who writes texts knows the rule.

    The agent records no trace, so searches that follow blame have nothing to follow.
    """
    writer = {"optimizer": _RuleWriter()}
    numeric = {"trials": 200}
    options: Mapping[str, Mapping[str, Any]] = {
        "backprop": writer,
        "gepa": {**writer, "module_selector": "all", "seed": seed},
        "coordinate_descent": {},
        "optuna": numeric,
        "random": numeric,
    }
    if name not in options:
        return None
    targets = quadratic_world.AXES if name in ("optuna", "random") else (quadratic_world.TEXT, *quadratic_world.AXES)
    search = quadratic_world.build_descent() if name == "coordinate_descent" else _make(name, options[name])
    engine = quadratic_world.build_engine(search, seed=seed)
    asked = quadratic_world.build_request(targets=targets)
    result = await engine.run(_limit(asked, seed))
    assert isinstance(engine.agent, quadratic_world.QuadraticAgent)
    quality = engine.agent.find_quality(result.working_profile)
    return WorldRun(reached=quality >= quadratic_world.REACHED, case_runs=_count_case_runs(result))


async def run_examples(name: str, seed: int) -> WorldRun | None:
    """A classification that only examples convey. Rewrites may use every rule that the model follows."""
    examples, instruction = "sorter#examples", "sorter#instruction"
    rewriting = {"optimizer": convention.CueWriter()}
    selecting = {"seed": seed, "trials": 60}
    options: Mapping[str, tuple[str, Mapping[str, Any], Sequence[str]]] = {
        "backprop": ("backprop", rewriting, [instruction]),
        "gepa": ("gepa", {**rewriting, "module_selector": "all", "seed": seed}, [instruction]),
        "coordinate_descent": ("coordinate_descent", {**rewriting, "phases": ("textual",)}, [instruction]),
        "few_shot": ("few_shot", selecting, [examples]),
        "optuna": ("few_shot", {**selecting, "strategy": "optuna"}, [examples]),
        "random": ("few_shot", {**selecting, "strategy": "random"}, [examples]),
    }
    if name not in options:
        return None
    kind, given, targets = options[name]
    limits = {"stop": TargetScore(1.0) | MaxEvaluations(MOST), "max_rounds": ROUNDS, "test": None}
    result = await convention.run_search(_make(kind, given), seed, targets=targets, **limits)
    test = convention.build_sets(seed)[2]
    evaluator = convention.build_evaluator(seed, slip=0.0)
    found = await evaluator.evaluate(convention.build_agent(), test, result.working_profile)
    reached = (found.mean_score or 0.0) >= convention.REACHED
    return WorldRun(reached=reached, case_runs=_count_case_runs(result))


WORLDS: Mapping[str, World] = {
    "rules": run_rules,
    "rules_grouped": partial(run_rules, in_one_group=True),
    "quadratic": run_quadratic,
    "examples": run_examples,
}


class _RuleWriter:
    """An optimizer that writes the rule of the quadratic world once failed cases ask for it, and guesses no numbers."""

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        value = request.surface.value
        if request.surface.id != quadratic_world.TEXT or quadratic_world.RULE in str(value):
            return PatchResult(patch=None, reason="nothing to write")
        patch = SurfacePatch(surface_id=request.surface.id, value=f"{value} {quadratic_world.RULE}", reason="the rule")
        return PatchResult(patch=patch)


def _make(name: str, options: Mapping[str, Any]) -> Any:
    return SEARCHES.get(name)(**options)


def _limit(request: RunRequest, seed: int) -> RunRequest:
    return replace(request, stop=MaxEvaluations(MOST), max_rounds=ROUNDS, seed=seed, run_id=f"quadratic-{seed}")


def _count_case_runs(result: RunResult) -> int:
    """The case runs of the search, without rows that were known before."""
    of_rounds = (each for done in result.rounds for each in done.all_evaluations)
    by_number = {each.number: each for each in (*of_rounds, *result.evaluations)}
    return sum(row.origin != "kept" for each in by_number.values() for row in each.rows)
