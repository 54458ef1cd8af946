"""What a mutator of the search `edits` is asked for, and how what it wrote becomes a candidate.

A mutator gets everything that is known about the profile to improve, and returns new texts of its targets, by path if
they are files. `FunctionMutator` is a Python function, `CommandMutator` a program, and `StageMutator` the stages of
backprop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, TypeAlias, cast

from promptiter.concurrency import call_any
from promptiter.errors import SetupError, SurfaceValueError, nearest
from promptiter.evaluation.result import Evaluation, Figures
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite
from promptiter.policies.edit_limits import EditLimits
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.search.edit_record import Mutation
from promptiter.structure import StructureSnapshot, Surface
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

WRITTEN = "written by a function"
"""The reason of an edit if its function gives none."""

Values: TypeAlias = Mapping[str, Json]
"""Values of targets by name: the path of a file, or the id of another surface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedEdit:
    """A candidate that was not kept: the values that it changed, and why not. A person may have vetoed it.

    There are no values if it was refused before it was tried, because it changed what may not change.
    """

    round: int
    values: Values
    reason: str
    figures: Figures = field(default_factory=dict)
    is_vetoed: bool = False


@dataclass(frozen=True, kw_only=True)
class MutationRequest:
    """The profile to improve, and what is known about it.

    `values` are the current ones of all targets. `instructions` say what the task is, and `aims` what decides, in
    words. `scores` and `figures` are those of the profile, `failures` what its evaluation complains of, and `output`
    what it printed. `rejected` are the latest candidates that were not kept. Of several candidates of a round, this is
    the one with this `number`. `history` has results of other tasks, as the user gave them.
    """

    round: int
    profile: Profile
    structure: StructureSnapshot
    evaluation: Evaluation
    values: Values
    number: int = 1
    count: int = 1
    instructions: str = ""
    aims: tuple[str, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    output: str = ""
    rejected: tuple[RejectedEdit, ...] = ()
    limits: EditLimits | None = None
    history: tuple[Json, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The request as plain data: what request.json has, and what a stored answer depends on."""
        limits = self.limits
        return {
            "round": self.round,
            "candidate": self.number,
            "candidates": self.count,
            "instructions": self.instructions,
            "aims": list(self.aims),
            "scores": dict(self.scores),
            "figures": dict(self.figures),
            "failures": list(self.failures),
            "output": self.output,
            "values": dict(self.values),
            "rejected": [
                {
                    "round": each.round,
                    "values": dict(each.values),
                    "reason": each.reason,
                    "figures": dict(each.figures),
                }
                for each in self.rejected
            ],
            "limits": {}
            if limits is None
            else {"max_files": limits.max_files, "max_changed_lines": limits.max_changed_lines},
            "history": list(self.history),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenValues:
    """What a mutator wrote: the values of targets that it changed. None: it has nothing left to try.

    With `refused`, edits that are not allowed, the values do not count.
    """

    values: Values | None
    reason: str = ""
    refused: tuple[str, ...] = ()


class TextMutator(Protocol):
    """Writes candidates. Called once for each, concurrently for those of one round."""

    async def write(self, request: MutationRequest) -> WrittenValues:
        """Return new values. A CommandError, and any error of a function, means that it does not work."""


@dataclass(frozen=True)
class FunctionMutator:
    """A Python function from a MutationRequest to new values by path, or None if it has nothing left to try.

    It may be async, or sync (run in a thread). To say why, it returns WrittenValues. What it returned is stored, so a
    resumed run does not call it again.
    """

    function: Callable[[MutationRequest], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SetupError(f"a mutator is {shorten(self.function)}; give a function of a MutationRequest")

    async def write(self, request: MutationRequest) -> WrittenValues:
        async def execute(**_: Json) -> Json:
            gateway.check_stop()
            answer = await call_any(self.function, request)
            written = answer if isinstance(answer, WrittenValues) else WrittenValues(values=answer)
            if written.values is not None and not isinstance(written.values, Mapping):
                raise TypeError(f"the mutator returned {shorten(answer)}; return a mapping from path to text, or None")
            values = None if written.values is None else dict(written.values)
            return {"values": values, "reason": written.reason or ("" if values is None else WRITTEN)}

        gateway = current_gateway()
        arguments = {"request": digest(request.to_json())}
        site = CallSite(role="optimizer", case_id=f"edit {request.number}")
        found = cast("dict[str, Json]", await gateway.call_tool("mutator:function", arguments, execute, site))
        return WrittenValues(values=cast("Values | None", found["values"]), reason=str(found["reason"]))


class TargetNames:
    """The targets of a run by the names that mutators use: the path of a file, or the id of another surface."""

    def __init__(self, structure: StructureSnapshot, targets: frozenset[str]) -> None:
        self._structure = structure
        surfaces = [structure.surface(name) for name in sorted(targets)]
        parts = [each.part for each in surfaces if each.type == "file"]
        is_clear = len(set(parts)) == len(parts)
        self._by_name = {each.part if each.type == "file" and is_clear else each.id: each for each in surfaces}

    @cached_property
    def _names(self) -> dict[str, str]:
        return {surface.id: name for name, surface in self._by_name.items()}

    def read_values(self, profile: Profile) -> dict[str, Json]:
        """The values of all targets under a profile."""
        return {name: profile.value(each.id, self._structure) for name, each in self._by_name.items()}

    def name_values(self, patches: PatchSet) -> dict[str, Json]:
        """The values of patches."""
        return {self._names.get(surface_id, surface_id): value for surface_id, value in patches.values.items()}

    def build_mutation(self, written: WrittenValues, profile: Profile) -> Mutation:
        """The mutation of what was written. What is not a target, or cannot have the value, is refused."""
        if written.values is None:
            return Mutation(note=written.reason or "the mutator has nothing left to try", is_exhausted=True)
        refused = [*written.refused]
        patches = []
        for name, value in sorted(written.values.items()):
            found = self._find(name)
            if found is None:
                known = sorted(self._by_name)
                refused.append(f"{name!r} is not one of the files or surfaces that may change{nearest(name, known)}")
                continue
            surface = profile.surface(found.id, self._structure)
            try:
                surface.check(value)
            except SurfaceValueError as error:
                refused.append(f"{name!r}: {error.problem}")
                continue
            if value != surface.value:
                reason = written.reason or "written by a mutator"
                patches.append(SurfacePatch(surface_id=surface.id, value=value, reason=reason))
        if refused:
            return Mutation(refused=tuple(refused))
        return Mutation(patches=PatchSet(tuple(patches)))

    def _find(self, name: str) -> Surface | None:
        if name in self._by_name:
            return self._by_name[name]
        return next((each for each in self._by_name.values() if each.id == name), None)
