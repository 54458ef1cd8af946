"""GEPA on the rules world: with blame it solves what one mini-batch can show, at no more case runs than gepa's own."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.gepa_runs import BUDGET, VARIANTS, Variant, run_gepa, run_gepa_here
from tests.marks import take_some
from tests.worlds.planted_world import run_gepa_search
from tests.worlds.planted_worlds import make_world

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", take_some(("one", "coupled", "join", "rare"), ("coupled", "rare")))
async def test_with_blame_it_reaches_the_ceiling_and_changes_no_innocent_text(name: str) -> None:
    world = make_world(name, 0)
    outcome = await run_gepa_search(world, module_selector="blame")
    assert outcome.result.accepted_score == 1.0
    assert outcome.changed == world.faulty


@pytest.mark.parametrize("variant", take_some(VARIANTS, VARIANTS[3:4]))
def test_it_takes_no_more_case_runs_than_gepa(variant: Variant) -> None:
    theirs = run_gepa(make_world("rare", 0), variant, seed=0)
    here = asyncio.run(run_gepa_here(make_world("rare", 0), variant))
    assert here.case_runs <= 1.1 * theirs.case_runs < BUDGET
    assert here.reflection.calls == theirs.reflection.calls
