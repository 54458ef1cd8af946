"""How fast traces are read and written, compared with a lower bound measured in the same run.

Own trace files are compared with orjson on the same data, in CPU time: it reads the lines into plain dicts, and writes
these. Goal: at most 2.5 times that, both for reading and for writing.

For OpenTelemetry, the lower bound does only what is unavoidable: it parses JSON lines with orjson or protobuf into flat
tuples, and builds a plain networkx graph of the steps, with the garbage collector paused as in read_otel. That also
checks every field, builds the steps, and orders and verifies each trace. Goal: at most twice the lower bound.

Spans of other frameworks (see foreign_spans) are compared in CPU time with a bound of their own, in which nothing is
folded and no step is looked for: orjson reads the lines into flat tuples with a dict of attributes, and the texts of
messages into their JSON; networkx gets a node with five attributes for each span and an edge for each parent and link,
and sorts them. Goal: parsing, folding and the edges that links, names and calls state take at most twice that. Finding
whose text a step read is measured by itself, in megabytes of text. Memory is that of reading as a stream and dropping
each trace. Shapes (see trace_shapes) show how time grows with the size of one run; an exponent of 1 is linear. Goal: at
most 1.2.

    python -m benchmarks.bench_traces [--spans 100000] [--steps 1000000] [--own | --foreign | --shapes]
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from benchmarks import bench_foreign
from benchmarks.measure import Measurement, format_goal, measure, measure_cpu_in_turn, measure_in_turn
from traces import (
    ExecutionTrace,
    Snapshot,
    Step,
    TraceGraph,
    Usage,
    digest,
    read_otel,
    read_traces,
    write_otel,
    write_traces,
)
from traces.files import pause_gc

STEPS_PER_TRACE = 50
WORDS = ["plan", "search", "quote", "answer", "check", "draft", "cite", "merge", "verify", "route", "rank", "review"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=100_000, help="spans in many traces")
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps in one trace")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--own", action="store_true", help="own trace files only")
    only.add_argument("--foreign", action="store_true", help="spans of other frameworks only")
    only.add_argument("--shapes", action="store_true", help="the growth of runs of several shapes only")
    chosen = parser.parse_args()
    is_all = not (chosen.own or chosen.foreign or chosen.shapes)
    with tempfile.TemporaryDirectory() as folder:
        if is_all or chosen.own:
            report_own_files(Path(folder))
        if is_all:
            report_many_traces(Path(folder), chosen.spans)
            report_long_trace(Path(folder), chosen.steps)
        if is_all or chosen.foreign:
            bench_foreign.report_foreign(Path(folder), chosen.spans)
        if is_all or chosen.shapes:
            bench_foreign.report_shapes()


def report_many_traces(folder: Path, spans: int) -> None:
    print(f"{spans:,} spans in traces of {STEPS_PER_TRACE} steps (best of 5 tries, each in its own process)\n")
    print(f"{'':34}{'seconds':>9}{'us/span':>9}{'x bound':>9}{'peak B/span':>13}")
    for name, bound in (("jsonl", load_json), ("pb", load_protobuf)):
        path = folder / f"spans.{name}"
        write_otel(path, make_traces(spans // (STEPS_PER_TRACE + 1)))
        base, bare, graphs = measure_in_turn([bound, read_spans, read_graphs], str(path))
        print_row(f"{name}, {path.stat().st_size / 1e6:.0f} MB: bound", base, spans, base)
        print_row(f"{name}: read_otel", bare, spans, base)
        print_row(f"{name}: read_otel and TraceGraph", graphs, spans, base)


def report_own_files(folder: Path, *, traces: int = 20) -> None:
    """CPU time of reading and writing our own files, and that of orjson for the same data."""
    path, scratch = folder / "traces.jsonl", folder / "scratch.jsonl"
    made = list(make_traces(traces))
    write_traces(path, made)
    documents = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    print(f"{traces} own traces of {STEPS_PER_TRACE} steps, {path.stat().st_size / 1e6:.1f} MB (best of 40 tries)\n")
    works: list[Callable[[], object]] = [
        lambda: load_lines(path),
        lambda: list(read_traces(path)),
        lambda: dump_lines(scratch, documents),
        lambda: write_traces(scratch, made),
    ]
    read_bound, read, write_bound, write = measure_cpu_in_turn(works, tries=40)
    for what, bound, found in (("reading", read_bound, read), ("writing", write_bound, write)):
        per_step = [seconds / (traces * STEPS_PER_TRACE) * 1e6 for seconds in (bound, found)]
        print(f"  {what}: {per_step[0]:.1f} us of CPU per step with orjson, {per_step[1]:.1f} with traces")
        print(f"    {format_goal('times orjson', found / bound, 2.5)}")
    print()


def report_long_trace(folder: Path, steps: int) -> None:
    path = folder / "one.pb"
    print(f"\none trace of {steps:,} steps\n")
    print(f"{'':34}{'seconds':>9}{'us/step':>9}{'':9}{'peak B/step':>13}")
    print_row("build and write protobuf", measure(write_long_trace, str(path), steps), steps)
    print_row("read_otel", measure(read_spans, str(path)), steps)
    print_row("read_otel and TraceGraph", measure(read_graphs, str(path)), steps)


def print_row(name: str, found: Measurement, count: int, base: Measurement | None = None) -> None:
    ratio = f"{found.seconds / base.seconds:9.2f}" if base else " " * 9
    print(f"{name:34}{found.seconds:9.2f}{found.seconds / count * 1e6:9.1f}{ratio}{found.grown_bytes / count:13.0f}")


def read_spans(path: str) -> int:
    return sum(len(trace.steps) for trace in read_otel(path))


def read_graphs(path: str) -> int:
    return sum(len(TraceGraph(trace).terminals) for trace in read_otel(path))


def write_long_trace(path: str, steps: int) -> int:
    return write_otel(path, [make_trace("one", steps)])


def load_lines(path: Path) -> list[Any]:
    with pause_gc(), path.open("rb") as file:
        return [orjson.loads(line) for line in file]


def dump_lines(path: Path, documents: list[Any]) -> None:
    with path.open("wb") as file:
        for document in documents:
            file.write(orjson.dumps(document) + b"\n")


def load_json(path: str) -> int:
    gc.disable()
    kept: list[dict[str, Any]] = []
    with Path(path).open("rb") as file:
        for line in file:
            for resource in orjson.loads(line)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    kept.extend(scope["spans"])
    edges = [(link["spanId"], span["spanId"]) for span in kept for link in span.get("links", ())]
    return build_graph([span["spanId"] for span in kept], edges)


def load_protobuf(path: str) -> int:
    gc.disable()
    kept: list[tuple[Any, ...]] = []
    for resource in TracesData.FromString(Path(path).read_bytes()).resource_spans:
        for scope in resource.scope_spans:
            kept.extend(flatten(span) for span in scope.spans)
    return build_graph([span[1] for span in kept], [(link, span[1]) for span in kept for link in span[-1]])


def flatten(span: Any) -> tuple[Any, ...]:
    return (
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        span.status.code,
        {item.key: getattr(item.value, item.value.WhichOneof("value")) for item in span.attributes},
        [link.span_id.hex() for link in span.links],
    )


def build_graph(nodes: list[str], edges: list[tuple[str, str]]) -> int:
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return len(graph)


def make_traces(count: int) -> Iterator[ExecutionTrace]:
    return (make_trace(f"run-{number}", STEPS_PER_TRACE, seed=number) for number in range(count))


def make_trace(trace_id: str, steps: int, *, seed: int = 0) -> ExecutionTrace:
    """A layered run with fan-out, joins and loops; three of four steps are model calls with messages."""
    rng = random.Random(seed)
    prompts = {node: digest(f"You are the {node}.") for node in WORDS}
    made: list[Step] = []
    for number in range(steps):
        node = WORDS[number % len(WORDS)]
        visit = number // len(WORDS)
        step_id = node if visit == 0 else f"{node}~{visit + 1}"
        before = range(max(0, number - 4), number)
        sources = rng.sample(before, min(len(before), rng.choice((1, 1, 2))))
        start = 1_790_000_000_000_000_000 + number * 1_000_000
        common: dict[str, Any] = {
            "id": step_id,
            "node_id": node,
            "predecessors": tuple(made[source].id for source in sources),
            "surface_reads": {f"{node}#instruction": prompts[node]},
            "start_ns": start,
            "end_ns": start + 900_000,
        }
        if number % 4:
            made.append(
                Step(
                    **common,
                    kind="llm",
                    input=Snapshot(
                        data=[
                            make_message("system", f"You are the {node}."),
                            make_message("user", make_sentence(rng, 40)),
                        ]
                    ),
                    output=Snapshot(data=[make_message("assistant", make_sentence(rng, 60))]),
                    usage=Usage(input_tokens=rng.randint(50, 900), output_tokens=rng.randint(5, 300), cost_usd=0.0004),
                    attributes={"gen_ai.request.model": "gpt-5-mini", "gen_ai.request.temperature": 0.2},
                )
            )
        else:
            made.append(Step(**common, input=Snapshot(make_sentence(rng, 20)), output=Snapshot(make_sentence(rng, 20))))
    return ExecutionTrace(id=trace_id, steps=tuple(made), conversation_id=f"thread-{seed % 97}")


def make_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def make_sentence(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


if __name__ == "__main__":
    main()
