"""Traces on a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.wording import dollars, plural
from traces import ExecutionTrace, Step, TraceGraph, Usage
from traces.draw.lanes import to_lanes
from traces.executions import show_names
from traces.stats import TraceStatistics
from traces.text import cut_middle, format_duration, one_line, preview

KIND_STYLES = {"agent": "magenta", "llm": "blue", "function": "default", "tool": "yellow"}
STATUS_STYLES = {"completed": "green", "incomplete": "yellow", "failed": "red"}
TIMELINE = 24
MIN_NOTE = 20
GAP = 2
FIGURES = ("time", "tokens", "cost")
MAX_NAME = 36
MAX_OUTPUT = 300
"""Characters of the output of a step."""

MAX_GRAPH = 40
"""Maximum width of the graph; if it is wider, a column names the predecessors instead."""


def print_trace(console: Console, trace: ExecutionTrace, *, limit: int, outputs: bool = False) -> None:
    """Print a summary, the graph with its figures, on request what each step returned, and the failures."""
    trace = show_names(trace)
    graph = TraceGraph(trace)
    path = graph.failing_path()
    _print_summary(console, trace, graph)
    shown = trace.steps if not limit or len(trace.steps) <= limit else _choose_steps(trace, path, limit)
    console.print(_graph_table(trace, graph, shown, {step.id for step in path}, width=console.width))
    if len(shown) < len(trace.steps):
        hidden = len(trace.steps) - len(shown)
        console.print(f"… {hidden:,} more steps; --limit 0 lists all, --format svg draws them", style="dim")
    _print_guesses(console, shown)
    if outputs:
        _print_outputs(console, shown)
    _print_failures(console, trace, path)


def print_list(console: Console, traces: Sequence[ExecutionTrace], *, limit: int) -> None:
    """Print several traces, one per line."""
    if not traces:
        console.print("no traces")
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("trace", "status"):
        table.add_column(name, no_wrap=True)
    for name in ("steps", "time", "tokens", "cost"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("first failure", overflow="fold")
    shown = traces[:limit] if limit else traces
    for trace in map(show_names, shown):
        failed = next((step for step in trace.steps if step.error), None)
        table.add_row(
            Text(one_line(trace.id)),
            Text(trace.status, STATUS_STYLES[trace.status]),
            f"{len(trace.steps):,}",
            "" if trace.duration_ns is None else format_duration(trace.duration_ns),
            *_usage_cells(trace.usage),
            Text(one_line(f"{failed.id}: {failed.error}"), "red") if failed else "",
        )
    console.print(table)
    if len(shown) < len(traces):
        console.print(f"… {len(traces) - len(shown):,} more; --limit 0 lists all", style="dim")
    console.print(f"{plural(len(traces), 'trace')}; show one with --trace ID", style="dim")


def print_statistics(console: Console, statistics: TraceStatistics) -> None:
    """Print a summary line and a table of nodes."""
    statuses = ", ".join(f"{count:,} {status}" for status, count in statistics.by_status.items())
    by_status = f" ({statuses})" if statuses else ""
    console.print(
        f"[bold]{plural(statistics.traces, 'trace')}[/]{by_status}, {plural(statistics.steps, 'step')}", end=""
    )
    console.print(f", longest {statistics.longest_trace_steps:,}, with loops {statistics.traces_with_loops:,}")
    if not statistics.traces:
        return
    tokens, cost = _usage_cells(statistics.usage)
    times = (
        f"median {_span(statistics.median_s)}, p95 {_span(statistics.p95_s)}"
        if statistics.median_s is not None
        else "unknown"
    )
    console.print(f"time {times}; tokens {tokens or 'unknown'}; cost {cost or 'unknown'}\n")
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("node")
    table.add_column("kind")
    for name in ("visits", "errors", "median", "p95", "tokens", "cost"):
        table.add_column(name, justify="right")
    for node in statistics.nodes:
        table.add_row(
            Text(one_line(node.node_id)),
            Text(node.kind, KIND_STYLES[node.kind]),
            f"{node.visits:,}",
            Text(f"{node.errors:,}", "bold red") if node.errors else "0",
            _span(node.median_s),
            _span(node.p95_s),
            *_usage_cells(node.usage),
        )
    console.print(table)
    if statistics.errors:
        errors = ", ".join(f"{one_line(kind) or 'unnamed'} ×{count:,}" for kind, count in statistics.errors.items())
        console.print(Text.assemble("\n", ("errors: ", "red"), errors))


def _print_summary(console: Console, trace: ExecutionTrace, graph: TraceGraph) -> None:
    title = Text.assemble((one_line(trace.id), "bold"), "  ", (trace.status, f"bold {STATUS_STYLES[trace.status]}"))
    if trace.conversation_id:
        title.append(f"  conversation {one_line(trace.conversation_id)}", "dim")
    console.print(title)
    tokens, cost = _usage_cells(trace.usage)
    nodes = len({step.node_id for step in trace.steps})
    parts = [f"{plural(len(trace.steps), 'step')} of {plural(nodes, 'node')}"]
    if trace.duration_ns is not None:
        parts.append(format_duration(trace.duration_ns))
    parts += [f"{tokens} tokens" if tokens else "tokens unknown", f"cost {cost or 'unknown'}"]
    console.print(", ".join(parts), style="dim")
    for loop in graph.unrolled_loops():
        console.print(f"loop ×{loop.iterations}: {one_line(', '.join(loop.node_ids[:12]))}", style="dim", markup=False)
    if trace.duration_ns is not None and len(trace.steps) > 1:
        console.print(
            f"critical path: {_chain([step.id for step in graph.critical_path()])}", style="dim", markup=False
        )
    if skipped := trace.attributes.get("promptiter.skipped_spans"):
        console.print(Text(f"{skipped} spans of the export are not steps and are not shown", "yellow"))
    console.print()


def _graph_table(
    trace: ExecutionTrace, graph: TraceGraph, shown: Sequence[Step], path: set[str], *, width: int
) -> Table:
    """One row per step. A narrow terminal shows fewer columns, but keeps them readable."""
    lanes = None
    if len(shown) == len(trace.steps):
        lanes = to_lanes(graph, shown, widest=min(MAX_GRAPH, width // 3))
    rows: Sequence[tuple[str, Step | None]] = lanes or [("✗" if step.error else "●", step) for step in shown]
    cells = {step.id: _cells(step) for step in shown}
    columns = _measure(list(cells.values()), rows, is_drawn=lanes is not None, is_timed=bool(trace.duration_ns))
    columns.narrow(width)
    table = Table(box=None, header_style="dim", pad_edge=False, show_edge=False, expand=bool(columns.note))
    for name, size in asdict(columns).items():
        if name == "note" and size:
            table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
        elif size:
            heading = "" if name == "drawing" else name
            table.add_column(heading, no_wrap=True, width=size, justify="right" if name in FIGURES else "left")
    for drawing, step in rows:
        if step is None:
            table.add_row(Text(drawing, "dim"))
            continue
        style = "bold red" if step.error else "red" if step.id in path else ""
        texts = cells[step.id]
        row = {
            "drawing": _style_marks(drawing, style),
            "step": Text(cut_middle(texts.name, columns.step), style),
            "kind": Text(step.kind, KIND_STYLES[step.kind]),
            "after": Text(cut_middle(texts.after, columns.after), "dim"),
            "when": _timeline(step, trace, style or KIND_STYLES[step.kind], width=columns.when),
            "time": Text(texts.time),
            "tokens": Text(texts.tokens),
            "cost": Text(texts.cost),
            "note": Text(texts.note, "red" if step.error else "dim"),
        }
        table.add_row(*(row[name] for name, size in asdict(columns).items() if size))
    return table


@dataclass(slots=True)
class _Columns:
    """The widths of the columns, from left to right; 0 omits a column."""

    drawing: int
    step: int
    kind: int
    after: int
    when: int
    time: int
    tokens: int
    cost: int
    note: int

    def narrow(self, width: int) -> None:
        """Narrow or omit columns, the least important first, until everything fits."""
        for name, limit in _NARROWING:
            wanted = [size for size in astuple(self) if size]
            if sum(wanted) + GAP * (len(wanted) - 1) <= width:
                return
            setattr(self, name, min(getattr(self, name), limit))


_NARROWING = (
    ("when", 12),
    ("after", 14),
    ("kind", 0),
    ("note", 0),
    ("step", 24),
    ("cost", 0),
    ("tokens", 0),
    ("after", 0),
    ("step", 16),
    ("when", 0),
)
"""The order in which columns are narrowed, and to which width."""


class _Cells(NamedTuple):
    """The texts in the row of a step."""

    name: str
    kind: str
    after: str
    time: str
    tokens: str
    cost: str
    note: str


def _cells(step: Step) -> _Cells:
    return _Cells(
        one_line(step.id) + (" ?" if _has_guess(step) else ""),
        step.kind,
        one_line(", ".join(step.predecessors)),
        "" if step.duration_ns is None else format_duration(step.duration_ns),
        *_usage_cells(step.usage),
        _note(step),
    )


def _measure(
    cells: Sequence[_Cells], rows: Sequence[tuple[str, Step | None]], *, is_drawn: bool, is_timed: bool
) -> _Columns:
    """The widths that the steps need; predecessors are named only if no lanes show them."""
    return _Columns(
        drawing=max(len(drawing) for drawing, _ in rows),
        step=min(MAX_NAME, _widest("step", (each.name for each in cells))),
        kind=_widest("kind", (each.kind for each in cells)),
        after=0 if is_drawn else min(30, _widest("after", (each.after for each in cells))),
        when=TIMELINE if is_timed else 0,
        time=_widest("time", (each.time for each in cells)),
        tokens=_widest("tokens", (each.tokens for each in cells)),
        cost=_widest("cost", (each.cost for each in cells)),
        note=min(MIN_NOTE, _widest("", (each.note for each in cells))),
    )


def _widest(heading: str, texts: Iterable[str]) -> int:
    """The width of a column; 0 if there is nothing in it."""
    widest = max(map(len, texts))
    return max(widest, len(heading)) if widest else 0


def _print_guesses(console: Console, steps: Sequence[Step]) -> None:
    """Explain the mark of steps of which it is guessed whom they followed."""
    evidence = Counter(edge.evidence for step in steps for edge in step.edges if edge.is_guessed)
    if evidence:
        listed = ", ".join(f"{name} {count:,}" for name, count in sorted(evidence.items()))
        console.print(f"\n? which steps came before is guessed ({listed}); --format json has the details", style="dim")


def _has_guess(step: Step) -> bool:
    return any(edge.is_guessed for edge in step.edges)


def _print_outputs(console: Console, steps: Sequence[Step]) -> None:
    table = Table.grid(padding=(0, GAP, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for step in steps:
        if text := "" if step.error else preview(step.output, MAX_OUTPUT):
            table.add_row(Text(cut_middle(one_line(step.id), MAX_NAME)), Text(one_line(text)))
    if table.row_count:
        console.print()
        console.print(table)


def _print_failures(console: Console, trace: ExecutionTrace, path: Sequence[Step]) -> None:
    failed = [step for step in trace.steps if step.error]
    if not failed:
        return
    console.print()
    if path:
        console.print(Text.assemble(("failing path: ", "bold red"), (_chain([step.id for step in path]), "red")))
    else:
        console.print("the run completed although these steps failed:", style="yellow")
    for step in failed[:5]:
        console.print(Text.assemble((one_line(f"✗ {step.id}  "), "bold red"), one_line(str(step.error))))
        for name, snapshot in (("in ", step.input), ("out", step.output)):
            if text := preview(snapshot, 300):
                console.print(Text(f"  {name}  {one_line(text)}", "dim"))
    if len(failed) > 5:
        console.print(f"… and {len(failed) - 5:,} more failed steps", style="dim")


def _choose_steps(trace: ExecutionTrace, path: Sequence[Step], limit: int) -> list[Step]:
    """The first steps, and those on the path to the failure."""
    wanted = {step.id for step in (*path[-limit:], *(step for step in trace.steps if step.error))}
    first = max(0, limit - len(wanted))
    return [step for number, step in enumerate(trace.steps) if number < first or step.id in wanted][: max(limit, 1)]


def _style_marks(drawing: str, style: str) -> Text:
    text = Text(drawing, "dim")
    for at, letter in enumerate(drawing):
        if letter in "●✗○":
            text.stylize(style or "bold", at, at + 1)
    return text


def _timeline(step: Step, trace: ExecutionTrace, style: str, *, width: int) -> Text:
    """A bar that shows when in the run the step ran."""
    start, whole = trace.start_ns, trace.duration_ns
    if step.start_ns is None or step.duration_ns is None or start is None or not whole or not width:
        return Text("")
    first = min(width - 1, (step.start_ns - start) * width // whole)
    length = max(1, min(width - first, round(step.duration_ns * width / whole)))
    return Text.assemble(("·" * first, "dim"), ("━" * length, style), ("·" * (width - first - length), "dim"))


def _note(step: Step) -> str:
    """The error of a step, or its tools and the surfaces that it read."""
    if step.error:
        return one_line(str(step.error))
    parts = []
    if step.tool_calls:
        names = [call.name + ("✗" if call.error else "") for call in step.tool_calls]
        parts.append("tools: " + ", ".join(names))
    if step.surface_reads:
        parts.append("reads " + ", ".join(surface.partition("#")[2] or surface for surface in step.surface_reads))
    return one_line("; ".join(parts))


def _usage_cells(usage: Usage | None) -> tuple[str, str]:
    if usage is None:
        return "", ""
    tokens = "" if usage.input_tokens is usage.output_tokens is None else f"{usage.tokens:,}"
    if usage.cost_usd is None:
        return tokens, "unknown" if tokens else ""
    return tokens, dollars(usage.cost_usd)


def _chain(names: Sequence[str]) -> str:
    shown = names if len(names) <= 12 else [*names[:6], "…", *names[-5:]]
    return one_line(" → ".join(shown))


def _span(value_s: float | None) -> str:
    return "" if value_s is None else format_duration(round(value_s * 1e9))
