"""Planted worlds: a scripted expert that sees only its prompts finds and fixes the faults, and changes nothing else.

The tests take one seed of each world, `benchmarks/bench_worlds.py` ten, with slips and an expert that may be wrong.
"""

from __future__ import annotations

import pytest

from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.profile import Profile
from tests.marks import take_some
from tests.worlds.exit_loop import make_exit_loop_world
from tests.worlds.planted_world import EXPERT, PlantedWorld, optimize_world
from tests.worlds.planted_worlds import make_world
from tests.worlds.rules_world import SCENARIOS, RulesScenario, make_rules_world
from tests.worlds.usual_suspect import MORE


@pytest.mark.slow
@pytest.mark.parametrize("scenario", take_some(SCENARIOS, ("one", "coupled", "masked")))
async def test_the_faults_of_the_rules_world_are_fixed_and_nothing_else_changes(scenario: RulesScenario) -> None:
    await check_run(make_rules_world(scenario, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "long-worded",
        "triage",
        "single",
        "exit-loop",
        "wrong-route",
        "handbook",
        "usual-suspect",
        "skill-file",
        "third-turn",
    ],
)
async def test_the_faults_of_the_other_worlds_are_fixed_and_nothing_else_changes(name: str) -> None:
    await check_run(make_world(name, seed=0))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triage", "exit-loop", "wrong-route", "third-turn"])
async def test_a_walk_finds_the_faults_of_the_small_worlds(name: str) -> None:
    world = make_world(name, seed=1)
    assert (await optimize_world(world, blame=LLMBackwarder(EXPERT))).changed == world.faulty


@pytest.mark.long
async def test_the_fault_of_a_long_loop_is_fixed_though_its_trace_is_cut_to_fit() -> None:
    world = make_exit_loop_world(1, most=60)
    blame = LLMAttributor(EXPERT, max_prompt_tokens=4_000)
    assert (await optimize_world(world, blame=blame)).changed == world.faulty


@pytest.mark.parametrize("name", ["triage", "single", "exit-loop"])
async def test_the_small_worlds_pass_every_case_only_with_the_perfect_profile(name: str) -> None:
    world = make_world(name, seed=0)
    assert await world.measure_score() < 0.6
    assert await world.measure_score(world.perfect) == 1.0


async def test_the_wrong_route_hides_a_fault_that_costs_more_than_the_route_wins() -> None:
    world = make_world("wrong-route", seed=0)
    routed = world.make_profile({"router#instruction": world.fixes["router#instruction"]})
    assert await world.measure_score(routed) < await world.measure_score() < 1.0
    assert await world.measure_score(world.perfect) == 1.0


@pytest.mark.slow
async def test_a_patch_of_the_usual_suspect_hides_that_the_faults_are_fixed() -> None:
    world = make_world("usual-suspect", seed=0)
    assert await world.measure_score(world.perfect) == 1.0
    for value in ({surface_id: fix} for surface_id, fix in world.fixes.items()):
        assert await world.measure_score(world.make_profile(value)) == await world.measure_score() == 0.0
    more = {"label#instruction": f"{world.texts['label#instruction']} {MORE}"}
    assert await world.measure_score(world.make_profile({**world.fixes, **more})) == 0.0


@pytest.mark.long
async def test_a_walk_and_whole_traces_fix_the_same_surface() -> None:
    world = make_rules_world("join", seed=1)
    walk = await optimize_world(world, blame=LLMBackwarder(EXPERT))
    whole = await optimize_world(world, blame=LLMAttributor(EXPERT))
    assert walk.changed == whole.changed == world.faulty
    assert walk.expert.calls["blame"] > whole.expert.calls["blame"]


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_rules_world_passes_every_case_only_once_all_faults_are_fixed(scenario: RulesScenario) -> None:
    world = make_rules_world(scenario, seed=0)
    assert await world.measure_score() == pytest.approx(33 / 36 if "rare" in scenario else 0.0)
    assert await world.measure_score(world.perfect) == 1.0
    if len(world.faulty) > 1:
        [first, _] = sorted(world.faulty)
        half = Profile.of(world.agent.describe(), {first: world.fixes[first]})
        assert await world.measure_score(half) == await world.measure_score()


async def check_run(world: PlantedWorld) -> None:
    """Optimize the agent; every case must pass with the final profile."""
    outcome = await optimize_world(world)
    assert outcome.changed == world.faulty
    assert await world.measure_score(outcome.result.accepted_profile) == 1.0
