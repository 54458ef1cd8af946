"""The bars of the loop: known faults in agents of ten models are found, fixed and shown, and nothing else changes.

`make test` takes one seed of each scenario, `make long` another one, and `benchmarks/bench_bars.py` all 20.
"""

from __future__ import annotations

from itertools import product
from statistics import fmean

import orjson
import pytest

from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.engine.engine import Engine
from promptiter.policies.final_test import FinalTest
from tests.marks import take_some
from tests.worlds.bars import (
    find_missed_bars,
    make_request,
    run_with_a_disobedient_model,
    run_with_expert,
    run_without_models,
    take_cases,
)
from tests.worlds.results import drop_measured
from tests.worlds.scenarios import NAMES, SEEDS, make_scenario

SOME_SEEDS = SEEDS[::10]
COMPARED = tuple(zip(NAMES, (0, 10, 0, 10, 0), strict=True))
"""Where the walk is compared with whole traces."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", take_some(SOME_SEEDS))
@pytest.mark.parametrize("name", NAMES)
async def test_the_stages_without_a_model_fix_the_faulty_surfaces_and_nothing_else(name: str, seed: int) -> None:
    made = make_scenario(name, seed)
    assert find_missed_bars(await run_without_models(made), made) == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), [each for each in product(NAMES, SOME_SEEDS) if each not in COMPARED])
async def test_the_llm_stages_fix_the_faulty_surfaces_and_nothing_else(name: str, seed: int) -> None:
    made = make_scenario(name, seed)
    assert find_missed_bars(await run_with_expert(made, LLMBackwarder("expert")), made) == []


@pytest.mark.slow
@pytest.mark.parametrize("compared", take_some(COMPARED, (("two_masked", 0), ("join", 10))), ids=str)
async def test_whole_traces_give_the_profile_of_the_walk_in_fewer_calls(compared: tuple[str, int]) -> None:
    made = make_scenario(*compared)
    whole, backwarder = LLMAttributor("expert"), LLMBackwarder("expert")
    profiles, calls = [], []
    for blame in (backwarder, whole, CheapestAttributor(whole, backwarder)):
        outcome = await run_with_expert(made, blame)
        assert find_missed_bars(outcome, made) == []
        profiles.append(outcome.result.accepted_profile.to_json())
        calls.append(outcome.calls["backwarder"])
    assert len(set(profiles)) == 1
    walk, one_each, chosen = calls
    assert one_each == chosen <= walk / 8


@pytest.mark.slow
@pytest.mark.parametrize("names", take_some((NAMES, ("join",)), (("join",),)), ids=len)
async def test_a_model_that_does_not_always_obey_comes_near_its_ceiling(names: tuple[str, ...]) -> None:
    outcomes = [await run_with_a_disobedient_model(name, seed=0) for name in names]
    assert fmean(each.score for each in outcomes) >= fmean(each.ceiling for each in outcomes) - 0.05
    assert sum(len(each.innocent_changes) for each in outcomes) <= len(names) / 2  # of 8 surfaces without a fault each


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[1::2])
async def test_the_result_does_not_depend_on_concurrency(name: str) -> None:
    results = []
    for concurrency in (1, 64):
        made = take_cases(make_scenario(name, 3), 8, 6)
        engine = Engine(made.agent, made.evaluator())
        results.append(await engine.run(make_request(made, final_test=FinalTest(), concurrency=concurrency)))
    first, second = (drop_measured(orjson.loads(result.to_json())) for result in results)
    assert first == second
    assert results[0].conclusion is not None
    assert results[0].conclusion.scope == "these cases"
    assert {change.surface_id for change in results[0].changes} == made.faulty
    assert results[0].accepted_profile.to_json() == results[1].accepted_profile.to_json()
