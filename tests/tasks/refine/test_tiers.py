from __future__ import annotations

import pytest

from promptiter.errors import SetupError
from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.tiers import TierPlan, clamp_iterations, find_tier, parse_pair

TABLE = {
    1: "H",
    2: "LH",
    3: "LMH",
    4: "LLMH",
    5: "LLMMH",
    6: "LLMMHH",
    7: "LLLMMHH",
    8: "LLLMMMHH",
    9: "LLLMMMHHH",
    10: "LLLLMMMHHH",
}
SEED = ModelPair(manager="seed-manager", worker="seed-worker")


@pytest.mark.parametrize(("of", "tiers"), TABLE.items())
def test_the_tiers_are_those_of_the_table(of: int, tiers: str) -> None:
    assert "".join(find_tier(number, of)[0].upper() for number in range(1, of + 1)) == tiers


def test_an_iteration_that_does_not_exist_has_no_tier() -> None:
    with pytest.raises(SetupError, match="iteration 4 of 3"):
        find_tier(4, 3)


@pytest.mark.parametrize(("wanted", "got"), [(-1, 1), (0, 1), (1, 1), (7, 7), (10, 10), (99, 10)])
def test_iterations_are_clamped(wanted: int, got: int) -> None:
    assert clamp_iterations(wanted) == got


@pytest.mark.parametrize(
    ("text", "manager", "worker"),
    [
        ("a:b", "a", "b"),
        ("a", "a", ""),
        (":b", "", "b"),
        ("a:", "a", ""),
        (":", "", ""),
        ("deepseek/v3.1:ollama/qwen:7b", "deepseek/v3.1", "ollama/qwen:7b"),
    ],
)
def test_a_pair_is_split_at_the_first_colon(text: str, manager: str, worker: str) -> None:
    assert parse_pair(text) == ModelPair(manager=manager, worker=worker)


def test_an_empty_side_falls_back_to_the_seed() -> None:
    plan = TierPlan(low=parse_pair("small:"), high=parse_pair(":large"))
    assert plan.resolve(1, 3, seed=SEED) == ModelPair(manager="small", worker="seed-worker")
    assert plan.resolve(2, 3, seed=SEED) == SEED
    assert plan.resolve(3, 3, seed=SEED) == ModelPair(manager="seed-manager", worker="large")
    assert plan.models == ("large", "small")


def test_a_plan_without_models_is_trivial() -> None:
    assert TierPlan().is_trivial
    assert TierPlan(low=parse_pair(":")).is_trivial
    assert not TierPlan(mid=parse_pair("x:")).is_trivial
    assert {TierPlan().resolve(number, 5, seed=SEED) for number in range(1, 6)} == {SEED}
