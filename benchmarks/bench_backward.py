"""What a backward pass costs per step with the stages that ask a model, compared with a plain asyncio walk.

A pass is what a round does between an evaluation and the patches: traces are loaded, losses placed on steps, prompts
rendered, the gateway asked, answers parsed, the blame checked and merged. The model blames every surface and every
predecessor that it is asked about, at once or after 20 ms. The plain walk is the simplest correct code: a task for each
step, which waits for the futures of the steps that follow it. It knows no surfaces, renders and checks nothing, and
passes plain texts. All take turns in one event loop, and the best of several tries counts. Goals: at most 250
microseconds of CPU time for each step that is asked, and with 20 ms at most 1.5 times the seconds of the plain walk.

    python -m benchmarks.bench_backward [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from random import Random
from typing import TypeAlias

import orjson

from benchmarks.failed_runs import SHAPES, Graph, fail
from benchmarks.measure import format_goal
from promptiter.backprop.backward_pass import BackwardPass, as_attributor, group_by_surface
from promptiter.backprop.blame_check import weight_gradients
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.replays import ReplayContext
from promptiter.stages.contracts import Attributor
from traces import Usage

WAIT_S = 0.02
MAX_MICROSECONDS, MAX_RATIO = 250.0, 1.5

STAGES = ("walk", "whole trace", "cheapest")

PEERS = """
TextGrad on the same graphs, measured on another machine:
  instant model, us per step: 79 to 403, 63 to 94 with its log off (a recursion error on a chain of 1,000)
  20 ms model, layered, 1,000 steps, critical path 0.42 s: 60 s (a plain asyncio walk 0.45 s)"""

Seconds: TypeAlias = dict[str, float]
"""Seconds by stage."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 and 100 steps, fewer tries")
    asyncio.run(compare(quick=parser.parse_args().quick))


async def compare(*, quick: bool) -> None:
    sizes = (10, 100) if quick else (10, 100, 1_000)
    graphs = {f"{name}, {size:,} steps": shape(size) for name, shape in SHAPES.items() for size in sizes}
    found = await measure(graphs, wait_s=None, tries=10 if quick else 5)
    print_table("instant model: us of CPU time for each step that is asked", found, unit=1e-6, is_per_step=True)
    worst = max(each.cpu_s[stage] / each.asked[stage] for each in found.values() for stage in STAGES)
    print("\nworst: " + format_goal("us per step", worst * 1e6, MAX_MICROSECONDS))

    found = await measure(graphs, wait_s=WAIT_S, tries=2 if quick else 3)
    print_table(f"model that takes {WAIT_S * 1e3:.0f} ms: seconds", found, unit=1.0, is_per_step=False)
    ratio, name = max((each.wall_s["walk"] / each.wall_s["plain"], name) for name, each in found.items())
    print(f"\nworst ({name}): " + format_goal("times the plain walk", ratio, MAX_RATIO))
    print(PEERS)


@dataclass(slots=True)
class Best:
    """The best seconds of each stage and of the plain walk on one graph, and how many steps they asked about."""

    cpu_s: Seconds = field(default_factory=lambda: dict.fromkeys((*STAGES, "plain"), inf))
    wall_s: Seconds = field(default_factory=lambda: dict.fromkeys((*STAGES, "plain"), inf))
    asked: dict[str, int] = field(default_factory=dict)

    async def measure(self, stage: str, work: Awaitable[int]) -> None:
        """Measure one try, without garbage collection of an earlier one."""
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        self.asked[stage] = await work
        self.cpu_s[stage] = min(self.cpu_s[stage], time.process_time() - cpu)
        self.wall_s[stage] = min(self.wall_s[stage], time.perf_counter() - wall)


async def measure(graphs: Mapping[str, Graph], *, wait_s: float | None, tries: int) -> dict[str, Best]:
    """Each try takes every graph in all ways, so that load on the machine affects all alike.

    A walk that takes long only because it waits is tried once.
    """
    found = {name: Best() for name in graphs}
    runs = {name: await fail(graph, Gateway()) for name, graph in graphs.items()}
    gc.collect()
    gc.freeze()
    for number in range(tries):
        for name, graph in graphs.items():
            if number and wait_s is not None and count_layers(graph) * wait_s > 1:
                continue
            await found[name].measure("plain", walk_plainly(graph, wait_s=wait_s))
            for stage in STAGES:
                model = Model(wait_s)
                gateway = Gateway(models={"model": model})  # a run makes it once, not for each pass
                await found[name].measure(stage, run_pass(runs[name], build_stage(stage), gateway, model))
    gc.unfreeze()
    return found


def build_stage(name: str) -> Attributor:
    if name == "walk":
        return as_attributor(LLMBackwarder("model"))
    whole = LLMAttributor("model")
    return whole if name == "whole trace" else CheapestAttributor(whole, LLMBackwarder("model"))


async def run_pass(runs: ReplayContext, attributor: Attributor, gateway: Gateway, model: Model) -> int:
    """Do what a round does between an evaluation and the patches. Returns the number of steps that were asked about."""
    evaluation, eval_set, read_trace = runs.evaluation, runs.eval_set, runs.evaluator.trace_store.get
    losses = await extract_losses(evaluation, eval_set, read_trace)
    structure = runs.agent.describe()
    work = BackwardPass(
        structure=structure,
        profile=runs.profile,
        targets=frozenset(structure.surface_ids),
        traces=JudgedTraces(judge_traces(evaluation, eval_set, read_trace, losses=losses)),
        redact=runs.evaluator.gateway.redactor.redact_text,
    )
    with gateway.active():
        blames = await work.attribute(losses, attributor)
    gradients = group_by_surface(blames)
    checked = await GradientCheck().check([each for same in gradients.values() for each in same], runs, rng=Random(0))
    weighted = weight_gradients(gradients, checked.checks)
    merged = await work.merge(weighted, SupportAggregator(), failed_cases=1, all_cases=1)
    if errors := [result.error for blame in blames for result in blame.results if result.error]:
        raise AssertionError(errors[0])
    if not merged.signals:
        raise AssertionError("nothing is blamed, so the pass did not do its work")
    is_walk = model.calls > 1
    return sum(len(blame.results) for blame in blames) if is_walk else len(structure.nodes)


class Model:
    """A model that blames what it is asked about. If `wait_s` is None, it answers at once."""

    def __init__(self, wait_s: float | None) -> None:
        self.wait_s = wait_s
        self.calls = 0

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - part of the protocol
        self.calls += 1
        if self.wait_s is not None:
            await asyncio.sleep(self.wait_s)
        lists = (request.schema or {})["properties"]
        packets = lists["packets"]["items"]["properties"]["predecessor"]["enum"] if "packets" in lists else ()
        is_whole = "step" in lists["gradients"]["items"]["properties"]
        text = write_trace_answer(request.text.count("\n## T")) if is_whole else write_step_answer(tuple(packets))
        return ModelReply(text=text, usage=Usage(input_tokens=1_000, output_tokens=100))


BLAME = {"findings": ["F1"], "severity": "P1", "category": "response"}
CHANGE = "Say when the order arrives and what the carrier was told, as the reference does."


@lru_cache
def write_step_answer(predecessors: tuple[str, ...]) -> str:
    """The blame of the only surface of a step and of all predecessors."""
    gradients = [{**BLAME, "surface": "S1", "text": CHANGE, "confidence": 0.8}]
    packets = [{**BLAME, "predecessor": each, "text": f"{each} lacks the day of arrival."} for each in predecessors]
    answer = {"diagnosis": "The answer lacks the day of arrival.", "gradients": gradients, "packets": packets}
    return orjson.dumps(answer).decode()


@lru_cache
def write_trace_answer(steps: int) -> str:
    """The blame of a few steps of a whole trace."""
    blamed = sorted({1, (steps + 1) // 2, steps})
    gradients = [{**BLAME, "step": f"T{each}", "surface": "", "text": CHANGE, "confidence": 0.8} for each in blamed]
    return orjson.dumps({"diagnosis": "The answer lacks the day of arrival.", "gradients": gradients}).decode()


async def walk_plainly(graph: Graph, *, wait_s: float | None) -> int:
    """The plain walk. Returns the number of steps."""
    followers: dict[str, list[str]] = {step_id: [] for step_id in graph}
    for step_id, sources in graph.items():
        for source in sources:
            followers[source].append(step_id)
    loop = asyncio.get_running_loop()
    packets: dict[str, asyncio.Future[dict[str, str]]] = {step_id: loop.create_future() for step_id in graph}
    gradients: dict[str, str] = {}

    async def visit(step_id: str) -> None:
        incoming = [(await packets[follower])[step_id] for follower in followers[step_id]] or ["bad"]
        gradients[step_id], sent = await answer(incoming, graph[step_id])
        packets[step_id].set_result(sent)

    async def answer(incoming: list[str], sources: tuple[str, ...]) -> tuple[str, dict[str, str]]:
        if wait_s is not None:
            await asyncio.sleep(wait_s)
        return f"say it shorter, {len(incoming)} say", dict.fromkeys(sources, "give me less")

    async with asyncio.TaskGroup() as group:
        for step_id in graph:
            group.create_task(visit(step_id))
    return len(gradients)


def count_layers(graph: Graph) -> int:
    """The number of steps on the longest path, which no walk can beat."""
    depths: dict[str, int] = {}
    for step_id, sources in graph.items():
        depths[step_id] = 1 + max((depths[source] for source in sources), default=0)
    return max(depths.values())


def print_table(title: str, found: Mapping[str, Best], *, unit: float, is_per_step: bool) -> None:
    ways = (*STAGES, "plain")
    print(f"\n{title}\n\n{'':24}{''.join(f'{way:>14}' for way in ways)}{'walk/plain':>14}")
    for name, each in found.items():
        seconds = each.cpu_s if is_per_step else each.wall_s
        shown = {way: seconds[way] / unit / (each.asked[way] if is_per_step else 1) for way in ways}
        figures = "".join(f"{shown[way]:14.{1 if is_per_step else 3}f}" for way in ways)
        print(f"{name:24}{figures}{shown['walk'] / shown['plain']:14.2f}")


if __name__ == "__main__":
    main()
