"""The goals of the loop on 20 seeds of every scenario: faults are found, fixed and shown, and nothing else changes.

Scenarios, runs and goals are those of the tests (`tests/worlds`), of which `make test` runs one seed. Each run should
reach every goal, both with the stages that need no model and with the LLM stages (a scripted expert replaces the
model). With a model that does not always obey, 20 runs of two rounds should come within 0.05 of the ceiling and change
at most 5 of the 160 surfaces without a fault. All cases of a scenario fail until all of its faults are fixed, except
those that a partial fault spares.

    python -m benchmarks.bench_bars [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import fmean
from typing import TypeVar

from benchmarks.measure import format_reached
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.stages.contracts import Attributor, Backwarder
from tests.worlds.bars import (
    NoisyOutcome,
    find_missed_bars,
    find_unexpected_scores,
    run_with_a_disobedient_model,
    run_with_expert,
    run_without_models,
)
from tests.worlds.scenarios import NAMES, SEEDS, make_scenario

STAGES = ("no model", "walk", "whole traces", "cheapest")
DISOBEDIENT_SEEDS = range(4)
WORKERS = 2

T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds instead of 20")
    seeds = SEEDS[:2] if parser.parse_args().quick else SEEDS
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        report_runs(list(pool.map(check_run, product(STAGES, NAMES, seeds))), runs=len(seeds))
        report_disobedient(list(pool.map(run_disobedient, product(NAMES, DISOBEDIENT_SEEDS[: len(seeds)]))))
        report_scenarios(list(pool.map(check_scenario, product(NAMES, seeds))))


def check_run(which: tuple[str, str, int]) -> tuple[str, str, list[str]]:
    stages, name, seed = which
    made = make_scenario(name, seed)
    if stages == "no model":
        outcome = asyncio.run(run_without_models(made))
    else:
        outcome = asyncio.run(run_with_expert(made, make_blame_stage(stages)))
    return stages, name, [f"seed {seed}: {missed}" for missed in find_missed_bars(outcome, made)]


def make_blame_stage(stages: str) -> Backwarder | Attributor:
    whole, walk = LLMAttributor("expert"), LLMBackwarder("expert")
    if stages == "cheapest":
        return CheapestAttributor(whole, walk)
    return walk if stages == "walk" else whole


def report_runs(found: Iterable[tuple[str, str, list[str]]], *, runs: int) -> None:
    by_kind: dict[tuple[str, str], list[list[str]]] = {}
    for stages, name, missed in found:
        by_kind.setdefault((stages, name), []).append(missed)
    print(f"runs that reach every goal, of {runs}\n")
    print(f"{'':14}" + "".join(f"{name:>14}" for name in NAMES))
    for stages in STAGES:
        print(f"{stages:14}" + "".join(f"{sum(not each for each in by_kind[stages, name]):14}" for name in NAMES))
    every_miss = [f"{stages}, {name}, {what}" for (stages, name), each in by_kind.items() for what in flatten(each)]
    print("\n".join(["", *every_miss, f"{len(every_miss)} goals missed; at most 0: {format_reached(not every_miss)}"]))


def run_disobedient(which: tuple[str, int]) -> NoisyOutcome:
    return asyncio.run(run_with_a_disobedient_model(*which))


def report_disobedient(found: list[NoisyOutcome]) -> None:
    short = fmean(each.ceiling for each in found) - fmean(each.score for each in found)
    innocent = flatten(each.innocent_changes for each in found)
    print(f"\na model that does not always obey, {len(found)} runs of two rounds")
    print(f"{short:.3f} below the ceiling; goal: at most 0.05: {format_reached(short <= 0.05)}")
    print(f"{len(innocent)} surfaces without a fault changed; goal: at most 5: {format_reached(len(innocent) <= 5)}")


def check_scenario(which: tuple[str, int]) -> list[str]:
    return asyncio.run(find_unexpected_scores(make_scenario(*which)))


def report_scenarios(found: list[list[str]]) -> None:
    wrong = flatten(found)
    print(
        "\n".join(["", *wrong, f"{len(found)} scenarios, all cases: scores as described: {format_reached(not wrong)}"])
    )


def flatten(parts: Iterable[Iterable[T]]) -> list[T]:
    return [each for part in parts for each in part]


if __name__ == "__main__":
    main()
