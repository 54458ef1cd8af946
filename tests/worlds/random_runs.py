"""Random agents, and runs of them as spans that say nothing about who followed whom but texts and times.

An agent is a random graph of six to sixteen nodes. In a run, a step starts when those it follows have ended, or all
steps of one depth start together (supersteps). Each step returns random words. It shows the words of those it follows,
apart from a share that is hidden. The truth is known, so tests and `benchmarks/bench_recovery.py` can score recovery.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from traces.model import ExecutionTrace
from traces.otel.recover.build import build_trace
from traces.otel.recover.coverage import Coverage
from traces.otel.spans import Span

Regime: TypeAlias = Literal["asynchronous", "supersteps"]
Graph: TypeAlias = Mapping[int, Sequence[int]]
"""The nodes that each node follows, without those that one of them follows in turn."""

_MS = 1_000_000
_START = 1_000 * _MS
_WORDS = [
    first + second
    for first in ("al", "be", "ga", "de", "ep", "ze", "et", "th", "io", "ka")
    for second in ("ron", "lam", "tis", "mor", "vex", "nid", "sul", "par", "qin", "wob")
]


class Score(NamedTuple):
    """How many edges were found, how many were found that do not exist, and how many were missed."""

    found: int = 0
    false: int = 0
    missed: int = 0

    @property
    def f1(self) -> float:
        return 2 * self.found / (2 * self.found + self.false + self.missed)


def score_recovery(regime: Regime, hidden: float, *, seeds: Iterable[int], runs: int = 1, agree: bool = True) -> Score:
    """Recover the runs of random agents, one agent per seed, and compare all edges with the truth."""
    from traces.otel.recover.consensus import reach_consensus

    total = Score()
    for seed in seeds:
        rng = Random(f"{regime} {seed}")
        graph = make_graph(rng)
        traces = list(recover_runs(graph, rng, regime, hidden, runs))
        if agree:
            traces = reach_consensus(traces)
        for trace in traces:
            total = Score(*map(sum, zip(total, score_edges(graph, trace), strict=True)))
    return total


def make_graph(rng: Random) -> Graph:
    """A random graph, without edges that others imply."""
    graph: dict[int, list[int]] = {0: []}
    before: dict[int, set[int]] = {0: set()}
    for node in range(1, rng.randint(6, 16)):
        near = range(max(0, node - 5), node)
        drawn = sorted(rng.sample(near, min(rng.choice([1, 1, 1, 2, 2, 3]), len(near))))
        graph[node] = [each for each in drawn if not any(each in before[other] for other in drawn)]
        before[node] = set(drawn).union(*(before[each] for each in drawn))
    return graph


def recover_runs(graph: Graph, rng: Random, regime: Regime, hidden: float, count: int) -> Iterator[ExecutionTrace]:
    """Run an agent several times, and recover each run from its spans."""
    for number in range(1, count + 1):
        trace = build_trace(make_spans(graph, rng, regime, hidden, trace_id=f"{number:032x}"), Coverage())
        assert trace is not None
        yield trace


def score_edges(graph: Graph, trace: ExecutionTrace) -> Score:
    """Compare the edges of a recovered run with those of its graph."""
    true = {(_span_id(source), _span_id(node)) for node, sources in graph.items() for source in sources}
    found = {(source, step.id) for step in trace.steps for source in step.followed}
    return Score(len(found & true), len(found - true), len(true - found))


def make_spans(graph: Graph, rng: Random, regime: Regime, hidden: float, *, trace_id: str) -> list[Span]:
    """The spans of one run: a workflow, and a model call for each node."""
    times = _run_at_once(graph, rng) if regime == "asynchronous" else _run_in_supersteps(graph, rng)
    texts = {
        node: " ".join(rng.choices(_WORDS, k=rng.randint(4, 14))) + f" item {rng.randint(100, 999)}" for node in graph
    }
    end = max(end for _, end in times.values())
    spans = [_make_span(trace_id, "f" * 16, None, (_START - 1, end + 1), {"gen_ai.operation.name": "invoke_workflow"})]
    for node, sources in graph.items():
        shown = [texts[source] for source in sources if rng.random() >= hidden]
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.agent.name": f"node{node}",
            "gen_ai.request.model": "model",
            "gen_ai.input.messages": _write_message("user", "\n".join(["Please work on the given subject.", *shown])),
            "gen_ai.output.messages": _write_message("assistant", texts[node]),
        }
        spans.append(_make_span(trace_id, _span_id(node), "f" * 16, times[node], attributes))
    return spans


def _run_at_once(graph: Graph, rng: Random) -> dict[int, tuple[int, int]]:
    times: dict[int, tuple[int, int]] = {}
    for node, sources in graph.items():
        start = max((times[source][1] for source in sources), default=_START) + rng.randint(1, 5) * _MS // 10
        times[node] = start, start + rng.randint(5, 60) * _MS
    return times


def _run_in_supersteps(graph: Graph, rng: Random) -> dict[int, tuple[int, int]]:
    depths: dict[int, int] = {}
    for node, sources in graph.items():
        depths[node] = 1 + max((depths[source] for source in sources), default=-1)
    times: dict[int, tuple[int, int]] = {}
    now = _START
    for depth in range(max(depths.values()) + 1):
        for node in (node for node in graph if depths[node] == depth):
            start = now + rng.randint(1, 5) * _MS // 10
            times[node] = start, start + rng.randint(5, 60) * _MS
        now = max(end for _, end in times.values()) + _MS // 10
    return times


def _make_span(
    trace_id: str, span_id: str, parent_id: str | None, times: tuple[int, int], attributes: dict[str, str]
) -> Span:
    return Span(
        trace_id, span_id, parent_id, attributes["gen_ai.operation.name"], 1, *times, attributes, (), False, "", "agent"
    )


def _write_message(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def _span_id(node: int) -> str:
    return f"{node + 1:016x}"
