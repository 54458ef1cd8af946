"""How a whole run grows with its cases, its surfaces and the steps of its traces, with models that take no time.

A run has everything: baseline, train cases, blame, gradient check, merge, patch, re-run, validation, ablation, final test
and test set. The agent is a chain of model nodes, one of which spoils the answer of every other case; a loop walks the
chain as often as it takes to make long traces. The shipped LLM stages ask a scripted expert.

Each size runs in a process of its own, after a small run that imports everything. `CPU` is the processor time of the run,
`memory` how much its peak memory exceeds that of the small run. The exponent compares two sizes: 1 is linear. Goals: at most
1.15 at the largest sizes, which n log n stays below, and at most 5 kB of memory per case.

    python -m benchmarks.bench_growth [--quick] [--axis cases] [--in-memory]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
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
RULE = "Keep every order number."
GOOD, BAD = "order 4711", "no order"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A run: its cases, half of them for training, the nodes of its agent, and how often a case run walks through them."""

    cases: int = 16
    nodes: int = 3
    loops: int = 1

    @property
    def faulty(self) -> str:
        return f"node{self.nodes // 2}"


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
    Axis(name="cases", counts=(10, 100, 1_000, 10_000), quick=(10, 100, 1_000)),
    Axis(name="surfaces", counts=(1, 5, 50, 500), quick=(1, 10, 100)),
    Axis(name="steps", counts=(10, 100, 1_000, 10_000), quick=(10, 100, 1_000)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the largest sizes")
    parser.add_argument("--axis", choices=[axis.name for axis in AXES], help="measure this one only")
    parser.add_argument("--in-memory", action="store_true", help="runs without a folder")
    options = parser.parse_args()
    for axis in AXES:
        if options.axis in (None, axis.name):
            report(axis, axis.quick if options.quick else axis.counts, in_folder=not options.in_memory)


def report(axis: Axis, counts: Sequence[int], *, in_folder: bool) -> None:
    print(f"{axis.name:>10}{'CPU, s':>10}{'exponent':>10}{'memory, MB':>12}{'runs':>8}{'stage calls':>13}", flush=True)
    found: list[Figures] = []
    for count in counts:
        figures: Figures = measure(run_once, axis.make_size(count), in_folder).result
        exponent = f"{find_exponent(counts, [*found, figures]):.2f}" if found else ""
        print(
            f"{count:>10,}{figures.cpu_s:>10.2f}{exponent:>10}{figures.grown_bytes / 1e6:>12.1f}"
            f"{figures.case_runs:>8,}{figures.stage_calls:>13,}",
            flush=True,
        )
        found.append(figures)
    print(format_goal("exponent at the largest sizes", find_exponent(counts, found), MAX_EXPONENT))
    if axis.name == "cases":
        (low, high), (few, many) = found[-2:], counts[-2:]
        kilobytes = (high.grown_bytes - low.grown_bytes) / (many - few) / 1e3
        print(format_goal("kB of memory per case", kilobytes, MAX_KILOBYTES))
    print()


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run took."""

    cpu_s: float
    grown_bytes: int
    case_runs: int
    stage_calls: int


def find_exponent(counts: Sequence[int], found: Sequence[Figures]) -> float:
    """The slope between the last two sizes, if both are on logarithmic scales."""
    before, after = found[-2:]
    few, many = counts[len(found) - 2 : len(found)]
    return log(after.cpu_s / before.cpu_s) / log(many / few)


def run_once(size: Size, in_folder: bool) -> Figures:
    """Run a small run, then one of this size, and measure the second."""
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
        [FunctionMetric(name="order", function=judge, needs_reference=True)],
        gateway=Gateway(models={EXPERT: expert, TASK: TaskModel(size)}),
    )
    stages = LLMBackwarder(EXPERT), LLMAggregator(EXPERT), LLMOptimizer(EXPERT)
    engine = Engine(make_agent(size), evaluator, *stages)
    request = RunRequest(
        train=make_cases("train", size.cases // 2),
        validation=make_cases("validation", -(-size.cases // 4)),
        test=make_cases("test", size.cases // 4) if size.cases >= 4 else None,
        final_test=FinalTest(repeats=2 if size.loops == 1 else 1),
        run_id="growth",
    )
    if in_folder:
        with tempfile.TemporaryDirectory() as folder:
            result = RunDirectory.begin(folder, engine, request).run_sync()
    else:
        result = engine.run_sync(request)
    if [change.surface_id for change in result.changes or result.initial_profile.changes(result.working_profile, result.structure)] != [f"{size.faulty}#instruction"]:
        raise AssertionError(f"the run found {result.changes}, verdict {result.verdict}")
    return result.measured.case_runs, expert.spent.calls


def make_agent(size: Size) -> GraphAgent:
    names = [f"node{number}" for number in range(size.nodes)]
    edges: list[AnyEdge] = [Edge(one, other) for one, other in pairwise(names)]
    if size.loops > 1:
        names.append("end")
        last, loops = names[-2], size.loops

        def route(context: NodeContext) -> str:
            return "again" if context.visits(last) < loops else "end"

        edges.append(Choice(last, route, {"again": names[0], "end": "end"}))
    return GraphAgent(
        name="growth",
        nodes=tuple(ModelNode(name=name, instruction=f"You are {name}.", model=TASK) for name in names),
        edges=tuple(edges),
        max_visits=size.loops,
    )


class TaskModel:
    """Passes the order number on. The faulty node loses it in every other case, unless its instruction has the rule."""

    def __init__(self, size: Size) -> None:
        self.faulty = f"You are {size.faulty}."

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - it has no luck
        instruction, text = request.messages[0].content, request.messages[-1].content
        if instruction.startswith(self.faulty) and RULE not in instruction and "even" in text:
            text = text.replace(GOOD, BAD)
        return ModelReply(text=text)


class Knowledge:
    """What the expert knows: no step may lose the order number."""

    def find_faults(self, step: ShownStep, surfaces: Mapping[str, ShownSurface], run: ShownRun) -> Faults:  # noqa: ARG002 - the step shows it
        return dict.fromkeys(step.blamable, Complaint(RULE)) if GOOD in step.input and BAD in step.output else {}

    def is_spoiled(self, output: str, run: ShownRun) -> bool:  # noqa: ARG002 - the output shows it
        return BAD in output

    def rewrite(self, prompt: OptimizePrompt) -> str:
        return f"{prompt.surface.value} {RULE}"

    def correct(self, step: ShownStep, run: ShownRun) -> str | None:  # noqa: ARG002 - the step shows it
        return step.output.replace(BAD, GOOD) if GOOD in step.input else None


def judge(case: EvalCase, run: AgentRun) -> bool:
    return run.output == case.turns[0].expected


def make_cases(name: str, count: int) -> EvalSet:
    """Cases with a text of about 500 characters each."""
    cases = []
    for number in range(count):
        words = " ".join(Random(f"{name} {number}").choices(WORDS, k=75))
        text = f"{name} {number}, {'odd' if number % 2 else 'even'}: {GOOD}. {words}"
        cases.append(EvalCase(id=f"{name}-{number}", turns=(Turn(user=text, expected=text),)))
    return EvalSet(id=name, cases=tuple(cases))


WORDS = ("kettle", "parcel", "return", "money", "broken", "colour", "invoice", "green", "late", "Tuesday", "garden")


if __name__ == "__main__":
    main()
