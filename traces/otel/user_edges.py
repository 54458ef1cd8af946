"""Edges that users know: who follows whom, by the names of nodes or for single steps.

A file has lines such as `planner -> researcher`, or the same as YAML or JSON: a list of such lines or of
`{source, target}`, with a `trace_id` if an edge is about one trace only. What LangGraph's `graph.get_graph().to_json()`
returns can be used as it is. Names are those of nodes (`researcher`), of the second and later executions of a node
(`researcher#2`), or step ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TypeAlias

from traces.errors import Place, TraceError, UnreadableTraceError, suggest
from traces.executions import name_executions
from traces.model import Edge, ExecutionTrace, Json, Step

EdgeSource: TypeAlias = str | PathLike[str] | Sequence[Json] | Mapping[str, Json]
"""A file of edges, or what is in it."""

_ENDS = ("__start__", "__end__")


@dataclass(frozen=True, slots=True)
class UserEdge:
    """An edge between two nodes, executions or steps, in every trace or in one."""

    source: str
    target: str
    trace_id: str | None = None


@dataclass(slots=True)
class UserEdges:
    """The edges that a user stated. `is_graph` if they are those of a whole graph, of which parts need not have run."""

    edges: Sequence[UserEdge]
    is_graph: bool = False
    _unseen: set[str] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._unseen = {name for edge in self.edges for name in (edge.source, edge.target)}

    def apply(self, trace: ExecutionTrace) -> ExecutionTrace:
        """The trace with these edges instead of the guessed ones into the same steps.

        An edge between nodes leads from the latest execution of the source that started before the target, unless an
        earlier execution of the target has followed that one already.
        """
        ordered = sorted(trace.steps, key=lambda step: step.start_ns or 0)
        names = name_executions(trace)
        stated = self._list_targets(trace.id, ordered, names)
        followed: set[tuple[str, str]] = set()
        latest: dict[str, Step] = {}
        steps: list[Step] = []
        for step in ordered:
            sources: dict[str, None] = {}
            for edge in stated.get(step.id, ()):
                source = latest.get(edge.source)
                if source is not None and (source.id, step.node_id) not in followed:
                    sources[source.id] = None
            followed |= {(source, step.node_id) for source in sources}
            new = _replace_guesses(step, sources) if sources else step
            for name in (step.id, step.node_id, names[step.id]):
                latest[name] = step
            steps.append(new)
        if all(new is old for new, old in zip(steps, ordered, strict=True)):
            return trace
        return replace(trace, steps=tuple(steps))

    def check(self) -> None:
        """Raise an error for names that no trace has. Of a graph, one known node is enough."""
        if not self._unseen or (self.is_graph and self._seen):
            return
        name = min(self._unseen)
        listed = ", ".join(sorted(self._seen)[:8])
        hint = suggest(name, sorted(self._seen)) or (f"; there are {listed}" if listed else "")
        raise TraceError(f"edges: the traces have no node or step {name!r}{hint}")

    def _list_targets(
        self, trace_id: str, ordered: Sequence[Step], names: Mapping[str, str]
    ) -> dict[str, list[UserEdge]]:
        known: dict[str, list[str]] = {}
        for step in ordered:
            for name in {step.id, step.node_id, names[step.id]}:
                known.setdefault(name, []).append(step.id)
        self._unseen -= known.keys()
        self._seen |= {step.node_id for step in ordered}
        found: dict[str, list[UserEdge]] = {}
        for edge in self.edges:
            if edge.trace_id in (None, trace_id):
                for step_id in known.get(edge.target, ()):
                    found.setdefault(step_id, []).append(edge)
        return found


def load_edges(source: EdgeSource) -> UserEdges:
    """Read edges from a file, a list or the dump of a graph."""
    if not isinstance(source, str | PathLike):
        return _read_value(source, Place("edges"))
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableTraceError(f"cannot be read: {error}", place=Place(str(path))) from error
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if lines and all("->" in line and line[0] not in "-[{'\"" for _, line in lines):
        return UserEdges([_read_line(line, Place(str(path), line=number)) for number, line in lines])
    return _read_value(_load_yaml(text, path), Place(str(path)))


def _replace_guesses(step: Step, sources: Iterable[str]) -> Step:
    stated = {source: Edge(source=source, evidence="user") for source in sources}
    kept = [edge for edge in step.edges if edge.kind == "data" or not (edge.is_guessed or edge.source in stated)]
    edges = (*kept, *stated.values())
    listed = {edge.source for edge in step.edges}
    bare = [source for source in step.predecessors if source not in listed]
    return replace(step, edges=edges, predecessors=(*bare, *{edge.source for edge in edges}))


def _load_yaml(text: str, path: Path) -> Json:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = Place(str(path), line=None if mark is None else mark.line + 1)
        raise UnreadableTraceError("is neither lines `source -> target` nor YAML or JSON", place=place) from error


def _read_value(value: Json, place: Place) -> UserEdges:
    is_graph = isinstance(value, Mapping) and "nodes" in value
    rows = value.get("edges") if isinstance(value, Mapping) else value
    if not isinstance(rows, list | tuple):
        raise UnreadableTraceError(
            "has no edges; write lines `source -> target`, or a list `edges` with source and target", place=place
        )
    return UserEdges([edge for row in rows for edge in _read_row(row, place)], is_graph=is_graph)


def _read_row(row: Json, place: Place) -> Iterator[UserEdge]:
    if isinstance(row, str):
        yield _read_line(row, place)
    elif isinstance(row, list | tuple) and len(row) == 2:
        yield UserEdge(str(row[0]), str(row[1]))
    elif isinstance(row, Mapping) and "source" in row and "target" in row:
        source, target, trace_id = row["source"], row["target"], row.get("trace_id")
        if source not in _ENDS and target not in _ENDS:
            yield UserEdge(str(source), str(target), None if trace_id is None else str(trace_id))
    else:
        raise UnreadableTraceError(
            f"{row!r:.80} is not an edge; write `source -> target` or source, target and perhaps trace_id", place=place
        )


def _read_line(line: str, place: Place) -> UserEdge:
    source, arrow, target = (part.strip() for part in line.partition("->"))
    if not source or not arrow or not target or "->" in target:
        raise UnreadableTraceError(f"{line!r:.80} is not an edge; write `source -> target`", place=place)
    return UserEdge(source, target)
