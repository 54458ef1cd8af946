"""Forecasts hold: what runs take lies between `low` and `high` (the benchmark has 200 runs, and the bar of 85%)."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from tests.worlds.forecast_runs import run_once

RUNS = 12


@pytest.mark.slow
def test_most_runs_take_what_was_forecast() -> None:
    outcomes = [run_once(number) for number in range(RUNS)]
    for figure in ("calls", "tokens", "dollars"):
        assert fmean(each.covers(figure) for each in outcomes) >= 0.75, figure
        widths = [each.forecast[figure].high / each.forecast[figure].low for each in outcomes]
        assert median(widths) < 5, figure
        assert max(widths) < 12, figure
