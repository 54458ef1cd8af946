"""A noisy judge over a steady agent: its luck is not a gain. `benchmarks.judge_runs` has more runs."""

from __future__ import annotations

import pytest

from tests.worlds.noisy_judge import run_useless_patches


async def test_every_case_run_of_a_run_is_judged_by_an_answer_of_its_own() -> None:
    run = await run_useless_patches(size=4, seed="wiring")
    assert run.judge_calls == run.result.measured.paid_case_runs


@pytest.mark.slow
async def test_the_luck_of_a_judge_is_not_reported_as_a_gain() -> None:
    runs = [await run_useless_patches(size=12, seed=f"run {number}") for number in range(6)]
    assert sum(run.claims_gain for run in runs) <= 1  # with one verdict for all repeats, about 4 of 6
