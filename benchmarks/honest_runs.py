"""Runs of the whole Engine for the benchmark of honesty: what it claims of patches whose worth is known.

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

from benchmarks.tables import GAINS, SIZES, goal, head, row
from promptiter.engine.engine import Engine
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain, MinGain
from promptiter.policies.evidence import Answer, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stopping import MaxRounds
from promptiter.runlog.results import RunRequest
from tests.worlds.chances import CANDIDATES, MENDS, ROUNDS, Proposes, Table, Wanted, eval_set, proposals, right

WORKERS = 2


class PairedError:
    """Accepts what exceeds its standard error, paired by case: a rule that others use."""

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
"""Which candidates a run keeps, and whether it claims at its end."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the run said: whether it claims, for new cases too; whether the real patch is adopted; runs paid."""

    wanted: Wanted
    claims: bool
    claims_new: bool
    adopts_real: bool
    case_runs: int


def run_once(wanted: Wanted) -> Found:
    random = Random(repr(wanted))
    table = Table(wanted, seed=repr(wanted))
    policy, claims = RULES[wanted.rule]
    request = RunRequest(
        train=eval_set("train", wanted.size),
        validation=eval_set("validation", wanted.size),
        test=eval_set("test", wanted.size) if wanted.kind == "placebo" else None,
        acceptance=policy(),
        final_test=FinalTest() if claims else None,
        max_rounds=ROUNDS,
        stop=MaxRounds(ROUNDS),
        run_id="honesty",
    )
    evaluator = Evaluator([FunctionMetric(name="right", function=right)], options=EvaluationOptions(concurrency=4))
    strategy = Proposes(list(proposals(wanted, random)), until_kept=not claims)
    result = asyncio.run(Engine(table, evaluator, search=strategy).run(request))
    changed = {str(change.after) for change in result.changes}
    return Found(
        wanted=wanted,
        claims=result.verdict == "improved",
        claims_new=result.conclusion is not None and result.conclusion.scope == "new cases",
        adopts_real=any(text.startswith(MENDS) for text in changed),
        case_runs=result.measured.paid_case_runs,
    )


def through_the_engine(runs: int) -> None:
    print(f"\n\nthrough the Engine: {runs} runs of each")
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:

        def all_of(wanted: Wanted) -> list[Found]:
            return list(pool.map(run_once, [replace(wanted, number=number) for number in range(runs)]))

        nothing_changes_here(all_of)
        placebos_here(all_of)
        one_of_ten_here(all_of)
        settled_here(all_of)


Runs: TypeAlias = Callable[[Wanted], list[Found]]


def nothing_changes_here(all_of: Runs) -> None:
    print(f"\nA/A: {ROUNDS} patches of other bytes and the same behaviour; runs that claim, and case runs\n")
    head("cases", *RULES, "runs: default")
    in_all = 0
    for size in SIZES:
        found = {rule: all_of(Wanted(kind="alike", size=size, number=0, rule=rule)) for rule in RULES}
        rates = [f"{fmean(each.claims for each in results):.1%}" for results in found.values()]
        row(f"{size}", *rates, paid(found["default"]))
        claimed = sum(each.claims for each in found["default"])
        print(goal("claimed by the default", claimed, len(found["default"])))
        in_all += claimed
    print(goal("claimed by the default at all sizes", in_all, len(SIZES) * len(found["default"])))


def placebos_here(all_of: Runs) -> None:
    print(f"\nplacebo: {ROUNDS} rewrites that reshuffle which cases pass; as many test cases\n")
    head("cases", "these cases", "new cases", "case runs")
    for size in SIZES:
        found = all_of(Wanted(kind="placebo", size=size, number=0))
        new = sum(each.claims_new for each in found)
        row(f"{size}", f"{fmean(each.claims for each in found):.1%}", f"{new / len(found):.1%}", paid(found))
        print(goal("claimed for new cases", new, len(found)))


def one_of_ten_here(all_of: Runs) -> None:
    print(f"\npower: 1 real candidate of {CANDIDATES}; claimed with the real patch in it, and case runs\n")
    head("cases, gain", "default", "runs: default")
    for size in SIZES:
        for gain in GAINS:
            found = all_of(Wanted(kind="one of ten", size=size, number=0, gain=gain))
            row(f"{size}, +{gain}", f"{fmean(each.claims and each.adopts_real for each in found):.2f}", paid(found))


def settled_here(all_of: Runs) -> None:
    print("\nwithout run noise: claimed\n")
    head("cases", "nothing changed", "one case mended")
    for size in SIZES:
        same, better = (all_of(Wanted(kind=kind, size=size, number=0)) for kind in ("settled, alike", "settled"))
        row(f"{size}", *(f"{sum(each.claims for each in found)} of {len(found)}" for found in (same, better)))


def paid(found: Sequence[Found]) -> str:
    return f"{fmean(each.case_runs for each in found):,.0f}"
