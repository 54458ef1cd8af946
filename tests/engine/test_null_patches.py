"""Runs of patches without a true gain. `benchmarks.final_test_runs` has more of them."""

from __future__ import annotations

import pytest

from tests.worlds.null_runs import SCORES, run_null_patch


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCORES)
async def test_a_patch_without_a_true_gain_is_rarely_reported(scenario: str) -> None:
    verdicts = [(await run_null_patch(scenario, size=12, seed=f"test {number}")).verdict for number in range(4)]
    assert sum(verdict.startswith("improved") for verdict in verdicts) <= 1
