"""How a whole run grows with its cases, its surfaces and the steps of its traces, with models that take no time.

A run has everything: baseline, train cases, blame by a walk, gradient check, merge, patches, re-run, validation,
ablation, final test and test set. The agent is a chain of model nodes, two of which lose a value of some cases. Long
traces are those of a loop around the chain, without a final test. The shipped LLM stages ask a scripted expert.

Each size runs in a process of its own, after a small run that imports everything. As many run at the same time as there
are processors, the largest first: in all about five minutes on two of them. CPU is the processor time of the run;
memory is by how much its peak exceeds that of the small run. An exponent compares two sizes: 1 is linear, and that of
n log n is below 1.15 at these sizes. Goals: an exponent of at most 1.15 between the largest sizes, and at most 5 kB of
memory per case. A run in memory keeps its journal and all answers there, so it has no goal for memory.

    python -m benchmarks.bench_growth [--quick] [--axis cases] [--in-memory]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import log
from random import Random

from benchmarks.measure import format_goal, measure
from promptiter.agents.base import AgentRun
from promptiter.agents.edges import AnyEdge, Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.final_test import FinalTest
from promptiter.runs.directory import RunDirectory
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Complaint, Faults, SightedExpert

MAX_EXPONENT, MAX_KILOBYTES = 1.15, 5.0
EXPERT, TASK = "expert", "task"
RULES = {"order 4711": "Keep every order number.", "due Friday": "Keep every due date."}
"""The values of a case, and what a node must be told so that it does not lose a fragile one."""

WORDS = ("kettle", "parcel", "return", "money", "broken", "colour", "invoice", "green", "late", "Tuesday", "garden")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A run: its cases, half of them for training; the nodes of its agent; how often a case run walks through them."""

    cases: int = 16
    nodes: int = 3
    loops: int = 1

    @property
    def faults(self) -> dict[str, str]:
        """The value that each faulty node loses: the first two nodes, if there are two."""
        return dict(zip(("node0", "node1")[: self.nodes], RULES, strict=False))


SMALL = Size()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What grows, and the sizes to measure."""

    name: str
    counts: tuple[int, ...]
    quick: tuple[int, ...]

    def make_size(self, count: int) -> Size:
        match self.name:
            case "cases":
                return Size(cases=count)
            case "surfaces":
                return Size(nodes=count)
            case _:
                return Size(cases=2, loops=-(-count // SMALL.nodes))


AXES = (
    Axis(name="cases", counts=(10, 100, 1_000, 10_000), quick=(10, 100, 400)),
    Axis(name="surfaces", counts=(1, 10, 100, 500), quick=(1, 10, 50)),
    Axis(name="steps", counts=(10, 100, 1_000, 10_000), quick=(10, 50, 200)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run took."""

    cpu_s: float
    grown_bytes: int
    case_runs: int
    stage_calls: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, which show little of the exponents")
    parser.add_argument("--axis", choices=[axis.name for axis in AXES], help="measure this one only")
    parser.add_argument("--in-memory", action="store_true", help="runs without a folder")
    options = parser.parse_args()
    in_folder = not options.in_memory
    chosen = {axis: axis.quick if options.quick else axis.counts for axis in AXES if options.axis in (None, axis.name)}
    sizes = sorted(((axis, count) for axis, counts in chosen.items() for count in counts), key=lambda each: -each[1])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = {
            (axis, count): pool.submit(measure, measure_run, axis.make_size(count), in_folder) for axis, count in sizes
        }
        for axis, counts in chosen.items():
            report(axis, counts, (found[axis, count].result().result for count in counts), in_folder=in_folder)


def report(axis: Axis, counts: Sequence[int], measured: Iterable[Figures], *, in_folder: bool) -> None:
    print(f"{axis.name:>10}{'CPU, s':>10}{'exponent':>10}{'memory, MB':>12}{'case runs':>11}{'stage calls':>13}")
    found: list[Figures] = []
    for count, last in zip(counts, measured, strict=True):
        found.append(last)
        exponent = f"{find_exponent(counts, found):.2f}" if len(found) > 1 else ""
        line = f"{count:>10,}{last.cpu_s:>10.2f}{exponent:>10}{last.grown_bytes / 1e6:>12.1f}"
        print(f"{line}{last.case_runs:>11,}{last.stage_calls:>13,}", flush=True)
    print(f"overall: {find_exponent((counts[0], counts[-1]), (found[0], found[-1])):.2f}")
    print(format_goal("exponent between the largest sizes", find_exponent(counts, found), MAX_EXPONENT))
    if axis.name == "cases" and in_folder:
        kilobytes = (found[-1].grown_bytes - found[-2].grown_bytes) / (counts[-1] - counts[-2]) / 1e3
        print(format_goal("kB of memory per case", kilobytes, MAX_KILOBYTES))
    print()


def find_exponent(counts: Sequence[int], found: Sequence[Figures]) -> float:
    """The exponent between the last two sizes that were measured."""
    few, many = counts[len(found) - 2 : len(found)]
    before, after = found[-2:]
    return log(after.cpu_s / before.cpu_s) / log(many / few)


def measure_run(size: Size, in_folder: bool) -> Figures:
    """Make a small run, then one of this size, and measure the second."""
    run(SMALL, in_folder=in_folder)
    peak, started = read_peak_bytes(), time.process_time()
    case_runs, stage_calls = run(size, in_folder=in_folder)
    return Figures(
        cpu_s=time.process_time() - started,
        grown_bytes=read_peak_bytes() - peak,
        case_runs=case_runs,
        stage_calls=stage_calls,
    )


def read_peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(size: Size, *, in_folder: bool) -> tuple[int, int]:
    """Make a whole run and return its case runs and stage calls."""
    expert = SightedExpert(Knowledge())
    evaluator = Evaluator(
        [FunctionMetric(name="values", function=judge, needs_reference=True)],
        gateway=Gateway(models={EXPERT: expert, TASK: TaskModel(size)}),
    )
    stages = LLMBackwarder(EXPERT), LLMAggregator(EXPERT), LLMOptimizer(EXPERT)
    engine = Engine(make_agent(size), evaluator, *stages)
    request = RunRequest(
        train=make_cases("train", size.cases // 2),
        validation=make_cases("validation", -(-size.cases // 4)),
        test=make_cases("test", size.cases // 4) if size.cases >= 4 else None,
        final_test=FinalTest(repeats=2) if size.loops == 1 else None,
        run_id="growth",
    )
    if in_folder:
        with tempfile.TemporaryDirectory() as folder:
            result = RunDirectory.begin(folder, engine, request).run_sync()
    else:
        result = engine.run_sync(request)
    changed = result.initial_profile.changes(result.working_profile, result.structure)
    if {change.surface_id for change in changed} != {f"{node}#instruction" for node in size.faults}:
        raise AssertionError(f"the search ended with {changed}, verdict {result.verdict}")
    return result.measured.case_runs, expert.spent.calls


def make_agent(size: Size) -> GraphAgent:
    names = [f"node{number}" for number in range(size.nodes)]
    edges: list[AnyEdge] = [Edge(one, other) for one, other in pairwise(names)]
    if size.loops > 1:
        last = names[-1]

        def route(context: NodeContext) -> str:
            return "again" if context.visits(last) < size.loops else "end"

        edges.append(Choice(last, route, {"again": names[0], "end": "end"}))
        names.append("end")
    return GraphAgent(
        name="growth",
        nodes=tuple(ModelNode(name=name, instruction=f"You are {name}.", model=TASK) for name in names),
        edges=tuple(edges),
        max_visits=size.loops,
    )


class TaskModel:
    """Passes the text on, and counts the calls at its end. A faulty node loses its value if that is fragile."""

    def __init__(self, size: Size) -> None:
        self.lost = {f"You are {node}": value for node, value in size.faults.items()}

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - it is not random
        instruction, text = request.messages[0].content, request.messages[-1].content
        head, _, calls = text.rpartition(" ")
        value = self.lost.get(instruction.partition(".")[0])
        if value is not None and RULES[value] not in instruction:
            head = head.replace(f"fragile {value}", "")
        return ModelReply(text=f"{head} {int(calls) + 1}")


class Knowledge:
    """What the expert knows: no step may lose a value."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        lost = [rule for value, rule in RULES.items() if value in step.input and value not in step.output]
        return dict.fromkeys(step.blamable, Complaint(" ".join(lost))) if lost else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:
        return any(value in run.user and value not in output for value in RULES)

    def rewrite(self, prompt: OptimizePrompt) -> str:
        return " ".join([prompt.surface.value, *(rule for rule in RULES.values() if rule in prompt.signal)])

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:  # noqa: ARG002 - no corrector asks
        return None


def judge(_case: EvalCase, run: AgentRun) -> bool:
    return all(value in run.output for value in RULES)


def make_cases(name: str, count: int) -> EvalSet:
    """Cases with texts of about 500 characters. One value is fragile in every second case, the other in every third."""
    cases = []
    for number in range(count):
        order, day = ("fragile " * (number % every == 0) + value for every, value in zip((2, 3), RULES, strict=True))
        words = " ".join(Random(f"{name} {number}").choices(WORDS, k=75))
        text = f"{name} {number}: {order}, {day}. {words} 0"
        cases.append(EvalCase(id=f"{name}-{number}", turns=(Turn(user=text, expected=text),)))
    return EvalSet(id=name, cases=tuple(cases))


if __name__ == "__main__":
    main()
