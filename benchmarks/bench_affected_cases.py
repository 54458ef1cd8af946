"""Comparing candidates only on affected cases: is it unbiased, what does it save, and are hidden reads detected?

Each run tries 20 patches with other words and the same behaviour, on a text that only some cases read: 3 or 1 in 10,
either at random (`independent`) or because they fail (`on failure`). The latter is the hard case, because the cases
that a patch can affect are those that were unlucky. Each case passes with a probability of its own, from
Beta(0.6, 0.4).

    gateway   a graph of model nodes: a draft, and for some drafts a repair. The cache answers up to the first patched
              read
    opaque    an agent that records what it reads and makes no call through the gateway
    naive     what must not be done: the affected cases of an opaque agent are run once more under the candidate and
              compared with the recorded scores that selected them

`gain` is the mean gain over all candidates that the acceptance policy saw, with its 95% interval, which should include
0. `accepted` is the share of candidates that any gain accepts, `at 5%` the share for which a sign-flip test over cases
shows a gain. `paid` compares the case runs with those of the same search that runs every case for each candidate. Then
one node uses a text without reading it through the recording: `detected` counts the runs that report this and run its
cases from then on.

The final test runs every case under both profiles. The last part compares its model calls with those of one profile:
1.0 means that the second profile costs nothing, because all its answers are those of the first.

    python -m benchmarks.bench_affected_cases [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
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
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.stats.permutation import sign_flip
from promptiter.evaluation.surface_reads import may_touch
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.acceptance import MinGain
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.structure import StructureSnapshot
from tests.worlds.chances import BETA, ROUNDS, Proposes, is_right, make_eval_set
from traces import record, step

Method: TypeAlias = Literal["gateway", "opaque", "naive"]
Reads: TypeAlias = Literal["independent", "on failure"]

SIZES, RATES, ALPHA = (30, 100), (0.3, 0.1), 0.05
FAILING = 1 - BETA[0] / sum(BETA)
RUNS: dict[Method, int] = {"gateway": 20, "opaque": 60, "naive": 60}
QUICK_RUNS: dict[Method, int] = {"gateway": 4, "opaque": 12, "naive": 12}
READS: tuple[Reads, ...] = get_args(Reads)
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run: how candidates are compared, when the agent reads the text, how often, and on how many cases."""

    method: Method
    reads: Reads
    rate: float
    size: int
    number: int = 0
    is_full: bool = False
    has_hidden_read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The gain of each candidate, whether a sign-flip test shows it, and what was paid."""

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

        def run_all(spec: RunSpec, count: int) -> list[Found]:
            return list(pool.map(run_once, [replace(spec, number=number) for number in range(count)]))

        print(f"{ROUNDS} patches that change nothing in each run; runs: {runs}\n")
        print(
            f"{'method':>9}{'cases':>7}{'reads':>13}{'rate':>6}{'gain':>20}{'accepted':>10}{'at 5%':>8}{'paid':>8}"
            f"{'fewer':>8}"
        )
        for method, count in runs.items():
            for size in SIZES:
                for reads in READS:
                    for rate in RATES:
                        spec = RunSpec(method=method, reads=reads, rate=rate, size=size)
                        full = run_all(replace(spec, is_full=True), 2) if method != "naive" else []
                        print_row(spec, run_all(spec, count), full)
        hidden = RunSpec(method="gateway", reads="independent", rate=0.3, size=30, has_hidden_read=True)
        report_hidden_reads(run_all(hidden, runs["gateway"]))
        print("\nmodel calls of the final test, compared with those of one profile:")
        for reads in READS:
            for rate in RATES:
                spec = RunSpec(method="gateway", reads=reads, rate=rate, size=30)
                costs = list(pool.map(measure_final_test, [replace(spec, number=number) for number in range(4)]))
                print(f"{reads:>13} {rate}: {fmean(costs):.2f}", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


def print_row(spec: RunSpec, found: Sequence[Found], full: Sequence[Found]) -> None:
    by_run = [fmean(each.gains) for each in found]
    gain, half = fmean(by_run), 1.96 * stdev(by_run) / sqrt(len(by_run))
    gains = [gain for each in found for gain in each.gains]
    shown = [is_shown for each in found for is_shown in each.shown]
    cells = f"{gain:+.4f} ± {half:.4f}", f"{fmean(each > 0 for each in gains):.1%}", f"{fmean(shown):.1%}"
    line = f"{spec.method:>9}{spec.size:7}{spec.reads:>13}{spec.rate:6}{cells[0]:>20}{cells[1]:>10}{cells[2]:>8}"
    if full:
        paid, whole = (fmean(each.case_runs for each in runs) for runs in (found, full))
        line += f"{paid / whole:8.0%}{whole / paid:7.1f}x"
        line += "  " + ("ok" if abs(gain) <= half * 2.58 / 1.96 else "MISS: 0 is outside the interval")
    print(line, flush=True)


def report_hidden_reads(found: Sequence[Found]) -> None:
    detected = [
        each for each in found if any("node 'tone' gave a different output" in problem for problem in each.problems)
    ]
    others = sum(len(each.problems) > 1 for each in found)
    after = {runs for each in detected for runs in each.paid_by_round[1:]}
    print(f"\na hidden read of node 'tone', which all 30 cases run: detected in {len(detected)} of {len(found)} runs")
    print(f"other nodes reported in {others} runs; case runs of both arms for each later candidate: {sorted(after)}")


def run_once(spec: RunSpec) -> Found:
    seed = name_seed(spec)
    agent: Agent = OpaqueAgent(spec, seed) if spec.method != "gateway" else DeskAgent(spec, seed)
    policy = RecordingPolicy()
    patches = [("repair#instruction", f"Repair, in words {number}.") for number in range(ROUNDS)]
    naive = NaiveSearch(patches, policy) if spec.method == "naive" else None
    request = RunRequest(
        train=make_eval_set("train", 1),
        validation=make_eval_set("validation", spec.size),
        acceptance=policy,
        final_test=None,
        max_rounds=ROUNDS,
        stop=MaxRounds(ROUNDS),
        run_id="affected",
    )
    search = naive or Proposes(patches, until_accepted=False)
    result = asyncio.run(Engine(agent, make_evaluator(agent), search=search).run(request))
    return Found(
        gains=tuple(policy.gains),
        shown=tuple(policy.shown),
        case_runs=result.measured.paid_case_runs - spec.size,
        problems=result.measured.problems,
        paid_by_round=tuple(
            sum(row.origin == "executed" for each in (found.validation, found.compared) if each for row in each.rows)
            for found in result.rounds
        ),
    )


def measure_final_test(spec: RunSpec) -> float:
    """The model calls of a final test, compared with those of one profile. The search uses the first repeat only."""
    agent = DeskAgent(spec, name_seed(spec))
    request = RunRequest(
        train=make_eval_set("train", 1),
        validation=make_eval_set("validation", spec.size),
        acceptance=AcceptsAll(),
        max_rounds=1,
        stop=MaxRounds(1),
        run_id="affected",
    )
    patches = [("repair#instruction", "Repair, in other words.")]
    result = asyncio.run(
        Engine(agent, make_evaluator(agent), search=Proposes(patches, until_accepted=True)).run(request)
    )
    rows = [row for each in result.evaluations if each.phase == "final_test" for row in each.rows]
    calls = sum(row.measured.paid_calls + row.measured.cache_hits for row in rows) / 2
    return sum(count for repeat, count in agent.calls.items() if repeat > 0) / calls


def name_seed(spec: RunSpec) -> str:
    return f"{spec.reads} {spec.rate} {spec.size} {spec.number}"


def make_evaluator(agent: Agent) -> Evaluator:
    models = {"noisy": agent.model} if isinstance(agent, DeskAgent) else {}
    metrics = [FunctionMetric(name="right", function=is_right)]
    return Evaluator(metrics, gateway=Gateway(models=models), options=EvaluationOptions(concurrency=4))


class AcceptsAll:
    """Accepts everything, so that there is a final test."""

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.accept("for the final test")


class RecordingPolicy:
    """Accepts any gain at the first look, and records the gains it saw."""

    def __init__(self) -> None:
        self.gains: list[float] = []
        self.shown: list[bool] = []

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        self.add([delta.change for delta in evidence.deltas])
        return MinGain(1e-12).decide(evidence)

    def add(self, changes: Sequence[float]) -> None:
        self.gains.append(fmean(changes))
        self.shown.append(sign_flip(changes).p_value <= ALPHA)


class NaiveSearch:
    """Runs each candidate on the cases that are affected on record, and compares it with that record."""

    def __init__(self, patches: Sequence[tuple[str, str]], policy: RecordingPolicy) -> None:
        self.patches = patches
        self.policy = policy

    async def search(self, session: Session) -> None:
        validation = await session.read_validation()
        rows = validation.accepted.rows
        affected = {row.case_id for row in rows if may_touch(row.reads, ["repair#instruction"])}
        cases = tuple(case for case in validation.eval_set.cases if case.id in affected)
        chosen = replace(validation.eval_set, cases=cases)
        recorded = {row.case_id: row.scores[0].value or 0.0 for row in rows}
        for surface_id, text in self.patches:
            await session.begin_round()
            patch = SurfacePatch(surface_id=surface_id, value=text, reason="proposed")
            candidate = session.candidate(PatchSet((patch,)))
            found = await session.evaluate(chosen, candidate, phase="screening", repeats=range(1))
            changes = dict.fromkeys(recorded, 0.0)
            changes |= {row.case_id: (row.scores[0].value or 0.0) - recorded[row.case_id] for row in found.rows}
            self.policy.add(list(changes.values()))
            await session.complete_round()


def sample(*what: object) -> float:
    return Random(" ".join(map(str, what))).random()


def find_chance(seed: str, case: str) -> float:
    return Random(f"chance {seed} {case}").betavariate(*BETA)


def is_read(spec: RunSpec, sampled: float, *, failed: bool) -> bool:
    return sampled < (spec.rate if spec.reads == "independent" else failed * spec.rate / FAILING)


class OpaqueAgent:
    """Passes or fails, and may read the patched text. It makes no call through the gateway."""

    def __init__(self, spec: RunSpec, seed: str) -> None:
        self.spec = spec
        self.seed = seed
        self.snapshot = DeskAgent(spec, seed).describe()

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        place = (self.seed, case.text, context.repeat, profile.digest)
        passed = sample("pass", *place) < find_chance(self.seed, case.text)
        with record("run", resolve=lambda surface_id: profile.value(surface_id, self.snapshot)) as recording:
            with step("draft") as draft:
                draft.read_surface("draft#instruction")
            if is_read(self.spec, sample("read", *place), failed=not passed):
                with step("repair", after=("draft",)) as repair:
                    repair.read_surface("repair#instruction")
        trace = None if self.spec.is_full else recording.trace
        return AgentRun(output="right" if passed else "wrong", trace=trace)


_profile: ContextVar[Profile] = ContextVar("profile")


class DeskAgent:
    """A draft, and for some drafts a repair. Both are answers of a noisy model."""

    def __init__(self, spec: RunSpec, seed: str) -> None:
        self.spec = spec
        self.seed = seed
        self.calls: Counter[int] = Counter()
        self.graph = GraphAgent(
            name="desk",
            nodes=(
                ModelNode(name="draft", instruction="Draft.", model="noisy"),
                FunctionNode(name="tone", function=self._change_tone),
                ModelNode(name="repair", instruction="Repair.", model="noisy"),
                FunctionNode(name="end", function=_finish),
            ),
            edges=(
                Edge("draft", "tone"),
                Choice("tone", _choose_next, {"repair": "repair", "end": "end"}),
                Edge("repair", "end"),
            ),
        )

    def describe(self) -> StructureSnapshot:
        return self.graph.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        _profile.set(profile)
        found = await self.graph.run(case, profile, context)
        return replace(found, trace=None) if self.spec.is_full else found

    async def _change_tone(self, draft: str) -> str:
        """Passes the draft on; with a hidden read, also uses the text of another node without recording it."""
        if not self.spec.has_hidden_read:
            return draft
        return f"{draft} ({_profile.get().value('repair#instruction', self.describe())})"

    async def model(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        """A draft is right with the probability of its case; so is a repair, half as often if the draft was wrong."""
        self.calls[repeat] += 1
        asked = request.messages[-1].content
        case = asked.partition(":")[0]
        passed = sample("pass", self.seed, request.digest, repeat) < find_chance(self.seed, case)
        if ":" in asked:
            passed = passed and ("right" in asked or sample("again", self.seed, request.digest, repeat) < 0.5)
            return ModelReply(text="right" if passed else "wrong")
        again = is_read(self.spec, sample("read", self.seed, request.digest, repeat), failed=not passed)
        return ModelReply(text=f"{case}: {'right' if passed else 'wrong'}{', again' * again}")


def _choose_next(node_context: NodeContext) -> str:
    return "repair" if "again" in str(node_context.outputs["draft"]) else "end"


async def _finish(node_context: NodeContext) -> str:
    return "right" if "right" in str(node_context.incoming) else "wrong"


if __name__ == "__main__":
    main()
