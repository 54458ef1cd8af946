"""What the backward walk costs per step, compared with a plain asyncio walk of the same graph.

The model answers at once, or after 20 ms, with one gradient and one packet for each predecessor. The plain walk is the
simplest correct code: a task for each step, which waits for the futures of the steps that follow it. It knows no
surfaces, checks nothing and passes plain texts. Both walks take turns in one event loop, and the best of several tries
counts. Goals: at most 60 microseconds per step with the instant model, and 1.25 times the plain walk with 20 ms.

    python -m benchmarks.bench_backward [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Mapping, Sized
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from random import Random
from typing import TypeAlias

from benchmarks.measure import format_goal
from promptiter.backprop.propagate import propagate
from promptiter.profile import Profile
from promptiter.stages.contracts import (
    AttributeRequest,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import ExecutionTrace, Step

Graph: TypeAlias = Mapping[str, tuple[str, ...]]
"""The predecessors of each step, in the order of execution."""

WAIT_S = 0.02
MAX_MICROSECONDS, MAX_RATIO = 60.0, 1.25
MAX_NODES = 1_000
"""Longer traces visit their nodes repeatedly."""

PEERS = """
peers on the same graphs, measured on another machine:
  instant model, us per step: TextGrad 79 to 403 (16 to 103 with its log off; a recursion error on a chain of 1,000),
      Trace 28 to 37,000, growing with the graph, AdalFlow 33,000 to 226,000, a plain asyncio walk 11 to 43
  20 ms model, layered, 1,000 steps, critical path 0.42 s: TextGrad 60 s, AdalFlow 156 s, a plain asyncio walk 0.45 s"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 and 100 steps, a chain of 10,000, fewer tries")
    asyncio.run(compare(quick=parser.parse_args().quick))


async def compare(*, quick: bool) -> None:
    sizes = (10, 100) if quick else (10, 100, 1_000)
    graphs = {f"{name}, {size:,} steps": shape(size) for name, shape in SHAPES.items() for size in sizes}
    long = 10_000 if quick else 100_000
    print(f"instant model\n\n{'':24}{'us/step':>9}{'plain':>9}{'x plain':>9}")
    found = await measure_both(graphs, wait_s=None, tries=30)
    found |= await measure_both({f"chain, {long:,} steps": make_chain(long)}, wait_s=None, tries=3)
    for name, both in found.items():
        ours, plain = both.per_step_us
        print(f"{name:24}{ours:9.1f}{plain:9.1f}{both.ratio:9.2f}")
    print(
        "\nworst: " + format_goal("us per step", max(both.per_step_us[0] for both in found.values()), MAX_MICROSECONDS)
    )

    print(f"\nmodel that takes {WAIT_S * 1e3:.0f} ms\n\n{'':24}{'seconds':>9}{'plain':>9}{'x plain':>9}{'least':>9}")
    found = await measure_both(graphs, wait_s=WAIT_S, tries=3 if quick else 12)
    for name, both in found.items():
        print(
            f"{name:24}{both.ours_s:9.3f}{both.plain_s:9.3f}{both.ratio:9.2f}{find_critical_path_s(graphs[name]):9.2f}"
        )
    print("\nworst: " + format_goal("times the plain walk", max(both.ratio for both in found.values()), MAX_RATIO))
    print(PEERS)


@dataclass
class Both:
    """The best seconds of propagate and of the plain walk."""

    steps: int
    ours_s: float = inf
    plain_s: float = inf

    @property
    def ratio(self) -> float:
        return self.ours_s / self.plain_s

    @property
    def per_step_us(self) -> tuple[float, float]:
        return self.ours_s / self.steps * 1e6, self.plain_s / self.steps * 1e6


async def measure_both(graphs: Mapping[str, Graph], *, wait_s: float | None, tries: int) -> dict[str, Both]:
    """Each try walks every graph both ways, so that load on the machine affects all alike.

    A walk that takes long only because it waits is tried once.
    """
    requests = {name: make_request(graph) for name, graph in graphs.items()}
    found = {name: Both(len(graph)) for name, graph in graphs.items()}
    gc.collect()
    gc.freeze()
    for number in range(tries):
        for name, graph in graphs.items():
            if number and wait_s is not None and find_critical_path_s(graph) > 1:
                continue
            both, limit = found[name], asyncio.Semaphore(len(graph))
            ours = propagate(requests[name], Model(wait_s), limit=limit)
            both.ours_s = min(both.ours_s, await time_walk(ours, len(graph)))
            both.plain_s = min(both.plain_s, await time_walk(walk_plainly(graph, wait_s=wait_s), len(graph)))
    gc.unfreeze()
    return found


async def time_walk(walk: Awaitable[Sized], steps: int) -> float:
    """The seconds of a walk, without garbage collection of an earlier one."""
    gc.collect()
    start = time.perf_counter()
    answers = await walk
    seconds = time.perf_counter() - start
    if len(answers) != steps:
        raise AssertionError(f"{len(answers)} of {steps} steps answered: the two walks are not the same work")
    return seconds


class Model:
    """A Backwarder that blames the step's surface and all predecessors. If `wait_s` is None, it does not yield."""

    def __init__(self, wait_s: float | None) -> None:
        self.wait_s = wait_s

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        if self.wait_s is not None:
            await asyncio.sleep(self.wait_s)
        step_id = request.step.id
        gradient = SurfaceGradient(
            surface_id=request.blamable[0], case_id=request.case_id, step_id=step_id, text="say it shorter"
        )
        packets = [
            GradientPacket(source=step_id, target=source.id, text="give me less") for source in request.predecessors
        ]
        return BackwardResult(step_id=step_id, gradients=(gradient,), packets=tuple(packets))


async def walk_plainly(graph: Graph, *, wait_s: float | None) -> dict[str, str]:
    """The gradient of each step."""
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
    return gradients


def make_chain(size: int) -> Graph:
    ids = [f"s{number}" for number in range(size)]
    return {ids[0]: (), **{after: (before,) for before, after in pairwise(ids)}}


def make_fan(size: int) -> Graph:
    """One step, parallel steps after it, and one that joins them."""
    branches = [f"branch[{number}]" for number in range(size - 2)]
    return {"split": (), **dict.fromkeys(branches, ("split",)), "join": tuple(branches)}


def make_layers(size: int) -> Graph:
    """Layers of 10 to 50 steps (smaller in small graphs), each with two or three edges back to the layer before."""
    rng = Random(size)
    widest = min(50, max(2, size // 5))
    graph: dict[str, tuple[str, ...]] = {}
    before: list[str] = []
    while len(graph) < size:
        width = min(rng.randint(min(10, widest), widest), size - len(graph))
        layer = [f"s{len(graph) + number}" for number in range(width)]
        graph |= {step_id: tuple(rng.sample(before, min(len(before), rng.choice((2, 3))))) for step_id in layer}
        before = layer
    return graph


SHAPES: Mapping[str, Callable[[int], Graph]] = {"chain": make_chain, "wide": make_fan, "layered": make_layers}


def find_critical_path_s(graph: Graph) -> float:
    """The seconds of the longest path, which no walk can beat."""
    depths: dict[str, int] = {}
    for step_id, sources in graph.items():
        depths[step_id] = 1 + max((depths[source] for source in sources), default=0)
    return max(depths.values()) * WAIT_S


def make_request(graph: Graph) -> AttributeRequest:
    """A failed run of this graph: a loss on each terminal, an instruction for each step."""
    nodes = [f"n{number}" for number in range(min(len(graph), MAX_NODES))]
    snapshot = StructureSnapshot(
        nodes=tuple(Node(id=node) for node in nodes),
        surfaces=tuple(Surface(node_id=node, type="instruction", value=f"You are {node}.") for node in nodes),
    )
    steps = tuple(
        Step(id=step_id, node_id=node, predecessors=sources, surface_reads={f"{node}#instruction": "digest"})
        for number, (step_id, sources) in enumerate(graph.items())
        for node in [nodes[number % len(nodes)]]
    )
    followed = {source for sources in graph.values() for source in sources}
    losses = tuple(
        Loss(metric="exact", step_id=step_id, severity="P1", category="response", text="not equal")
        for step_id in graph
        if step_id not in followed
    )
    return AttributeRequest(
        case_loss=CaseLoss(case_id="case", trace_digest="digest", losses=losses),
        trace=ExecutionTrace(id="run", steps=steps),
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(snapshot.surface_ids),
    )


if __name__ == "__main__":
    main()
