"""Runs of the whole Engine for the benchmark of honesty: what it claims of patches whose worth is known.

The agent is a table: a case passes a run with a chance that the texts of the profile decide, by dice of the case, the
draw and the profile. It asks nothing through the gateway, so nothing comes from the cache; a run that is made again is
the same, as it would be from one, so that a claim on draws which were used before would show. The strategy proposes
what it is told and lints nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import sqrt
from multiprocessing import get_context
from random import Random
from statistics import fmean, stdev
from typing import Literal, TypeAlias

from benchmarks.tables import GAINS, SIZES, goal, head, row
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.graph import Edge, GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.acceptance import AcceptancePolicy, AnyGain, MinGain
from promptiter.engine.conclusion import ClaimOnce
from promptiter.engine.engine import Engine
from promptiter.engine.evidence import Answer, Evidence
from promptiter.engine.records import RunRequest
from promptiter.engine.session import Session
from promptiter.engine.sigma import SigmaGain
from promptiter.engine.stopping import MaxRounds
from promptiter.evaluation.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics import FunctionMetric
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.structure import StructureSnapshot

BETA = (0.6, 0.4)
WORKERS = 2
ROUNDS, CANDIDATES = 20, 10
SURFACES = 4
"""A search of 20 rounds comes back to the same few texts; each of 10 candidates has one of its own."""

Kind: TypeAlias = Literal["alike", "placebo", "one of ten", "settled", "settled, alike"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One run of the Engine: which patches, kept by which rule, on how many cases."""

    kind: Kind
    size: int
    number: int
    rule: str = "default"
    gain: float = 0.0


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
        claim=ClaimOnce() if claims else None,
        max_rounds=ROUNDS,
        stop=MaxRounds(ROUNDS),
        run_id="honesty",
    )
    evaluator = Evaluator([FunctionMetric(name="right", function=right)], options=EvaluationOptions(concurrency=4))
    strategy = Proposes(list(proposals(wanted, random)), until_kept=not claims)
    result = asyncio.run(Engine(table, evaluator, strategy=strategy).run(request))
    changed = {str(change.after) for change in result.changes}
    return Found(
        wanted=wanted,
        claims=result.verdict == "improved",
        claims_new=result.conclusion is not None and result.conclusion.scope == "new cases",
        adopts_real=any(text.startswith(MENDS) for text in changed),
        case_runs=result.measured.paid_case_runs,
    )


RESTYLES, RESHUFFLES, MENDS = "Words", "Rewritten", "Better"


def proposals(wanted: Wanted, random: Random) -> Iterator[tuple[str, str]]:
    """The surface and the text of each candidate."""
    if wanted.kind == "one of ten":
        real = random.randrange(CANDIDATES)
        for number in range(CANDIDATES):
            yield f"part{number}#instruction", f"{MENDS if number == real else RESTYLES} {number}."
        return
    word = {"placebo": RESHUFFLES, "settled": MENDS}.get(wanted.kind, RESTYLES)
    for number in range(1 if wanted.kind == "settled" else ROUNDS):
        yield f"part{number % SURFACES}#instruction", f"{word} {number}."


class Proposes:
    """Validates one patch a round; without a claim to come, until one is kept."""

    def __init__(self, patches: Sequence[tuple[str, str]], *, until_kept: bool) -> None:
        self.patches = patches
        self.until_kept = until_kept

    async def search(self, session: Session) -> None:
        for surface_id, text in self.patches:
            await session.begin_round()
            patch = SurfacePatch(surface_id=surface_id, value=text, reason="proposed")
            decision = await session.validate(session.candidate(PatchSet((patch,))))
            await session.complete_round()
            if decision.accepted and self.until_kept:
                return


class Table:
    """Passes each case with a chance of its own, which the texts of the profile change."""

    def __init__(self, wanted: Wanted, *, seed: str) -> None:
        self.wanted = wanted
        self.seed = seed
        names = [f"part{number}" for number in range(CANDIDATES if wanted.kind == "one of ten" else SURFACES)]
        nodes = tuple(ModelNode(name=name, instruction="As it was.") for name in names)
        edges = tuple(Edge(first, second) for first, second in pairwise(names))
        self.snapshot = GraphAgent(name="table", nodes=nodes, edges=edges).describe()
        self.texts = [f"{name}#instruction" for name in names]
        known = [self.baseline(f"validation-{number}") for number in range(wanted.size)]
        self.mended = min(1.0, wanted.gain / (1 - fmean(known))) if wanted.gain else 0.0
        failing = (f"validation-{number}" for number, chance in enumerate(known) if chance < 1)
        self.first_failing = next(failing, "")

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        dice = Random(f"{self.seed} {context.case_id} {context.draw} {profile.digest}")
        return AgentRun(output="right" * (dice.random() < self.chance(context.case_id, profile)))

    def baseline(self, case_id: str, rewritten: tuple[str, ...] = ()) -> float:
        random = Random(f"{self.seed} {case_id} {' '.join(rewritten)}")
        if self.wanted.kind in ("settled", "settled, alike"):
            return float(random.random() < 0.6)
        return random.betavariate(*BETA)

    def chance(self, case_id: str, profile: Profile) -> float:
        texts = [str(profile.value(surface_id, self.snapshot)) for surface_id in self.texts]
        chance = self.baseline(case_id, tuple(text for text in texts if text.startswith(RESHUFFLES)))
        if any(text.startswith(MENDS) for text in texts):
            if self.wanted.kind == "settled":
                return 1.0 if case_id == self.first_failing else chance
            return chance + self.mended * (1 - chance)
        return chance


def eval_set(name: str, count: int) -> EvalSet:
    cases = (EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name} {n}", expected="right"),)) for n in range(count))
    return EvalSet(id=name, cases=tuple(cases))


async def right(_case: EvalCase, run: AgentRun) -> bool:
    return run.output == "right"


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
    print(f"\nplacebo: {ROUNDS} rewrites that reshuffle which cases pass; as many sealed cases\n")
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
