"""GEPA on the rules world: with blame it solves what a mini-batch can show."""

from __future__ import annotations

import pytest

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
