"""One failed trace with what attribution needs to know about it: texts, instructions of nodes, editable surfaces."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property

from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.expected_values import Mismatch
from promptiter.offline.attribution.fault_localization import (
    TextPattern,
    find_matching_nodes,
    find_most_suspicious,
    generalize_value,
)
from promptiter.offline.attribution.value_search import (
    SearchText,
    TraceTexts,
    find_field_name,
    normalize_name,
    read_value,
)
from promptiter.offline.rules.prompt_editing import asks_to_copy
from promptiter.offline.text.matching import read_document
from promptiter.stages.contracts import AttributeRequest
from promptiter.stages.losses import Category
from promptiter.structure import TEXT_TYPES, Surface, SurfaceType
from traces import Step

PREFERRED: tuple[SurfaceType, ...] = (
    *("instruction", "global_instruction", "prompt", "skill", "file", "field", "tool"),
    *("examples", "parameter", "model"),
)
"""The order in which the surfaces of a step are blamed."""

_KEY_IN_PATH = re.compile(r"\.([^.\[]+)|\['([^']*)'\]")


class TraceContext:
    """Answers questions about one attribution request, and remembers the answers."""

    def __init__(self, request: AttributeRequest) -> None:
        self.request = request
        self.trace = request.trace
        self.texts = TraceTexts(request.trace)
        self.steps = {step.id: step for step in request.trace.steps}
        self.position = {step.id: index for index, step in enumerate(request.trace.steps)}
        self.user_input = SearchText(request.case_loss.input)
        self._surfaces: dict[str, list[Surface]] = defaultdict(list)
        for surface in request.snapshot.surfaces:
            self._surfaces[surface.node_id].append(surface)
        self._editable: dict[str, tuple[Surface, ...]] = {}
        self._instructions: dict[str, str] = {}
        self._normalized_instructions: dict[str, str] = {}
        self._matching_nodes: dict[str, frozenset[str]] = {}
        self._field_names: dict[tuple[str, str], str] = {}
        self._patterns: dict[tuple[str, str], TextPattern | None] = {}

    @cached_property
    def steps_with_successors(self) -> frozenset[str]:
        return frozenset(source for step in self.trace.steps for source in step.sources)

    def editable_surfaces(self, step: Step) -> tuple[Surface, ...]:
        """The targets that the step read, in order of preference; those of its node if its reads are unknown."""
        if step.id not in self._editable:
            targets, snapshot = self.request.targets, self.request.snapshot
            read: Iterable[Surface] = self._surfaces[step.node_id]
            if step.surface_reads is not None:
                read = (snapshot.surface(surface_id) for surface_id in sorted(targets.intersection(step.surface_reads)))
            known = (surface for surface in read if surface.id in targets)
            self._editable[step.id] = tuple(sorted(known, key=lambda surface: PREFERRED.index(surface.type)))
        return self._editable[step.id]

    def choose_surface(
        self, step: Step, category: Category, *, tool: str = "", finding: Finding | None = None
    ) -> str | None:
        """The surface of a step to blame: the preferred one, and among tool descriptions that of the tool concerned.

        If a field of the step's structured output is wrong, it is the field's description, unless that is empty and the
        node's instructions name the field.
        """
        surfaces = self.editable_surfaces(step)
        fields = {each.part: each for each in surfaces if each.type == "field"}
        path = "" if finding is None or not fields else self._find_wrong_field(step, finding, fields)
        name = normalize_name(path.rpartition(".")[2])
        if path and (fields[path].value or not self.instructions_mention(step.node_id, name)):
            return fields[path].id
        if surfaces and surfaces[0].type == "tool" and category in ("wrong_tool", "wrong_arguments"):
            surfaces = (*(each for each in surfaces if each.part == tool), *surfaces)
        return surfaces[0].id if surfaces else None

    def _find_wrong_field(self, step: Step, finding: Finding, paths: Collection[str]) -> str:
        """The path of the field that a finding is about, or empty.

        If later steps made the answer from the step's output, it is the only field whose value is in the answer and not
        in the reference; of several, the one with the name that the missing value has in the input.
        """
        path = ".".join(name or quoted for name, quoted in _KEY_IN_PATH.findall(finding.where))
        losses = self.request.case_loss.losses
        expected = next((loss.expected for loss in losses if loss.expected is not None), None)
        if path in paths or expected is None or step.id not in self.steps_with_successors:
            return path if path in paths else ""
        reference, answer = SearchText(expected), self.texts.output(losses[0].step_id)
        leaves = json_leaves(read_document(self.texts.output(step.id).raw))
        values = [(".".join(keys), read_value(leaf)) for keys, leaf in leaves if leaf is not None]
        wrong = {path for path, value in values if answer.contains(value) and not reference.contains(value)}
        if len(wrong) > 1 and isinstance(finding.expected, str):
            name = normalize_name(find_field_name(read_value(finding.expected), self.request.case_loss.input))
            wrong = {path for path in wrong if normalize_name(path.rpartition(".")[2]) == name}
        return next(iter(wrong)) if len(wrong) == 1 and wrong <= set(paths) else ""

    def has_tool(self, node_id: str, tool: str = "") -> bool:
        """Whether a node has a tool, of that name if one is given."""
        return any(each.type == "tool" and tool in ("", each.part) for each in self._surfaces[node_id])

    def must_copy(self, node_id: str) -> bool:
        """Whether a node is instructed to pass values on unchanged."""
        return asks_to_copy(self._instructions_of(node_id))

    def instructions_mention(self, node_id: str, field: str) -> bool:
        """Whether the instructions of a node name a field."""
        if node_id not in self._normalized_instructions:
            self._normalized_instructions[node_id] = f" {normalize_name(self._instructions_of(node_id))} "
        return bool(field) and f" {field} " in self._normalized_instructions[node_id]

    def field_name(self, mismatch: Mismatch) -> str:
        """The name of a value: from the reference, else from the user's input; at least `date` for a date."""
        key = mismatch.value.key
        if key not in self._field_names:
            name = mismatch.field or normalize_name(find_field_name(mismatch.value, self.request.case_loss.input))
            self._field_names[key] = name or {"date": "date", "address": "address"}.get(mismatch.value.kind, "")
        return self._field_names[key]

    def pattern_of(self, mismatch: Mismatch) -> TextPattern | None:
        key = mismatch.value.key
        if key not in self._patterns:
            self._patterns[key] = generalize_value(mismatch.value, labels=mismatch.labels)
        return self._patterns[key]

    def nodes_matching_in_passing_runs(self, pattern: TextPattern | None) -> frozenset[str]:
        if pattern is None:
            return frozenset()
        if pattern.name not in self._matching_nodes:
            self._matching_nodes[pattern.name] = find_matching_nodes(pattern, self.request.peers)
        return self._matching_nodes[pattern.name]

    def find_suspect(self, pattern: TextPattern | None) -> tuple[Step, float] | None:
        """The last visit of the most suspicious node, with its score."""
        found = None if pattern is None else find_most_suspicious(pattern, self.trace, peers=self.request.peers)
        if found is None:
            return None
        return [step for step in self.trace.steps if step.node_id == found.node_id][-1], found.score

    def find_descendants(self, step_ids: Sequence[str]) -> frozenset[str]:
        """The steps that read any of these, directly or not."""
        sources = set(step_ids)
        descendants: set[str] = set()
        for step in self.trace.steps:
            if any(source in sources or source in descendants for source in step.sources):
                descendants.add(step.id)
        return frozenset(descendants)

    def find_routers(self, step: Step) -> tuple[str, ...]:
        """The steps that the step did not read, but whose output decided that it ran."""
        node_id = step.node_id
        return tuple(each for each in step.unread if (self.steps[each].node_id, node_id) in self._conditional_edges)

    @cached_property
    def _conditional_edges(self) -> frozenset[tuple[str, str]]:
        edges = self.request.snapshot.edges
        return frozenset((edge.source, edge.target) for edge in edges if edge.condition is not None)

    def find_nearest_editable(self, step: Step, *, by_route: bool = True) -> Step | None:
        """The step itself or the nearest with an editable surface that it depends on: by its data, else by a route."""
        by_data = self._find_nearest_editable(step, lambda each: each.sources)
        if by_data is not None or not by_route:
            return by_data
        return self._find_nearest_editable(step, lambda each: (*each.sources, *self.find_routers(each)))

    def _find_nearest_editable(self, step: Step, find_before: Callable[[Step], tuple[str, ...]]) -> Step | None:
        level = [step.id]
        seen = set(level)
        while level:
            for step_id in sorted(level, key=self.position.__getitem__):
                if self.editable_surfaces(self.steps[step_id]):
                    return self.steps[step_id]
            before = (source for step_id in level for source in find_before(self.steps[step_id]))
            level = list(dict.fromkeys(source for source in before if source not in seen))
            seen.update(level)
        return None

    def _instructions_of(self, node_id: str) -> str:
        """The texts that steer a node, under the profile."""
        if node_id not in self._instructions:
            profile, snapshot = self.request.profile, self.request.snapshot
            texts = (each for each in self._surfaces[node_id] if each.type in TEXT_TYPES)
            self._instructions[node_id] = "\n".join(str(profile.value(each.id, snapshot)) for each in texts)
        return self._instructions[node_id]
