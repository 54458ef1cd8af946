"""The static graph behind a set of traces, and the surfaces that their steps read, as far as they were seen.

Traces are read in one pass. What is kept does not grow with their number, apart from new nodes, edges and values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher

from traces.model import EdgeKind, ExecutionTrace, Json, Step, StepKind, digest

SURFACES = "promptiter.surfaces"
"""Trace attribute: the surfaces that its steps read, by id, each with type and value."""

MODEL = "gen_ai.request.model"
MOST_VALUES = 50
"""Values of a surface that are kept; others are only counted."""

MOST_COUNTED = 100_000
"""So many others are told apart; a text with more is another one in every run."""

MIN_SHARED = 0.5
"""Texts that share this part of their words are one template."""

MOST_COMPARED = 2_000
"""Where texts differ, so many words are compared; longer differences are one gap."""

GAP = "{…}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureNode:
    """A node, how often it ran, and with which models. Times are nanoseconds since 1970, None if unknown."""

    id: str
    kind: StepKind
    steps: int
    traces: int
    models: tuple[str, ...] = ()
    first_ns: int | None = None
    last_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureEdge:
    """A node followed another one (control) or read its output (data): in how many traces, and how that is known."""

    source: str
    target: str
    kind: EdgeKind
    traces: int
    evidence: Mapping[str, int]
    is_guessed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureValue:
    """A value of a surface, and how many steps and traces read it. It is None if the traces have only its digest."""

    digest: str
    value: Json
    steps: int
    traces: int
    first_ns: int | None = None
    last_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureSurface:
    """A surface with the values that were seen, the most frequent first; `others` were not kept.

    If texts differ only here and there, `template` is what they share, with `{…}` where they differ. `arguments` is the
    JSON schema of a tool's arguments, as seen last.
    """

    id: str
    node_id: str
    type: str
    values: tuple[StructureValue, ...]
    others: int = 0
    template: str | None = None
    arguments: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceStructure:
    """Nodes in the order in which they first ran, edges and surfaces."""

    traces: int
    nodes: tuple[StructureNode, ...]
    edges: tuple[StructureEdge, ...]
    surfaces: tuple[StructureSurface, ...]

    def to_json(self) -> dict[str, Json]:
        fields = asdict(self)
        return {"schema_version": 1, **{name: _to_list(value) for name, value in fields.items()}}


def to_structure(traces: Iterable[ExecutionTrace]) -> TraceStructure:
    """The static graph and the surfaces that a set of traces shows. Reads the traces once, one after the other."""
    reader = StructureReader()
    for trace in traces:
        reader.add(trace)
    return reader.finish()


def merge_template(template: str, text: str) -> str | None:
    """What two texts share, with gaps where they differ; None if that is too little."""
    ours, theirs = _split(template), _split(text)
    head = _count_shared(ours, theirs)
    tail = _count_shared(ours[head:][::-1], theirs[head:][::-1])
    middle = _merge_middle(ours[head : len(ours) - tail], theirs[head : len(theirs) - tail])
    merged = [*ours[:head], *middle, *ours[len(ours) - tail :]]
    shared = sum(map(_is_word, merged))
    if shared < MIN_SHARED * max(sum(map(_is_word, ours)), sum(map(_is_word, theirs))):
        return None
    return re.sub(rf"{re.escape(GAP)}(?:\s*{re.escape(GAP)})+", GAP, "".join(merged))


class StructureReader:
    """Reads the structure from traces that are added one after the other."""

    def __init__(self) -> None:
        self.traces = 0
        self.nodes: dict[str, _Node] = {}
        self.edges: dict[tuple[str, str, EdgeKind], _Edge] = {}
        self.surfaces: dict[str, _Surface] = {}

    def add(self, trace: ExecutionTrace) -> None:
        self.traces += 1
        known = trace.attributes.get(SURFACES)
        values: Mapping[str, Json] = known if isinstance(known, dict) else {}
        digests = {name: digest(fields["value"]) for name, fields in values.items() if _has_value(fields)}
        node_of = {step.id: step.node_id for step in trace.steps}
        for step in sorted(trace.steps, key=lambda step: step.start_ns or 0):
            self.nodes.setdefault(step.node_id, _Node(step.kind)).add(step, self.traces)
            for source, kind, evidence, is_guessed in _list_edges(step):
                edge = self.edges.setdefault((node_of[source], step.node_id, kind), _Edge())
                edge.add(self.traces, evidence, is_guessed)
            for surface_id, seen in (step.surface_reads or {}).items():
                surface = self.surfaces.setdefault(surface_id, _Surface())
                fields = values.get(surface_id)
                is_known = digests.get(surface_id) == seen
                surface.add(seen, fields if is_known and isinstance(fields, dict) else {}, step, self.traces)

    def finish(self) -> TraceStructure:
        return TraceStructure(
            traces=self.traces,
            nodes=tuple(node.finish(node_id) for node_id, node in self.nodes.items()),
            edges=tuple(
                StructureEdge(
                    source=source,
                    target=target,
                    kind=kind,
                    traces=edge.traces,
                    evidence=dict(sorted(edge.evidence.items())),
                    is_guessed=edge.is_guessed,
                )
                for (source, target, kind), edge in self.edges.items()
            ),
            surfaces=tuple(self.surfaces[name].finish(name) for name in sorted(self.surfaces)),
        )


class _Seen:
    """How often, and when first and last."""

    def __init__(self) -> None:
        self.steps = self.traces = self.latest = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def see(self, step: Step, trace: int) -> None:
        self.steps += 1
        self.traces += self.latest != trace
        self.latest = trace
        if step.start_ns is not None:
            self.first_ns = min(self.first_ns or step.start_ns, step.start_ns)
            self.last_ns = max(self.last_ns or step.start_ns, step.start_ns)


class _Node(_Seen):
    def __init__(self, kind: StepKind) -> None:
        super().__init__()
        self.kind = kind
        self.models: Counter[str] = Counter()

    def add(self, step: Step, trace: int) -> None:
        self.see(step, trace)
        if isinstance(model := step.attributes.get(MODEL), str):
            self.models[model] += 1

    def finish(self, node_id: str) -> StructureNode:
        models = tuple(sorted(self.models, key=lambda model: (-self.models[model], model)))
        return StructureNode(
            id=node_id,
            kind=self.kind,
            steps=self.steps,
            traces=self.traces,
            models=models,
            first_ns=self.first_ns,
            last_ns=self.last_ns,
        )


class _Edge:
    def __init__(self) -> None:
        self.traces = self.latest = 0
        self.evidence: Counter[str] = Counter()
        self.is_guessed = True

    def add(self, trace: int, evidence: str, is_guessed: bool) -> None:
        self.traces += self.latest != trace
        self.latest = trace
        self.evidence[evidence] += 1
        self.is_guessed &= is_guessed


class _Surface:
    def __init__(self) -> None:
        self.type: str | None = None
        self.seen: dict[str, _Seen] = {}
        self.values: dict[str, Json] = {}
        self.others: set[int] = set()
        self.template: str | None = None
        self.arguments: Mapping[str, Json] = {}

    def add(self, seen: str, fields: Mapping[str, Json], step: Step, trace: int) -> None:
        self.type = self.type or fields.get("type")
        self.arguments = fields.get("arguments") or self.arguments
        if seen not in self.seen and len(self.seen) >= MOST_VALUES:
            if len(self.others) < MOST_COUNTED:
                self.others.add(hash(seen))
            return
        self.seen.setdefault(seen, _Seen()).see(step, trace)
        if seen not in self.values and "value" in fields:
            self._merge(fields["value"])
            self.values[seen] = fields["value"]

    def _merge(self, value: Json) -> None:
        if isinstance(value, str):
            if not any(isinstance(each, str) for each in self.values.values()):
                self.template = value
            elif self.template is not None:
                self.template = merge_template(self.template, value)

    def finish(self, surface_id: str) -> StructureSurface:
        node_id, _, name = surface_id.rpartition("#")
        values = [
            StructureValue(
                digest=seen,
                value=self.values.get(seen),
                steps=times.steps,
                traces=times.traces,
                first_ns=times.first_ns,
                last_ns=times.last_ns,
            )
            for seen, times in self.seen.items()
        ]
        values.sort(key=lambda value: (-value.steps, value.first_ns or 0, value.digest))
        return StructureSurface(
            id=surface_id,
            node_id=node_id,
            type=self.type or name.partition(".")[0],
            values=tuple(values),
            others=len(self.others),
            template=self.template if len(values) > 1 else None,
            arguments=self.arguments,
        )


def _list_edges(step: Step) -> Iterable[tuple[str, EdgeKind, str, bool]]:
    for edge in step.edges:
        yield edge.source, edge.kind, edge.evidence, edge.is_guessed
    known = {edge.source for edge in step.edges}
    for source in step.predecessors:
        if source not in known:
            yield source, "control", "recorded", False


def _has_value(fields: Json) -> bool:
    return isinstance(fields, dict) and "value" in fields


def _to_list(value: Json) -> Json:
    return list(value) if isinstance(value, tuple) else value


def _split(text: str) -> list[str]:
    """Words, gaps, and what is between them."""
    return re.findall(rf"{re.escape(GAP)}|\w+|\s+|[^\w\s]", text)


def _is_word(part: str) -> bool:
    return part[0].isalnum()


def _count_shared(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """How many parts are the same at the beginning, up to the end of a word."""
    count = 0
    for one, other in zip(ours, theirs, strict=False):
        if one != other:
            break
        count += 1
    return count


def _merge_middle(ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    if not ours and not theirs:
        return []
    if not ours or not theirs or max(len(ours), len(theirs)) > MOST_COMPARED:
        return [GAP]
    merged: list[str] = []
    for action, start, end, _, _ in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        part = ours[start:end]
        is_shared = action == "equal" and (any(map(_is_word, part)) or start == 0 or end == len(ours))
        merged += part if is_shared else [GAP]
    return merged
