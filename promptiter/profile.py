"""Profile: values for surfaces on top of a structure. Immutable; change is a new profile: `profile.apply(patches)`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import orjson

from promptiter.context import ContextValue
from promptiter.errors import SetupError, StructureMismatchError
from promptiter.structure import StructureSnapshot, Surface
from promptiter.value_text import describe_value
from promptiter.wording import join_sentences, shorten
from traces import digest
from traces.errors import UnwritableTraceError
from traces.model import Json
from traces.notebook import html_block, html_diff


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEvidence:
    """What a patch rests on, by id: cases, steps (`case/step`), and gradients of the run."""

    cases: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchEdit:
    """One edit of a text, with its own reason and evidence. A reviewer wrote one that `is_reviewed`."""

    before: str
    after: str
    reason: str = ""
    evidence: PatchEvidence = PatchEvidence()
    is_reviewed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfacePatch:
    """One proposed new value, with its reason and the evidence for it.

    `edits` are its parts, if the optimizer can tell them apart.
    """

    surface_id: str
    value: Json
    reason: str
    evidence: PatchEvidence = PatchEvidence()
    edits: tuple[PatchEdit, ...] = ()

    def __post_init__(self) -> None:
        for name in ("surface_id", "reason"):
            if not isinstance(text := getattr(self, name), str):
                raise TypeError(f"the {name} of a patch is {shorten(text)}; give a str")
        try:
            digest(self.value)
        except UnwritableTraceError as error:
            raise TypeError(f"the value of a patch is {shorten(self.value)}; give text or plain JSON") from error


@dataclass(frozen=True, slots=True)
class PatchSet:
    """The patches of one round: at most one per surface."""

    patches: tuple[SurfacePatch, ...] = ()

    def __post_init__(self) -> None:
        ids = [patch.surface_id for patch in self.patches]
        if len(set(ids)) < len(ids):
            raise SetupError(f"a patch set changes a surface at most once, got {', '.join(sorted(ids))}")

    def __iter__(self) -> Iterator[SurfacePatch]:
        return iter(self.patches)

    def __len__(self) -> int:
        return len(self.patches)

    @property
    def surface_ids(self) -> frozenset[str]:
        return frozenset(patch.surface_id for patch in self.patches)

    @property
    def values(self) -> dict[str, Json]:
        """The new value of each surface."""
        return {patch.surface_id: patch.value for patch in self.patches}

    def compose(self, later: PatchSet) -> PatchSet:
        """Return these patches followed by later ones: at most one per surface, with the evidence of both."""
        found = {patch.surface_id: patch for patch in self.patches}
        for patch in later:
            earlier = found.get(patch.surface_id)
            found[patch.surface_id] = patch if earlier is None else _compose(earlier, patch)
        return PatchSet(tuple(found.values()))

    @property
    def digest(self) -> str:
        """The hash of the changes, without their reasons."""
        return digest(sorted([patch.surface_id, digest(patch.value)] for patch in self.patches))


def _compose(earlier: SurfacePatch, later: SurfacePatch) -> SurfacePatch:
    """The later value of a surface. Its edits are known if those of both patches are."""
    known, more = earlier.evidence, later.evidence
    return replace(
        later,
        reason=join_sentences((earlier.reason, later.reason)),
        evidence=PatchEvidence(
            cases=tuple(dict.fromkeys((*known.cases, *more.cases))),
            steps=tuple(dict.fromkeys((*known.steps, *more.steps))),
            gradients=tuple(dict.fromkeys((*known.gradients, *more.gradients))),
        ),
        edits=(*earlier.edits, *later.edits) if earlier.edits and later.edits else (),
    )


@dataclass(frozen=True, slots=True)
class SurfaceChange:
    """How one surface differs between two profiles."""

    surface_id: str
    before: Json
    after: Json

    def as_text(self) -> str:
        """Return a unified diff of two texts, or the two values."""
        if isinstance(self.before, str) and isinstance(self.after, str):
            lines = difflib.unified_diff(
                self.before.splitlines(), self.after.splitlines(), "before", "after", lineterm="", n=2
            )
            return "\n".join(list(lines)[2:])
        if isinstance(self.after, list):
            return SurfaceChange(self.surface_id, describe_value(self.before), describe_value(self.after)).as_text()
        return f"-{orjson.dumps(self.before).decode()}\n+{orjson.dumps(self.after).decode()}"


class ProfileDiff(tuple[SurfaceChange, ...]):
    """The changes from one profile to another, by surface. A notebook shows them as a diff."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n\n".join(f"{change.surface_id}\n{change.as_text()}" for change in self) or "no changes"

    def _repr_html_(self) -> str:
        diffs = [html_diff(change.surface_id, change.as_text()) for change in self]
        return html_block(*(diffs or ["<p>no changes</p>"]))


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Overrides on top of a structure. Other surfaces have the baseline's value.

    `surface_ids` are all surfaces of that structure, so that a mismatch can name the surfaces that differ.
    """

    structure_id: str
    overrides: Mapping[str, Json] = field(default_factory=dict)
    surface_ids: tuple[str, ...] = ()

    @staticmethod
    def baseline(snapshot: StructureSnapshot) -> Profile:
        """Return the profile that changes nothing. It has the values that `with_profile` gave the agent."""
        if not isinstance(snapshot, StructureSnapshot):
            name = type(snapshot).__name__
            raise SetupError(f"a profile is for a structure, and this is a {name}; give agent.describe()")
        bound = {surface.id: surface.value for surface in snapshot.surfaces if surface.is_bound}
        return Profile(
            structure_id=snapshot.structure_id,
            overrides=dict(sorted(bound.items())),
            surface_ids=tuple(sorted(snapshot.surface_ids)),
        )

    @staticmethod
    def of(snapshot: StructureSnapshot, values: Mapping[str, Json]) -> Profile:
        """Return a profile with these values, checked against the structure."""
        if not isinstance(values, Mapping):
            raise SetupError(f"the values of a profile are {shorten(values)}; give a dict from surface ids to values")
        patches = (SurfacePatch(surface_id=name, value=value, reason="given") for name, value in values.items())
        return Profile.baseline(snapshot).apply(patches, snapshot)

    @contextmanager
    def active(self) -> Iterator[Profile]:
        """Call agents of this structure with this profile in this block and the tasks started there.

        with Profile.load("best.json").active():
            answer = await triage("hi")

        A new thread does not inherit it unless it gets a copy of the context; `agent.with_profile` works in any thread.
        """
        with activate_profiles((self, *list_active_profiles())):
            yield self

    @cached_property
    def digest(self) -> str:
        """The content hash: profiles with the same hash behave the same."""
        return digest([self.structure_id, sorted([name, digest(value)] for name, value in self.overrides.items())])

    def apply(self, patches: Iterable[SurfacePatch], snapshot: StructureSnapshot) -> Profile:
        """Return this profile with patches on top. A value that is the baseline's is not stored, unless it is bound."""
        self.check(snapshot)
        overrides = dict(self.overrides)
        for patch in patches:
            surface = snapshot.surface(patch.surface_id)
            surface.check(patch.value)
            overrides.pop(patch.surface_id, None)
            if patch.value != surface.value or surface.is_bound:
                overrides[patch.surface_id] = patch.value
        return Profile(
            structure_id=self.structure_id, overrides=dict(sorted(overrides.items())), surface_ids=self.surface_ids
        )

    def value(self, surface_id: str, snapshot: StructureSnapshot) -> Json:
        """Return the value of a surface under this profile."""
        if surface_id in self.overrides:
            return self.overrides[surface_id]
        return snapshot.surface(surface_id).value

    def reset(self, surface_ids: Iterable[str], *, to: Profile, snapshot: StructureSnapshot) -> Profile:
        """Return this profile with another one's values of these surfaces."""
        values = {surface_id: to.value(surface_id, snapshot) for surface_id in surface_ids}
        patches = (SurfacePatch(surface_id=name, value=value, reason="reset") for name, value in values.items())
        return self.apply(patches, snapshot)

    def surface(self, surface_id: str, snapshot: StructureSnapshot) -> Surface:
        """Return a surface with its value under this profile."""
        surface = snapshot.surface(surface_id)
        return replace(surface, value=self.overrides[surface_id]) if surface_id in self.overrides else surface

    def check(self, snapshot: StructureSnapshot) -> None:
        """Raise if this profile has another structure, naming the surfaces that differ, or an invalid value."""
        if self.structure_id == snapshot.structure_id:
            for name, value in self.overrides.items():
                snapshot.surface(name).check(value)
            return
        gone = sorted((set(self.surface_ids) | set(self.overrides)) - set(snapshot.surface_ids))
        new = sorted(set(snapshot.surface_ids) - set(self.surface_ids)) if self.surface_ids else []
        differences = [f"the agent has no {', '.join(gone)}"] if gone else []
        differences += [f"the profile does not know {', '.join(new)}"] if new else []
        raise StructureMismatchError(
            f"the profile is of another structure: {'; '.join(differences) or 'nodes or edges differ'}; "
            "make a new profile from this agent's structure"
        )

    def changes(self, other: Profile, snapshot: StructureSnapshot) -> ProfileDiff:
        """Return the changes from this profile to another."""
        touched = sorted(set(self.overrides) | set(other.overrides))
        pairs = ((name, self.value(name, snapshot), other.value(name, snapshot)) for name in touched)
        return ProfileDiff(SurfaceChange(name, before, after) for name, before, after in pairs if before != after)

    def build_patches(self, other: Profile, snapshot: StructureSnapshot, *, reason: str) -> PatchSet:
        """Return the patches that turn this profile into another."""
        changes = self.changes(other, snapshot)
        return PatchSet(
            tuple(SurfacePatch(surface_id=each.surface_id, value=each.after, reason=reason) for each in changes)
        )

    def to_json(self) -> bytes:
        """Return the content of a profile file."""
        document = {
            "schema_version": 1,
            "structure_id": self.structure_id,
            "surface_ids": self.surface_ids,
            "values": dict(sorted(self.overrides.items())),
        }
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @staticmethod
    def from_json(raw: bytes) -> Profile:
        """Parse a profile file."""
        try:
            document = orjson.loads(raw)
            structure_id, values = document["structure_id"], document["values"]
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise SetupError(
                "this is not a profile: it has no structure_id and values; a run writes one to profiles/best.json"
            ) from error
        surface_ids = document.get("surface_ids") or []
        if not isinstance(values, dict) or not isinstance(structure_id, str) or not isinstance(surface_ids, list):
            raise SetupError(
                "this is not a profile: structure_id must be a string, values an object, surface_ids a list"
            )
        return Profile(structure_id=structure_id, overrides=values, surface_ids=tuple(surface_ids))

    def save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_bytes(self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Profile:
        """Read a profile file."""
        if not isinstance(path, str | os.PathLike):
            raise SetupError(
                f"{shorten(path)} is not a profile; give a Profile, or the path of a profile file; "
                "Profile.of(agent.describe(), values) makes one of values"
            )
        try:
            return Profile.from_json(Path(path).read_bytes())
        except OSError as error:
            hint = "; give the file profiles/best.json of a run" if Path(path).is_dir() else ""
            raise SetupError(f"profile {os.fspath(path)!r} cannot be read: {error.strerror}{hint}") from error
        except SetupError as error:
            raise SetupError(f"{os.fspath(path)}: {error}") from error


_active: ContextVar[tuple[Profile, ...]] = ContextVar("promptiter_active_profiles", default=())


def list_active_profiles() -> tuple[Profile, ...]:
    """Return the active profiles, the innermost first."""
    return _active.get()


def activate_profiles(profiles: tuple[Profile, ...]) -> ContextValue[tuple[Profile, ...]]:
    """Make these the active profiles in this block, instead of those that are."""
    return ContextValue(_active, profiles)


def find_active_profile(snapshot: StructureSnapshot, *, is_nested: bool = False) -> Profile | None:
    """Return the innermost active profile of this structure; None if no profile is active.

    If all active profiles are of other structures, the mismatch is raised, so that an outdated profile is not ignored
    silently. A nested agent may be of another structure than the agent that the profile is for, so it gets None.
    """
    active = _active.get()
    fitting = next((profile for profile in active if profile.structure_id == snapshot.structure_id), None)
    try:
        if fitting is not None or (active and not is_nested):
            (fitting or active[0]).check(snapshot)
    except StructureMismatchError as error:
        raise StructureMismatchError(
            f"{error}; if it is for an agent that {snapshot.name!r} calls, activate a profile of {snapshot.name!r}, "
            "too, such as Profile.baseline(agent.describe())"
        ) from None
    return fitting
