"""What `promptiter trace import` says about an import."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from promptiter.cli.output import SteadyConsole
from promptiter.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traces.otel.recover.coverage import Coverage

_EVIDENCE = {
    "link": "linked spans",
    "trigger": "the graph's triggers",
    "route": "routes that were chosen",
    "graph": "the static graph",
    "name": "hand-overs by name",
    "loop": "calls of a step",
    "superstep": "the superstep before",
    "text": "text that was read",
    "nesting": "nesting",
    "time": "time alone",
}


def print_coverage(coverage: Coverage, output: Path) -> None:
    """Print what was taken over from the spans, on standard error."""
    screen = SteadyConsole()
    for line in _list_lines(coverage, output):
        screen.print(line)


def _list_lines(coverage: Coverage, output: Path) -> Iterator[str]:
    where = "" if str(output) == "-" else f", written to {output}"
    yield f"{plural(coverage.traces, 'trace')} with {plural(coverage.steps, 'step')}{where}"
    yield f"{plural(coverage.spans, 'span')} read, {coverage.folded:,} folded into steps or around them"
    for reason, count in coverage.dropped.most_common():
        yield f"{plural(count, 'span')} dropped: {reason}"
    for warning, count in coverage.warnings.most_common():
        yield f"warning: {warning}{f' ({count:,} times)' if count > 1 else ''}"
    if coverage.without_steps:
        yield f"{plural(coverage.without_steps, 'OTLP trace')} without any step left out"
    for kind, what in (("control", "followed"), ("data", "only read, or read as well")):
        counts = {name.partition("/")[2]: count for name, count in coverage.edges.items() if name.startswith(kind)}
        if counts:
            listed = ", ".join(f"{count:,} by {_EVIDENCE[name]}" for name, count in sorted(counts.items()))
            yield f"{sum(counts.values()):,} edges to steps that were {what}: {listed}"
    yield f"{plural(coverage.without_predecessors, 'step')} without a predecessor"
