"""Whole runs of the Engine with patches that have no true gain, in the scenarios of the final test.

A check of the wiring: `bench_final_test` simulates the same tests by the thousand. At most 11 of 100 runs may report an
improvement, which a rate of 5% exceeds in about 1 of 200.

    python -m benchmarks.final_test_runs [--runs N] [--only WORD]
"""

from __future__ import annotations

import argparse
import asyncio
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import fmean

from benchmarks.tables import format_goal
from tests.worlds.null_runs import SCORES, run_null_patch

SIZES = (12, 30)
WORKERS = 2


def run_once(number: int, *, scenario: str, size: int) -> tuple[bool, int]:
    """Whether a run reports an improvement, and the case runs it took."""
    result = asyncio.run(run_null_patch(scenario, size=size, seed=f"null {scenario} {size} {number}"))
    return result.verdict.startswith("improved"), result.measured.paid_case_runs


def report_null_runs(runs: int, pool: Executor, *, only: str = "") -> None:
    print("\none patch without a true gain through the Engine: runs that report an improvement, case runs\n")
    for scenario in (name for name in SCORES if only in name):
        for size in SIZES:
            found = list(pool.map(partial(run_once, scenario=scenario, size=size), range(runs)))
            claimed, paid = sum(improved for improved, _ in found), fmean(paid for _, paid in found)
            print(f"{scenario:38} {size:>3} cases {paid:>6,.0f}  {format_goal('reported', claimed, runs)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="runs of each kind")
    parser.add_argument("--only", default="", metavar="WORD", help="only the scenarios whose name contains this")
    options = parser.parse_args()
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        report_null_runs(options.runs, pool, only=options.only)


if __name__ == "__main__":
    main()
