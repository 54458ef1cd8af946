"""One failed trace as evidence sees it: its texts, what each node is told, and what may be blamed for a step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from promptiter.offline.attribution.expected_values import Atom
from promptiter.offline.attribution.fault_localization import Shape, most_suspicious, nodes_showing, shape_of
from promptiter.offline.attribution.value_search import FoldedText, TraceTexts, field_of, plain_words
from promptiter.offline.rules.prompt_editing import asks_to_copy
from promptiter.stages.contracts import AttributeRequest
from promptiter.stages.losses import Category
from promptiter.structure import TEXT_TYPES, Surface, SurfaceType
from traces import Step

PREFERRED: tuple[SurfaceType, ...] = (
    *("instruction", "global_instruction", "skill", "file", "tool"),
    *("examples", "parameter", "model"),
)
"""Of the surfaces of a step, the first of these is blamed."""

_CARRY_ALL = re.compile(r"\b(?:all|every|each|everything|whole|complete|entire)\b", re.IGNORECASE)


class Scene:
    """All that is asked about one request while its blame is found; answers are kept."""

    def __init__(self, request: AttributeRequest) -> None:
        self.request = request
        self.trace = request.trace
        self.texts = TraceTexts(request.trace)
        self.steps = {step.id: step for step in request.trace.steps}
        self.position = {step.id: index for index, step in enumerate(request.trace.steps)}
        self.said = FoldedText(request.case_loss.input)
        self._surfaces: dict[str, list[Surface]] = defaultdict(list)
        for surface in request.snapshot.surfaces:
            self._surfaces[surface.node_id].append(surface)
        self._blamable: dict[str, tuple[Surface, ...]] = {}
        self._told: dict[str, str] = {}
        self._plainly_told: dict[str, str] = {}
        self._showing: dict[str, frozenset[str]] = {}
        self._fields: dict[tuple[str, str], str] = {}
        self._shapes: dict[tuple[str, str], Shape | None] = {}

    @cached_property
    def followed(self) -> frozenset[str]:
        """The steps that another follows."""
        return frozenset(source for step in self.trace.steps for source in step.predecessors)

    def blamable(self, step: Step) -> tuple[Surface, ...]:
        """The targets that the step read, the preferred first; if nobody knows what it read, those of its node."""
        if step.id not in self._blamable:
            targets, snapshot = self.request.targets, self.request.snapshot
            read: Iterable[Surface] = self._surfaces[step.node_id]
            if step.surface_reads is not None:
                read = (snapshot.surface(surface_id) for surface_id in sorted(targets.intersection(step.surface_reads)))
            known = (surface for surface in read if surface.id in targets)
            self._blamable[step.id] = tuple(sorted(known, key=lambda surface: PREFERRED.index(surface.type)))
        return self._blamable[step.id]

    def surface_for(self, step: Step, category: Category, *, tool: str = "") -> str | None:
        """The surface of a step to blame: the preferred, of several tools' descriptions that of the tool concerned."""
        surfaces = self.blamable(step)
        if surfaces and surfaces[0].type == "tool" and category in ("wrong_tool", "wrong_arguments"):
            surfaces = (*(each for each in surfaces if each.part == tool), *surfaces)
        return surfaces[0].id if surfaces else None

    def has_tool(self, node_id: str, tool: str = "") -> bool:
        """Whether a node has a tool, of that name if one is given."""
        return any(each.type == "tool" and tool in ("", each.part) for each in self._surfaces[node_id])

    def is_told_to_copy(self, node_id: str) -> bool:
        """Whether a node is to hand on what it gets as it is."""
        return asks_to_copy(self._instructions(node_id))

    def is_told_to_carry_all(self, node_id: str) -> bool:
        return _CARRY_ALL.search(self._instructions(node_id)) is not None

    def mentions(self, node_id: str, field: str) -> bool:
        """Whether what a node is told names a field."""
        if node_id not in self._plainly_told:
            self._plainly_told[node_id] = f" {plain_words(self._instructions(node_id))} "
        return bool(field) and f" {field} " in self._plainly_told[node_id]

    def field(self, atom: Atom) -> str:
        """What an atom's value is called: by the reference, else by the request; a date is at least a date."""
        key = atom.value.key
        if key not in self._fields:
            name = atom.field or plain_words(field_of(atom.value, self.request.case_loss.input))
            self._fields[key] = name or {"date": "date", "address": "address"}.get(atom.value.kind, "")
        return self._fields[key]

    def shape(self, atom: Atom) -> Shape | None:
        key = atom.value.key
        if key not in self._shapes:
            self._shapes[key] = shape_of(atom.value, labels=atom.labels)
        return self._shapes[key]

    def shown_in_passing(self, shape: Shape | None) -> frozenset[str]:
        """The nodes whose outputs show a shape in passing peers."""
        if shape is None:
            return frozenset()
        if shape.name not in self._showing:
            self._showing[shape.name] = nodes_showing(shape, self.request.peers)
        return self._showing[shape.name]

    def suspect(self, shape: Shape | None) -> tuple[Step, float] | None:
        """The last visit of the node that first shows a shape in passing peers, and how suspicious its silence is."""
        found = None if shape is None else most_suspicious(shape, self.trace, peers=self.request.peers)
        if found is None:
            return None
        return [step for step in self.trace.steps if step.node_id == found.node_id][-1], found.score

    def behind(self, step_ids: Sequence[str]) -> frozenset[str]:
        """The steps that depend on any of these."""
        sources = set(step_ids)
        behind: set[str] = set()
        for step in self.trace.steps:
            if any(source in sources or source in behind for source in step.predecessors):
                behind.add(step.id)
        return frozenset(behind)

    def nearest_blamable(self, step: Step) -> Step | None:
        """The step itself or the nearest before it that has something to be blamed."""
        level = [step.id]
        seen = set(level)
        while level:
            for step_id in sorted(level, key=self.position.__getitem__):
                if self.blamable(self.steps[step_id]):
                    return self.steps[step_id]
            level = [source for step_id in level for source in self.steps[step_id].predecessors if source not in seen]
            level = list(dict.fromkeys(level))
            seen.update(level)
        return None

    def _instructions(self, node_id: str) -> str:
        """The texts that steer a node, as they are under the profile."""
        if node_id not in self._told:
            profile, snapshot = self.request.profile, self.request.snapshot
            texts = (each for each in self._surfaces[node_id] if each.type in TEXT_TYPES)
            self._told[node_id] = "\n".join(str(profile.value(each.id, snapshot)) for each in texts)
        return self._told[node_id]
