"""Touched-only evaluation through the Engine: is it fair, what does it save, and does it notice who cheats?

Each run tries 20 patches of other bytes and the same behaviour, on a text that only some cases read: 3 or 1 in 10,
whether they fail or not (`independent`), or because they fail (`on failure`), the hard case: there the cases that a
patch can touch are those that were unlucky. A case passes with a chance of its own, drawn from Beta(0.6, 0.4).

    gateway   a graph of model nodes: a draft, which some drafts send on to a repair. What was recorded is replayed from
              the cache up to the first patched read
    opaque    an agent that records what it reads and asks nothing through the gateway
    naive     what must not be done: the touched cases of an opaque agent are run once more under the candidate and held
              against the record that made them touched

`gain` is the mean over all candidates of what the acceptance policy saw, with its interval of 95%: fair is an interval
around 0. `kept` is how many AnyGain keeps, `at 5%` how many a sign-flip test over cases takes for a gain. `paid` is the
share of case runs of the same search with every case run for each candidate. At last one node uses a text that it does
not read through the recording: `caught` counts the runs that tell of it and run its cases from then on.

    python -m benchmarks.bench_touched [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import sqrt
from multiprocessing import get_context
from random import Random
from statistics import fmean, stdev
from typing import Literal, TypeAlias, get_args

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode, NodeContext
from promptiter.engine.engine import Engine
from promptiter.engine.session import Session
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator, list_case_runs
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.stats.permutation import sign_flip
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.acceptance import AnyGain
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot
from tests.worlds.chances import BETA, ROUNDS, Proposes, eval_set, right
from traces import record, step

Way: TypeAlias = Literal["gateway", "opaque", "naive"]
Reads: TypeAlias = Literal["independent", "on failure"]

SIZES, RATES, ERROR = (30, 100), (0.3, 0.1), 0.05
FAILING = 1 - BETA[0] / sum(BETA)
RUNS: dict[Way, int] = {"gateway": 20, "opaque": 60, "naive": 60}
QUICK_RUNS: dict[Way, int] = {"gateway": 4, "opaque": 12, "naive": 12}
READS: tuple[Reads, ...] = get_args(Reads)
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One run: how the agent works and is compared, when it reads, how often, on how many cases."""

    way: Way
    reads: Reads
    rate: float
    size: int
    number: int = 0
    is_full: bool = False
    peeks: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the policy saw of each candidate: its gain, and whether a sign-flip test takes it for one; what was paid."""

    gains: tuple[float, ...]
    shown: tuple[bool, ...]
    case_runs: int
    problems: tuple[str, ...] = ()
    paid_by_round: tuple[int, ...] = ()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the runs")
    runs = QUICK_RUNS if parser.parse_args().quick else RUNS
    started = time.perf_counter()
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:

        def all_of(wanted: Wanted, count: int) -> list[Found]:
            return list(pool.map(run_once, [replace(wanted, number=number) for number in range(count)]))

        print(f"{ROUNDS} patches that change nothing in each run; runs: {runs}\n")
        print(
            f"{'way':>9}{'cases':>7}{'reads':>13}{'rate':>6}{'gain':>20}{'kept':>8}{'at 5%':>8}{'paid':>8}{'fewer':>8}"
        )
        for way, count in runs.items():
            for size in SIZES:
                for reads in READS:
                    for rate in RATES:
                        wanted = Wanted(way=way, reads=reads, rate=rate, size=size)
                        full = all_of(replace(wanted, is_full=True), 2) if way != "naive" else []
                        tell(wanted, all_of(wanted, count), full)
        caught(all_of(Wanted(way="gateway", reads="independent", rate=0.3, size=30, peeks=True), runs["gateway"]))
    print(f"\n{time.perf_counter() - started:.0f} s")


def tell(wanted: Wanted, found: Sequence[Found], full: Sequence[Found]) -> None:
    by_run = [fmean(each.gains) for each in found]
    gain, half = fmean(by_run), 1.96 * stdev(by_run) / sqrt(len(by_run))
    gains = [gain for each in found for gain in each.gains]
    shown = [is_shown for each in found for is_shown in each.shown]
    cells = f"{gain:+.4f} ± {half:.4f}", f"{fmean(each > 0 for each in gains):.1%}", f"{fmean(shown):.1%}"
    line = f"{wanted.way:>9}{wanted.size:7}{wanted.reads:>13}{wanted.rate:6}{cells[0]:>20}{cells[1]:>8}{cells[2]:>8}"
    if full:
        paid, whole = (fmean(each.case_runs for each in runs) for runs in (found, full))
        line += f"{paid / whole:8.0%}{whole / paid:7.1f}x"
        line += "  " + ("ok" if abs(gain) <= half * 2.58 / 1.96 else "MISS: not around 0")
    print(line, flush=True)


def caught(found: Sequence[Found]) -> None:
    told = [
        each for each in found if any("node 'tone' gave a different output" in problem for problem in each.problems)
    ]
    others = sum(len(each.problems) > 1 for each in found)
    after = {runs for each in told for runs in each.paid_by_round[1:]}
    print(f"\na hidden read of node 'tone', which all 30 cases run: caught in {len(told)} of {len(found)} runs")
    print(f"other nodes blamed in {others} runs; case runs paid for each later candidate: {sorted(after)}, both arms")


def run_once(wanted: Wanted) -> Found:
    seed = f"{wanted.reads} {wanted.rate} {wanted.size} {wanted.number}"
    agent: Agent = Opaque(wanted, seed) if wanted.way != "gateway" else Desk(wanted, seed)
    models = {"noisy": agent.model} if isinstance(agent, Desk) else {}
    watched = Watched()
    patches = [("repair#instruction", f"Repair, in words {number}.") for number in range(ROUNDS)]
    naive = Naive(patches, watched) if wanted.way == "naive" else None
    request = RunRequest(
        train=eval_set("train", 1),
        validation=eval_set("validation", wanted.size),
        acceptance=watched,
        final_test=None,
        max_rounds=ROUNDS,
        stop=MaxRounds(ROUNDS),
        run_id="touched",
    )
    evaluator = Evaluator(
        [FunctionMetric(name="right", function=right)],
        gateway=Gateway(models=models),
        options=EvaluationOptions(concurrency=4),
    )
    result = asyncio.run(Engine(agent, evaluator, search=naive or Proposes(patches, until_kept=False)).run(request))
    return Found(
        gains=tuple(watched.gains),
        shown=tuple(watched.shown),
        case_runs=result.measured.paid_case_runs - wanted.size,
        problems=result.measured.problems,
        paid_by_round=tuple(
            sum(row.origin == "executed" for each in (found.validation, found.compared) if each for row in each.rows)
            for found in result.rounds
        ),
    )


class Watched:
    """AnyGain, which notes what it saw."""

    def __init__(self) -> None:
        self.gains: list[float] = []
        self.shown: list[bool] = []

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        self.note([delta.change for delta in evidence.deltas])
        return AnyGain().decide(evidence)

    def note(self, changes: Sequence[float]) -> None:
        self.gains.append(fmean(changes))
        self.shown.append(sign_flip(changes).p_value <= ERROR)


class Naive:
    """Runs each candidate on the cases that the record touched, and holds it against that record."""

    def __init__(self, patches: Sequence[tuple[str, str]], watched: Watched) -> None:
        self.patches = patches
        self.watched = watched

    async def search(self, session: Session) -> None:
        rows = session.accepted.validation.rows
        touched = session.validator.find_affected_cases(rows, ["repair#instruction"])
        cases = tuple(case for case in session.validation.cases if case.id in touched)
        runs = list_case_runs(replace(session.validation, cases=cases), [0])
        recorded = {row.case_id: row.scores[0].value or 0.0 for row in rows}
        for surface_id, text in self.patches:
            await session.begin_round()
            patch = SurfacePatch(surface_id=surface_id, value=text, reason="proposed")
            candidate = session.candidate(PatchSet((patch,)))
            found = await session.evaluations.evaluate(session.validation, candidate, phase="validation", runs=runs)
            changes = dict.fromkeys(recorded, 0.0)
            changes |= {row.case_id: (row.scores[0].value or 0.0) - recorded[row.case_id] for row in found.rows}
            self.watched.note(list(changes.values()))
            await session.complete_round()


def dice(*what: object) -> float:
    return Random(" ".join(map(str, what))).random()


def chance(seed: str, case: str) -> float:
    return Random(f"chance {seed} {case}").betavariate(*BETA)


def is_read(wanted: Wanted, throw: float, *, failed: bool) -> bool:
    return throw < (wanted.rate if wanted.reads == "independent" else failed * wanted.rate / FAILING)


class Opaque:
    """Passes or fails, and reads the text that is patched, or does not; nothing of it goes through the gateway."""

    def __init__(self, wanted: Wanted, seed: str) -> None:
        self.wanted = wanted
        self.seed = seed
        self.snapshot = Desk(wanted, seed).describe()

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        place = (self.seed, case.text, context.repeat, profile.digest)
        passed = dice("pass", *place) < chance(self.seed, case.text)
        with record("run", resolve=lambda surface_id: profile.value(surface_id, self.snapshot)) as recording:
            with step("draft") as draft:
                draft.read_surface("draft#instruction")
            if is_read(self.wanted, dice("read", *place), failed=not passed):
                with step("repair", after=("draft",)) as repair:
                    repair.read_surface("repair#instruction")
        trace = None if self.wanted.is_full else recording.trace
        return AgentRun(output="right" if passed else "wrong", trace=trace)


_profile: ContextVar[Profile] = ContextVar("profile")


class Desk:
    """A draft, which some drafts send on to a repair; both are answers of a noisy model."""

    def __init__(self, wanted: Wanted, seed: str) -> None:
        self.wanted = wanted
        self.seed = seed
        self.graph = GraphAgent(
            name="desk",
            nodes=(
                ModelNode(name="draft", instruction="Draft.", model="noisy"),
                FunctionNode(name="tone", function=self._tone),
                ModelNode(name="repair", instruction="Repair.", model="noisy"),
                FunctionNode(name="end", function=_end),
            ),
            edges=(
                Edge("draft", "tone"),
                Choice("tone", _route, {"repair": "repair", "end": "end"}),
                Edge("repair", "end"),
            ),
        )

    def describe(self) -> StructureSnapshot:
        return self.graph.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        _profile.set(profile)
        found = await self.graph.run(case, profile, context)
        return replace(found, trace=None) if self.wanted.is_full else found

    async def _tone(self, draft: str) -> str:
        """Hands the draft on; one that peeks uses a text of another node that it does not read as one should."""
        if not self.wanted.peeks:
            return draft
        return f"{draft} ({_profile.get().value('repair#instruction', self.describe())})"

    async def model(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        """A draft is right with the chance of its case; a repair as well, but seldom where the draft had failed."""
        asked = request.messages[-1].content
        case = asked.partition(":")[0]
        passed = dice("pass", self.seed, request.digest, repeat) < chance(self.seed, case)
        if ":" in asked:
            passed = passed and ("right" in asked or dice("again", self.seed, request.digest, repeat) < 0.5)
            return ModelReply(text="right" if passed else "wrong")
        again = is_read(self.wanted, dice("read", self.seed, request.digest, repeat), failed=not passed)
        return ModelReply(text=f"{case}: {'right' if passed else 'wrong'}{', again' * again}")


def _route(node_context: NodeContext) -> str:
    return "repair" if "again" in str(node_context.outputs["draft"]) else "end"


async def _end(node_context: NodeContext) -> str:
    return "right" if "right" in str(node_context.incoming) else "wrong"


if __name__ == "__main__":
    main()
