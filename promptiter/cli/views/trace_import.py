"""What `promptiter trace import` says about an import."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from promptiter.cli.output import SteadyConsole
from promptiter.wording import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from traces.otel.recover.coverage import Coverage

_STATED = {
    "user": "your edges",
    "link": "linked spans",
    "trigger": "triggers",
    "route": "chosen routes",
    "graph": "static graph",
    "name": "hand-overs by name",
    "loop": "calls",
}
_GUESSED = {
    "superstep": "superstep before",
    "text": "text that was read",
    "consensus": "text in other runs",
    "nesting": "nesting",
    "time": "time alone",
}


def print_coverage(coverage: Coverage, output: Path) -> None:
    """Print what was taken over from the spans, on standard error."""
    screen = SteadyConsole()
    for line in _list_lines(coverage, output):
        screen.print(line, markup=False, highlight=False)


def _list_lines(coverage: Coverage, output: Path) -> Iterator[str]:
    where = "" if str(output) == "-" else f" written to {output}"
    yield f"{plural(coverage.traces, 'trace')} with {plural(coverage.steps, 'step')}{where}"
    dropped = coverage.dropped.total()
    became = coverage.spans - coverage.folded - dropped
    yield f"spans: {coverage.spans:,} read, {became:,} became steps, {coverage.folded:,} folded, {dropped:,} dropped"
    for reason, count in coverage.dropped.most_common():
        yield f"  dropped: {count:,} {reason}"
    if coverage.without_steps:
        yield f"  {plural(coverage.without_steps, 'OTLP trace')} without any step left out"
    for warning, count in coverage.warnings.most_common():
        yield f"  warning: {warning}" + (f" ({count:,} times)" if count > 1 else "")
    control = Counter(
        {key.partition("/")[2]: count for key, count in coverage.edges.items() if key.startswith("control/")}
    )
    for heading, words in (("stated", _STATED), ("guessed", _GUESSED)):
        counts = {words[name]: control[name] for name in words if control[name]}
        if counts:
            listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            yield f"edges {heading}: {sum(counts.values()):,} ({listed})"
    if coverage.changed_by_consensus:
        yield f"{plural(coverage.changed_by_consensus, 'trace')} corrected by other runs of the same application"
    yield f"{plural(coverage.without_predecessors, 'step')} without a predecessor"
