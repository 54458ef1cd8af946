"""The parts of bench_traces about spans of other frameworks. See there for what is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import Any

import networkx as nx
import orjson

from benchmarks.foreign_spans import write_foreign
from benchmarks.measure import format_goal, measure, measure_cpu_in_turn
from benchmarks.trace_shapes import SHAPES
from traces import stream_otel
from traces.files import pause_gc
from traces.otel.recover import edges
from traces.otel.recover.order import Draft
from traces.otel.runs import build_traces

MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions")


def report_foreign(folder: Path, spans: int) -> None:
    """CPU time beside the lower bound, content evidence in MB/s, and the peak memory of a stream."""
    path, larger = folder / "foreign.jsonl", folder / "larger.jsonl"
    write_foreign(path, spans)
    size = path.stat().st_size / 1e6
    print(f"\n{spans:,} spans of another framework in runs of 50, {size:.0f} MB of OTLP/JSON lines (best of 3 tries)\n")
    content = ContentTime()

    def read_all() -> None:
        with content.measure():
            read_stream(str(path))

    works = {
        "bound": lambda: load_bound(path),
        "bound, messages not parsed": lambda: load_bound(path, parsed=()),
        "without content evidence": lambda: read_stated(path),
        "with content evidence": read_all,
    }
    bound, lowest, stated, whole = found = measure_cpu_in_turn(list(works.values()), tries=3)
    for what, seconds in zip(works, found, strict=True):
        print(f"  {what:28}{seconds:8.2f} s{seconds / spans * 1e6:8.1f} us/span{seconds / bound:8.2f} x bound")
    print(f"  {format_goal('times the bound, without content evidence', stated / bound, 2)}")
    print(
        f"  {stated / lowest:.2f} times the bound in which messages are not parsed, {whole / lowest:.2f} with content"
    )
    print(f"  content evidence: {content.megabytes:.0f} MB of text, {content.megabytes / content.seconds:.1f} MB/s")
    write_foreign(larger, 4 * spans)
    for name, count in ((path, spans), (larger, 4 * spans)):
        stream = measure(read_stream, str(name))
        print(f"  {count:,} spans as a stream: {stream.peak_bytes / 1e6:.0f} MB of peak memory, {stream.seconds:.0f} s")


def report_shapes() -> None:
    """How the time of one run grows with its size."""
    print("\nruns of one shape and three sizes: CPU seconds, and how they grow from the smallest to the largest size\n")
    for name, (make, largest) in SHAPES.items():
        sizes = (largest // 4, largest // 2, largest)
        seconds = [min(measure_build(make(size)) for _ in range(4)) for size in sizes]
        figures = " ".join(f"{size:>7,}: {each:5.2f}" for size, each in zip(sizes, seconds, strict=True))
        exponent = log(seconds[-1] / seconds[0]) / log(sizes[-1] / sizes[0])
        print(f"  {name:28} {figures}   {format_goal('exponent', exponent, 1.2)}")


def measure_build(spans: Sequence[Any]) -> float:
    gc.collect()
    with pause_gc():
        start = time.process_time()
        build_traces(spans)
        return time.process_time() - start


def read_stream(path: str) -> int:
    return sum(len(trace.steps) for trace in stream_otel(path))


def read_stated(path: Path) -> int:
    """Read without asking whose text a step read."""
    found = edges.find_sources
    edges.find_sources = lambda drafts, texts: {draft: [] for draft in drafts}  # noqa: ARG005
    try:
        with pause_gc():
            return sum(len(trace.steps) for trace in stream_otel(path, limit_bytes=float("inf")))
    finally:
        edges.find_sources = found


class ContentTime:
    """The CPU time of finding whose text each step read, and how much text that was."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.megabytes = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Measure all that is read in the body."""
        found = edges.find_sources

        def find_sources(drafts: Sequence[Draft], texts: Mapping[Draft, edges.Texts]) -> dict[Draft, list[Draft]]:
            start = time.process_time()
            sources = found(drafts, texts)
            self.seconds += time.process_time() - start
            for each in texts.values():
                self.megabytes += sum(map(len, each.inputs)) / 1e6 + sum(map(len, each.outputs)) / 1e6
            return sources

        edges.find_sources = find_sources
        try:
            yield
        finally:
            edges.find_sources = found


def load_bound(path: Path, *, parsed: Sequence[str] = MESSAGES) -> int:
    """What no reader can avoid: JSON, flat spans, the JSON of messages, and a sorted graph.

    The graph has a node with five attributes per span, and an edge with one per parent and link.
    """
    with pause_gc(), path.open("rb") as file:
        spans = [
            flatten(span, parsed)
            for line in file
            for resource in orjson.loads(line)["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]
        graph: nx.DiGraph[str] = nx.DiGraph()
        for span_id, parent, name, start, end, code, attributes, links in spans:
            graph.add_node(
                span_id, name=name, start=start, end=end, code=code, kind=attributes.get("gen_ai.operation.name")
            )
            if parent:
                graph.add_edge(parent, span_id, kind="parent")
            for link in links:
                graph.add_edge(link, span_id, kind="link")
        return len(list(nx.topological_sort(graph)))


def flatten(span: dict[str, Any], parsed: Sequence[str]) -> tuple[Any, ...]:
    attributes = {item["key"]: next(iter(item["value"].values())) for item in span["attributes"]}
    for key in parsed:
        if key in attributes:
            attributes[key] = orjson.loads(attributes[key])
    return (
        span["spanId"],
        span["parentSpanId"],
        span["name"],
        int(span["startTimeUnixNano"]),
        int(span["endTimeUnixNano"]),
        span["status"].get("code", 0),
        attributes,
        [link["spanId"] for link in span.get("links", ())],
    )
