"""The trace of a measurement: one step of the workspace that read all artifacts, after those that the runner traced.

Its input is what the task is for, its output what runner and scorers printed. The steps of the runner's own traces are
steps of the workspace, too, because it alone has surfaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from promptiter.tasks.files.workspace import NODE, name_surface
from traces import Edge, ExecutionTrace, Snapshot, Step, digest

LAST = "measure"
"""The id of the step that stands for the whole measurement."""
MOST_STEPS = 60
"""Of longer traces, the last steps are kept."""


def build_trace(
    texts: Mapping[str, str], *, question: str, output: str, recorded: Sequence[ExecutionTrace] = ()
) -> ExecutionTrace:
    """The trace of one measurement of artifacts with these texts."""
    reads = {name_surface(path): digest(text) for path, text in texts.items()}
    steps = list(_take_over(recorded, reads))
    ends = _find_ends(steps)
    last = Step(
        id=LAST,
        node_id=NODE,
        predecessors=ends,
        edges=tuple(Edge(source=each, kind="data") for each in ends),
        surface_reads=reads,
        input=Snapshot(question),
        output=Snapshot(output),
    )
    return ExecutionTrace(id=digest([sorted(reads.items()), output])[:16], steps=(*steps, last))


def _take_over(recorded: Sequence[ExecutionTrace], reads: Mapping[str, str]) -> Iterator[Step]:
    for number, trace in enumerate(recorded):
        kept = trace.steps[-MOST_STEPS:]
        known = {step.id for step in kept}
        for step in kept:
            attributes = {**step.attributes, "promptiter.recorded_node": step.node_id}
            yield replace(
                step,
                id=f"run{number}/{step.id}",
                node_id=NODE,
                predecessors=tuple(f"run{number}/{each}" for each in step.predecessors if each in known),
                edges=tuple(
                    replace(edge, source=f"run{number}/{edge.source}") for edge in step.edges if edge.source in known
                ),
                surface_reads=dict(reads),
                attributes=attributes,
            )


def _find_ends(steps: Sequence[Step]) -> tuple[str, ...]:
    """The steps that no other step follows."""
    followed = {each for step in steps for each in step.predecessors}
    return tuple(step.id for step in steps if step.id not in followed)
