"""Searches on three worlds: how many of ten seeds reach the goal, and with how many case runs.

The worlds are those of `benchmarks/search_worlds.py`: rules (only instructions help, two together), rules_grouped
(coordinate descent with `co_optimize`), quadratic (six numbers, and a text that moves their optimum) and examples (only
few-shot examples help). `-` is a search that has nothing to change there.

With --tables, the statistics of `promptiter compare` on simulated result tables: how often equal searches are said to
differ, and how often half of the calls is found (standard deviation 0.3 of their logarithm between seeds). Then how
often equal searches are said to differ by someone who stops at the first of several results that claims something.

    python -m benchmarks.bench_searches [--seeds 10] [--worlds rules,quadratic,examples] [--searches backprop,gepa]
    python -m benchmarks.bench_searches --tables [--count 2000]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from time import perf_counter

from benchmarks.measure import format_reached
from benchmarks.search_worlds import WORLDS, WorldRun
from promptiter.evaluation.stats.search_differences import ALPHA, ComparedFigure, compare_figures
from tests.worlds.search_tables import draw_table

SEARCHES = ("backprop", "gepa", "coordinate_descent", "few_shot", "optuna", "random")
FIGURES: tuple[ComparedFigure, ...] = ("score", "usd", "calls")
GOALS: Mapping[tuple[str, str], tuple[float, float]] = {
    ("rules", "backprop"): (1.0, 1.0),
    ("quadratic", "coordinate_descent"): (0.9, 1.0),
    ("quadratic", "optuna"): (0.0, 0.3),
    ("examples", "few_shot"): (0.9, 1.0),
    ("examples", "backprop"): (0.0, 0.3),
    ("examples", "gepa"): (0.0, 0.3),
}
"""The share of seeds that should reach the goal, from and to."""

MOST_FALSE, LEAST_FOUND = 0.062, 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="names of worlds, separated by commas")
    parser.add_argument("--searches", default=",".join(SEARCHES), help="names of searches, separated by commas")
    parser.add_argument("--tables", action="store_true", help="simulate result tables instead")
    parser.add_argument("--count", type=int, default=2_000, help="number of tables")
    options = parser.parse_args()
    if options.tables:
        report_tables(options.count)
        return
    print(f"{'world':15}{'search':22}{'reached':>10}{'case runs':>11}{'stage calls':>13}{'seconds':>9}")
    for world in options.worlds.split(","):
        for search in options.searches.split(","):
            report_search(world, search, range(options.seeds))


def report_search(world: str, search: str, seeds: Sequence[int]) -> None:
    began = perf_counter()
    runs = [found for seed in seeds if (found := asyncio.run(WORLDS[world](search, seed))) is not None]
    if not runs:
        print(f"{world:15}{search:22}{'-':>10}")
        return
    seconds = (perf_counter() - began) / len(runs)
    print(
        f"{world:15}{search:22}{_count(runs):>10}{fmean(each.case_runs for each in runs):11,.0f}"
        f"{fmean(each.stage_calls for each in runs):13,.0f}{seconds:9.1f}{_judge(world, search, runs)}",
        flush=True,
    )


def report_tables(count: int) -> None:
    print(f"{count:,} tables{'equal, said to differ':>32}{'half of the calls, found':>28}")
    for seeds in (6, 8, 10):
        false, found = measure_tables(count, seeds=seeds)
        line = f"{seeds:>4} seeds{false:35.1%}{found:28.1%}"
        if seeds == 10:
            line += f"  goals: {format_reached(false <= MOST_FALSE)}, {format_reached(found >= LEAST_FOUND)}"
        print(line, flush=True)
    print(f"{'equal, said to differ, stopping at the first claim':>56}{'corrected':>13}")
    for looks in ((6, 10, 13), (10, 13)):
        plain, corrected = measure_looks(count, looks)
        print(f"  after {' and '.join(map(str, looks)):14}{plain:34.1%}{corrected:13.1%}", flush=True)


def measure_looks(count: int, looks: Sequence[int]) -> tuple[float, float]:
    """The shares of equal pairs that some look says differ: with its own p-value, and with that times its number."""
    rng, plain, corrected = Random(1), 0, 0
    for _ in range(count):
        table = draw_table(rng, seeds=max(looks))
        parts = [{name: {seed: runs[seed] for seed in range(look)} for name, runs in table.items()} for look in looks]
        p_values = [min(each.p_value or 0.0 for each in compare_figures(part, FIGURES)[0].figures) for part in parts]
        plain += any(each <= ALPHA for each in p_values)
        corrected += any(at * each <= ALPHA for at, each in enumerate(p_values, start=1))
    return plain / count, corrected / count


def measure_tables(count: int, *, seeds: int) -> tuple[float, float]:
    """The shares of equal pairs that are said to differ in anything, and of halved calls that are found."""
    rng, claims, found = Random(seeds), 0, 0
    for _ in range(count):
        [equal] = compare_figures(draw_table(rng, seeds=seeds), FIGURES)
        claims += any(each.is_shown for each in equal.figures)
        [halved] = compare_figures(draw_table(rng, seeds=seeds, ratios=(0.5, 1.0)), FIGURES)
        calls = halved.figure("calls")
        found += calls is not None and calls.is_better
    return claims / count, found / count


def _count(runs: Sequence[WorldRun]) -> str:
    return f"{sum(each.reached for each in runs)}/{len(runs)}"


def _judge(world: str, search: str, runs: Sequence[WorldRun]) -> str:
    """Whether a goal for this search is reached, if there is one."""
    if (world, search) not in GOALS:
        return ""
    low, high = GOALS[world, search]
    share = sum(each.reached for each in runs) / len(runs)
    return f"  goal {low:.0%} to {high:.0%}: {format_reached(low <= share <= high)}"


if __name__ == "__main__":
    main()
