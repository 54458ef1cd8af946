"""The planted worlds by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from tests.worlds.exit_loop import make_exit_loop_world
from tests.worlds.handbook import make_handbook_world
from tests.worlds.planted_world import PlantedWorld
from tests.worlds.rules_world import LONG, SCENARIOS, make_rules_world
from tests.worlds.single_prompt import make_single_prompt_world
from tests.worlds.skill_file import make_skill_file_world
from tests.worlds.third_turn import make_third_turn_world
from tests.worlds.triage_world import make_triage_world
from tests.worlds.usual_suspect import make_usual_suspect_world
from tests.worlds.wrong_route import make_wrong_route_world

WORLDS: Mapping[str, Callable[..., PlantedWorld]] = {
    **{scenario: partial(make_rules_world, scenario) for scenario in SCENARIOS},
    "long-worded": partial(make_rules_world, "one", wording=LONG),
    "triage": make_triage_world,
    "single": make_single_prompt_world,
    "exit-loop": make_exit_loop_world,
    "wrong-route": make_wrong_route_world,
    "handbook": make_handbook_world,
    "usual-suspect": make_usual_suspect_world,
    "skill-file": make_skill_file_world,
    "third-turn": make_third_turn_world,
}
"""Makers of worlds; each takes a seed and the chance of a slip."""


def make_world(name: str, seed: int, *, slip: float = 0.0) -> PlantedWorld:
    return WORLDS[name](seed, slip=slip)
