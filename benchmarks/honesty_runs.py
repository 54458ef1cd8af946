"""Runs of the whole Engine for the honesty benchmark: its verdicts on patches whose effect is known.

The agent and the patches are those of `tests.worlds.chances`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from math import sqrt
from multiprocessing import get_context
from random import Random
from statistics import fmean, stdev
from typing import TypeAlias

from benchmarks.tables import GAINS, SIZES, format_goal, print_header, print_row
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain, MinGain
from promptiter.policies.evidence import Answer, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stopping import MaxRounds
from tests.worlds.chances import (
    CANDIDATES,
    FIXES,
    ROUNDS,
    PassRates,
    Proposes,
    RunSpec,
    is_right,
    list_patches,
    make_eval_set,
)

WORKERS = 2


class PairedError:
    """Accepts a gain that exceeds its standard error, paired by case."""

    def decide(self, evidence: Evidence) -> Answer:
        changes = [delta.change for delta in evidence.deltas]
        gains = fmean(changes) > stdev(changes) / sqrt(len(changes))
        return evidence.accept("above its standard error") if gains else evidence.reject("within its standard error")


RULES: dict[str, tuple[Callable[[], AcceptancePolicy], bool]] = {
    "default": (AnyGain, True),
    "MinGain(0.01)": (lambda: MinGain(0.01), False),
    "SigmaGain": (SigmaGain, False),
    "paired 1 SE": (PairedError, False),
}
"""Which candidates a run accepts, and whether it ends with a final test."""


@dataclass(frozen=True, slots=True)
class Found:
    """The verdict of a run: improved, also on new cases; whether the real patch is adopted; paid case runs."""

    spec: RunSpec
    improved: bool
    improved_new: bool
    adopts_real: bool
    case_runs: int


def run_once(spec: RunSpec) -> Found:
    random = Random(spec.seed)
    agent = PassRates(spec, seed=spec.seed)
    policy, has_final_test = RULES[spec.rule]
    request = RunRequest(
        train=make_eval_set("train", spec.size),
        validation=make_eval_set("validation", spec.size),
        test=make_eval_set("test", spec.size) if spec.kind == "placebo" else None,
        acceptance=policy(),
        final_test=FinalTest() if has_final_test else None,
        max_rounds=ROUNDS,
        stop=MaxRounds(ROUNDS),
        run_id="honesty",
    )
    evaluator = Evaluator([FunctionMetric(name="right", function=is_right)], options=EvaluationOptions(concurrency=4))
    search = Proposes(list(list_patches(spec, random)), until_accepted=not has_final_test)
    result = asyncio.run(Engine(agent, evaluator, search=search).run(request))
    changed = {str(change.after) for change in result.changes}
    return Found(
        spec=spec,
        improved=result.conclusion is not None and result.conclusion.adopts,
        improved_new=result.verdict == "improved",
        adopts_real=any(text.startswith(FIXES) for text in changed),
        case_runs=result.measured.paid_case_runs,
    )


def report_engine_runs(runs: int) -> None:
    print(f"\n\nthrough the Engine: {runs} runs of each")
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:

        def run_all(spec: RunSpec) -> list[Found]:
            return list(pool.map(run_once, [replace(spec, number=number) for number in range(runs)]))

        report_null_patches(run_all)
        report_placebos(run_all)
        report_power(run_all)
        report_without_noise(run_all)


RunAll: TypeAlias = Callable[[RunSpec], list[Found]]


def report_null_patches(run_all: RunAll) -> None:
    print(f"\nA/A: {ROUNDS} patches with other words, same behaviour; runs that report an improvement, case runs\n")
    print_header("cases", *RULES, "runs: default")
    in_all = 0
    for size in SIZES:
        found = {rule: run_all(RunSpec(kind="alike", size=size, number=0, rule=rule)) for rule in RULES}
        rates = [f"{fmean(each.improved for each in results):.1%}" for results in found.values()]
        print_row(f"{size}", *rates, format_case_runs(found["default"]))
        improved = sum(each.improved for each in found["default"])
        print(format_goal("reported by the default", improved, len(found["default"])))
        in_all += improved
    print(format_goal("reported by the default at all sizes", in_all, len(SIZES) * len(found["default"])))


def report_placebos(run_all: RunAll) -> None:
    print(f"\nplacebo: {ROUNDS} rewrites that reshuffle which cases pass; as many test cases\n")
    print_header("cases", "these cases", "new cases", "case runs")
    for size in SIZES:
        found = run_all(RunSpec(kind="placebo", size=size, number=0))
        new = sum(each.improved_new for each in found)
        print_row(
            f"{size}",
            f"{fmean(each.improved for each in found):.1%}",
            f"{new / len(found):.1%}",
            format_case_runs(found),
        )
        print(format_goal("reported for new cases", new, len(found)))


def report_power(run_all: RunAll) -> None:
    print(f"\npower: 1 real candidate of {CANDIDATES}; found with the real patch adopted, and case runs\n")
    print_header("cases, gain", "default", "runs: default")
    for size in SIZES:
        for gain in GAINS:
            found = run_all(RunSpec(kind="one of ten", size=size, number=0, gain=gain))
            print_row(
                f"{size}, +{gain}",
                f"{fmean(each.improved and each.adopts_real for each in found):.2f}",
                format_case_runs(found),
            )


def report_without_noise(run_all: RunAll) -> None:
    print("\nwithout run noise: runs that report an improvement\n")
    print_header("cases", "nothing changed", "one case fixed")
    for size in SIZES:
        same, better = (run_all(RunSpec(kind=kind, size=size, number=0)) for kind in ("settled, alike", "settled"))
        print_row(f"{size}", *(f"{sum(each.improved for each in found)} of {len(found)}" for found in (same, better)))


def format_case_runs(found: Sequence[Found]) -> str:
    return f"{fmean(each.case_runs for each in found):,.0f}"
