"""A seeded sample of `benchmarks.bench_final_test`: patches without a true gain are rarely claimed as one."""

from __future__ import annotations

from random import Random

import pytest

from tests.worlds.final_tests import RESHUFFLES, SCENARIOS, SKEWED, Scenario

TESTS = 100
MOST = 11
"""A rate of 5% yields more in 1 of 200 samples of 100."""


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_no_true_gain_is_rarely_claimed_for_these_cases(scenario: Scenario) -> None:
    assert count_claims(scenario, 12) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [RESHUFFLES["deterministic agent, rounds 1"], RESHUFFLES["noisy agent, rounds 6"]])
def test_reshuffling_rewrites_are_rarely_claimed_for_new_cases(scenario: Scenario) -> None:
    assert count_claims(scenario, 30) <= MOST


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SKEWED.values(), ids=SKEWED)
def test_skewed_changes_of_test_cases_are_rarely_claimed(scenario: Scenario) -> None:
    assert count_claims(scenario, 20) <= MOST


def count_claims(scenario: Scenario, size: int) -> int:
    random = Random(size)
    return sum(scenario(size, random).is_claimed for _ in range(TESTS))
