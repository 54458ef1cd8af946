"""How often forecasts hold: 200 runs of simulated agents, each forecast from one earlier run of the same agent.

The earlier run evaluates only the baseline, or takes one round. The agents are those of tests/worlds/scenarios: ten
model nodes with known faults, in chains, joins and loops. Runs differ in eval set sizes, repeats, how reliably the
model obeys, whether stages ask models, test sets, final tests and budgets that cut the search. A forecast holds if what
the run took is between `low` and `high`. Goal: at least 85% of the runs, for calls, tokens and dollars; for seconds
too, unless the machine is busy. A wide range holds easily, so the median widths are printed as well.

The assumptions of promptiter/forecast were chosen on the runs 0 to 49, 1000 to 1119, 4000 to 4039, 5000 to 5039, 6000
to 6119 and 7000 to 7079; the runs 50 to 199 played no part in this.

    python -m benchmarks.bench_forecast [--quick] [--first 3000]
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from statistics import fmean, median

from benchmarks.measure import format_reached
from promptiter.runs.stage_costs import STAGES
from tests.worlds.forecast_runs import Outcome, run_once

RUNS, QUICK_RUNS = 200, 40
WORKERS = 2
MIN_COVERED = 0.85
FIGURES = ("calls", "tokens", "dollars", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_RUNS} runs")
    parser.add_argument("--first", type=int, default=0, help="number of the first run; other numbers are other runs")
    options = parser.parse_args()
    numbers = range(options.first, options.first + (QUICK_RUNS if options.quick else RUNS))
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        report(list(pool.map(run_once, numbers)))


def report(outcomes: list[Outcome]) -> None:
    print(f"{len(outcomes)} runs; widths are medians\n")
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
    print("\ncalls covered, by setting:")
    for name in sorted({part for each in outcomes for part in each.kind}):
        those = [each for each in outcomes if name in each.kind]
        print(f"  {name:18}{fmean(each.covers('calls') for each in those):6.0%} of {len(those)}")
    for figure in FIGURES:
        share = fmean(each.covers(figure) for each in outcomes)
        reached = format_reached(share >= MIN_COVERED)
        print(f"\n{share:.1%} of the runs within the forecast of {figure}; goal: at least {MIN_COVERED:.0%}: {reached}")


if __name__ == "__main__":
    main()
