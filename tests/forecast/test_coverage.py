"""Forecasts hold: what a run takes is between `low` and `high`, and the range is not too wide.

One run of each scenario; `benchmarks/bench_forecast.py` takes 200, with a goal of 85%.
"""

from __future__ import annotations

from statistics import median

import pytest

from tests.worlds.forecast_runs import run_once

NUMBERS = (1, 4, 7, 8, 10)


@pytest.mark.slow
@pytest.mark.long
def test_most_runs_stay_within_their_forecast() -> None:
    outcomes = [run_once(number) for number in NUMBERS]
    assert {outcome.kind[2] for outcome in outcomes} == {"baseline", "short run"}
    for figure in ("calls", "tokens", "dollars"):
        assert sum(each.covers(figure) for each in outcomes) >= 4, figure
        widths = [each.forecast[figure].high / each.forecast[figure].low for each in outcomes]
        assert median(widths) < 5, figure
        assert max(widths) < 12, figure
