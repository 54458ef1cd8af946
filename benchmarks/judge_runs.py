"""Runs of the whole Engine with a noisy judge over a steady agent: how often useless patches are reported as a gain.

python -m benchmarks.judge_runs [--runs N]
"""

from __future__ import annotations

import argparse
import asyncio
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import fmean

from benchmarks.tables import format_goal, print_header, print_row
from tests.worlds.noisy_judge import run_useless_patches

SIZES = (12, 30)
CHANCES = (0.5, 0.9)
"""How often the judge passes an answer: a coin, and a judge that slips now and then."""

WORKERS = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Whether a run reported a gain, and what it took."""

    improved: bool
    case_runs: int
    judge_calls: int


def run_once(number: int, *, size: int, chance: float) -> Found:
    run = asyncio.run(run_useless_patches(size=size, seed=f"judge {size} {chance} {number}", chance=chance))
    return Found(run.claims_gain, run.result.measured.paid_case_runs, run.judge_calls)


def report_judge_runs(runs: int, pool: Executor) -> None:
    print("\nnoisy judge over a steady agent: patches that change nothing; runs that report an improvement\n")
    print_header("cases", "judge passes", "improved", "case runs", "judge calls")
    for size in SIZES:
        for chance in CHANCES:
            found = list(pool.map(partial(run_once, size=size, chance=chance), range(runs)))
            improved = sum(each.improved for each in found)
            costs = (fmean(each.case_runs for each in found), fmean(each.judge_calls for each in found))
            print_row(f"{size}", f"{chance:.0%}", f"{improved}", *(f"{cost:,.0f}" for cost in costs))
            print(format_goal("reported", improved, runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100, metavar="N", help="runs of each kind")
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        report_judge_runs(parser.parse_args().runs, pool)


if __name__ == "__main__":
    main()
