"""Forecasts hold: what runs take lies between p5 and p95 (the benchmark has 200 runs, and the bar of 85%)."""

from __future__ import annotations

from statistics import fmean, median

import pytest

from benchmarks.bench_forecast import run_once

RUNS = 12


@pytest.mark.slow
def test_most_runs_take_what_was_forecast() -> None:
    outcomes = [run_once(number) for number in range(RUNS)]
    for figure in ("calls", "tokens", "dollars"):
        assert fmean(each.covers(figure) for each in outcomes) >= 0.75, figure
        widths = [each.forecast[figure].p95 / each.forecast[figure].p5 for each in outcomes]
        assert median(widths) < 5, figure
        assert max(widths) < 12, figure
