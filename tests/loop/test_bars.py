"""The bars of the loop: known faults in agents of ten models are found, mended and proven, and nothing else is touched.

24 train and 12 validation cases, minimum-gain acceptance: validation reaches the ceiling, only faulty surfaces change,
in at most 72 case runs and one optimizer call for each faulty surface. By the stages that need no model, and by the
LLM stages driven by a scripted expert. The claim at the end, which costs the same whatever found the candidate, comes
on top, and is made where nothing is counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from statistics import fmean

import orjson
import pytest

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.policies.acceptance import MinGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import TargetScore
from promptiter.runlog.results import RunRequest, RunResult
from promptiter.stages.contracts import Attributor, Backwarder, OptimizeRequest, OptimizeResult
from tests.worlds.expert import Expert
from tests.worlds.results import without_measured
from tests.worlds.scenarios import NAMES, SEEDS, Scenario, ceiling, scenario

MOST_CASE_RUNS = 72


class CountedRules:
    """The rule-based optimizer, counting how often it was asked for each surface."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        self.calls[request.surface.id] += 1
        return await RuleOptimizer().optimize(request)


def request_for(made: Scenario, *, final_test: FinalTest | None = None, **options: int) -> RunRequest:
    return RunRequest(
        train=made.train,
        validation=made.validation,
        acceptance=MinGain(0.005),
        final_test=final_test,
        stop=TargetScore(1.0),
        evaluation=EvaluationOptions(**options) if options else None,  # type: ignore[arg-type]
        run_id="bars",
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
async def test_the_stages_that_need_no_model_mend_what_is_faulty_and_nothing_else(name: str, seed: int) -> None:
    made, optimizer = scenario(name, seed), CountedRules()
    result = await Engine(made.agent, made.evaluator(), optimizer=optimizer).run(request_for(made))
    check(result, made, optimizer_calls=optimizer.calls.total())


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", NAMES)
async def test_the_llm_stages_do_so_too(name: str, seed: int) -> None:
    made = scenario(name, seed)
    result, expert = await run_with_expert(made, LLMBackwarder("expert"))
    check(result, made, optimizer_calls=expert.calls["optimizer"])
    assert expert.calls["aggregator"] <= len(made.faulty)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[::5])
@pytest.mark.parametrize("name", NAMES)
async def test_whole_traces_give_the_profile_of_the_walk_for_fewer_calls(name: str, seed: int) -> None:
    made = scenario(name, seed)
    whole, backwarder = LLMAttributor("expert"), LLMBackwarder("expert")
    profiles, calls = [], []
    for blame in (backwarder, whole, CheapestAttributor(whole, backwarder)):
        result, expert = await run_with_expert(made, blame)
        check(result, made, optimizer_calls=expert.calls["optimizer"])
        profiles.append(result.accepted_profile.to_json())
        calls.append(expert.calls["backwarder"])
    assert len(set(profiles)) == 1
    walk, one_each, chosen = calls
    assert one_each == chosen <= walk / 8


async def run_with_expert(made: Scenario, blame: Backwarder | Attributor) -> tuple[RunResult, Expert]:
    expert, evaluator = Expert(made), made.evaluator()
    evaluator.gateway.add_model("expert", expert.model)
    stages = blame, LLMAggregator("expert"), LLMOptimizer("expert")
    return await Engine(made.agent, evaluator, *stages).run(request_for(made)), expert


def check(result: RunResult, made: Scenario, *, optimizer_calls: int) -> None:
    assert result.accepted_score == 1.0
    assert {change.surface_id for change in result.changes} == made.faulty
    assert result.measured.case_runs <= MOST_CASE_RUNS
    assert optimizer_calls <= len(made.faulty)
    assert (result.verdict, result.stop_reason) == ("improved", "target_score")


@pytest.mark.slow
async def test_a_model_that_does_not_always_obey_is_brought_near_its_ceiling() -> None:
    """At compliance 0.98 ten models in a row fail about a fourth of the cases, whatever they are told."""
    reached, highest, touched = [], [], []
    for name in NAMES:
        for seed in range(4):
            made = scenario(name, seed, compliance=0.98)
            best = (await ceiling(made)).validation
            result = await Engine(made.agent, made.evaluator()).run(replace(request_for(made), max_rounds=2))
            assert best is not None
            reached.append(result.accepted_score or 0.0)
            highest.append(best)
            touched += [change.surface_id for change in result.changes if change.surface_id not in made.faulty]
    print(f"reached {fmean(reached):.3f} of {fmean(highest):.3f}; innocent surfaces changed: {touched}")  # noqa: T201
    assert fmean(reached) >= fmean(highest) - 0.05
    assert len(touched) <= 5  # in 20 runs that have 160 innocent surfaces


@pytest.mark.parametrize("name", NAMES)
async def test_the_result_is_the_same_whatever_the_concurrency(name: str) -> None:
    results = []
    for concurrency in (1, 64):
        made = scenario(name, 3)
        engine = Engine(made.agent, made.evaluator())
        results.append(await engine.run(request_for(made, final_test=FinalTest(), concurrency=concurrency)))
    first, second = (without_measured(orjson.loads(result.to_json())) for result in results)
    assert first == second
    assert results[0].conclusion is not None
    assert results[0].conclusion.scope == "these cases"
    assert {change.surface_id for change in results[0].changes} == made.faulty
    assert results[0].accepted_profile.to_json() == results[1].accepted_profile.to_json()
