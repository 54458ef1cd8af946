"""How good forecasts are: 200 simulated runs, each forecast from one earlier evaluation or short run of the same agent.

The agents are those of the bars (tests/worlds/scenarios): ten simulated models with known faults, in chains, joins and
loops; with sets of several sizes, several repeats, models that obey always or not always, stages that ask models or do
not, test sets, runs without a final test, and budgets that cut the search. A forecast is right if what the run took
lies between `low` and `high`. Goal: in at least 85% of the runs, for calls, tokens and dollars; for seconds too, unless
the machine is busy. A range that is wide enough is always right, so the median widths are printed beside the goal.

The assumptions of promptiter/forecast/estimate.py were chosen on runs 1000 to 1199, and are checked on runs 0 to 199.

    python -m benchmarks.bench_forecast [--quick] [--first 1000]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean, median

from promptiter.forecast.stage_costs import STAGES
from tests.worlds.forecast_runs import Outcome, run_once

RUNS, QUICK_RUNS = 200, 40
WORKERS = 2
LEAST_COVERED = 0.85
FIGURES = ("calls", "tokens", "dollars", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs")
    parser.add_argument("--first", type=int, default=0, help="number of the first run: other numbers are other runs")
    options = parser.parse_args()
    numbers = range(options.first, options.first + (QUICK_RUNS if options.quick else RUNS))
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        report(list(pool.map(run_once, numbers)))


def report(outcomes: list[Outcome]) -> None:
    print(f"{len(outcomes)} simulated runs; widths are medians\n")
    print(f"{'':10}{'covered':>9}{'below':>8}{'above':>8}{'high/low':>10}{'high/typical':>14}{'fact/typical':>14}")
    for figure in FIGURES:
        ranges = [each.forecast[figure] for each in outcomes]
        facts = [each.fact[figure] for each in outcomes]
        below = fmean(fact < each.low for fact, each in zip(facts, ranges, strict=True))
        above = fmean(fact > each.high for fact, each in zip(facts, ranges, strict=True))
        whole, upper = (
            median(each.high / max(1e-9, getattr(each, low)) for each in ranges) for low in ("low", "typical")
        )
        ratio = median(fact / max(1e-9, each.typical) for fact, each in zip(facts, ranges, strict=True))
        print(f"{figure:10}{1 - below - above:9.1%}{below:8.1%}{above:8.1%}{whole:10.2f}{upper:14.2f}{ratio:14.2f}")
    print("\ncalls covered, by stage:")
    for stage in STAGES:
        those = [each for each in outcomes if stage in each.forecast or stage in each.fact]
        if those:
            print(f"  {stage:18}{fmean(each.covers(stage) for each in those):6.0%} of {len(those)}")
    print("\ncalls covered, by what the runs were made of:")
    for name in sorted({part for each in outcomes for part in each.kind}):
        those = [each for each in outcomes if name in each.kind]
        print(f"  {name:18}{fmean(each.covers('calls') for each in those):6.0%} of {len(those)}")
    for figure in FIGURES:
        share = fmean(each.covers(figure) for each in outcomes)
        reached = "reached" if share >= LEAST_COVERED else "MISSED"
        print(
            f"\n{share:.1%} of the runs within the forecast of {figure}; goal: at least {LEAST_COVERED:.0%}: {reached}"
        )


if __name__ == "__main__":
    main()
