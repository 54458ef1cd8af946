"""ApplyPlan: what applying the result of a run will change, checked before a byte is written."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from promptiter.errors import AgentError, SetupError
from promptiter.profile import SurfaceChange
from promptiter.runs.place_search import PlaceIndex, Project, refuse_shared
from promptiter.sources import FileSource, Source
from promptiter.sources.field import is_same
from promptiter.sources.place import open_place
from promptiter.sources.whitespace import find_readers, refit
from promptiter.structure import StructureSnapshot, Surface
from promptiter.value_text import encode_value
from promptiter.wording import path_from_here, shorten
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFile:
    """The old and the new content of a file, and the surfaces in it.

    The change creates the last `created` parts of its path: 1 is the file, 2 its folder, too. It removes the last
    `removed` ones.
    """

    path: Path
    surface_ids: tuple[str, ...]
    before: bytes = field(repr=False)
    after: bytes = field(repr=False)
    encoding: str | None = None
    created: int = 0
    removed: int = 0

    @property
    def diff(self) -> str:
        """A unified diff."""
        source, name = FileSource(self.path, encoding=self.encoding), str(path_from_here(self.path))
        old, new = (source.decode(raw).splitlines(keepends=True) for raw in (self.before, self.after))
        lines = difflib.unified_diff(old, new, name, name)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCallback:
    """The old and the new text behind a callback."""

    surface_id: str
    source: Source
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyPlan:
    """The files and callbacks to change. `unchanged` are surfaces whose place has the new value already."""

    files: tuple[PlannedFile, ...] = ()
    callbacks: tuple[PlannedCallback, ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.files and not self.callbacks

    def reverse_files(self) -> ApplyPlan:
        """The plan that undoes the changes of files."""
        return ApplyPlan(
            files=tuple(
                replace(file, before=file.after, after=file.before, created=file.removed, removed=file.created)
                for file in self.files
            )
        )


def plan_changes(
    changes: Sequence[SurfaceChange],
    *,
    structure: StructureSnapshot,
    sources: Mapping[str, Source],
    project: Project,
) -> ApplyPlan:
    """Plan where each new value goes. A SetupError lists every surface for which that is not possible, and why."""
    problems: list[str] = []
    opened: list[tuple[SurfaceChange, Source]] = []
    for change, found in zip(
        changes, locate(changes, structure=structure, sources=sources, project=project), strict=True
    ):
        if isinstance(found, str):
            problems.append(found)
        else:
            opened.append((change, found))
    builder = _PlanBuilder()
    for change, source in opened:
        try:
            builder.add(change, source)
        except (SetupError, AgentError) as error:
            problems.append(f"{change.surface_id}: {error}")
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise SetupError(f"nothing was applied, because not every surface can be written:{listed}")
    return builder.build()


def find_problems(
    targets: Sequence[str], *, structure: StructureSnapshot, sources: Mapping[str, Source], project: Project
) -> list[str]:
    """Why new values of these surfaces could not be applied, one sentence for each. Calls no callback."""
    values = {surface_id: structure.surface(surface_id).value for surface_id in targets}
    wanted = [
        SurfaceChange(surface_id, value, f"{value}." if isinstance(value, str) else [value])
        for surface_id, value in values.items()
    ]
    problems = []
    for change, source in zip(
        wanted, locate(wanted, structure=structure, sources=sources, project=project), strict=True
    ):
        try:
            if isinstance(source, str):
                problems.append(source)
            elif isinstance(source, FileSource):
                fit_value(source.read_value(source.read_bytes()), change, source.place)
        except (SetupError, AgentError) as error:
            problems.append(f"{change.surface_id}: {error}")
    return problems


def locate(
    changes: Sequence[SurfaceChange], *, structure: StructureSnapshot, sources: Mapping[str, Source], project: Project
) -> Iterator[Source | str]:
    """The source of each surface, or why there is none."""
    index, after = PlaceIndex(project), {each.surface_id: each.after for each in changes}
    for change in changes:
        if change.surface_id in sources:
            yield sources[change.surface_id]
            continue
        others = (each for each in structure.surfaces if each.id not in (change.surface_id, *sources))
        twins = [each.id for each in others if _may_share(each, change, after.get(each.id, each.value))]
        try:
            refuse_shared(change.surface_id, change.before, twins)
            yield open_place(index.find(change.surface_id, change.before, new=change.after), folder=project.folder)
        except SetupError as error:
            yield str(error)


def _may_share(other: Surface, change: SurfaceChange, new: Json) -> bool:
    """Whether another surface, which gets this new value, may be mistaken for the changed one by its text."""
    is_twin = is_same(other.value, change.before) and not is_same(new, change.after)
    return is_twin or is_same(new, change.before)


class _PlanBuilder:
    """Collects changes. Several in one file are made one after the other."""

    def __init__(self) -> None:
        self._before: dict[Path, bytes] = {}
        self._after: dict[Path, bytes] = {}
        self._encodings: dict[Path, str | None] = {}
        self._written: list[tuple[SurfaceChange, FileSource, Json]] = []
        self._callbacks: list[PlannedCallback] = []
        self._unchanged: list[str] = []

    def add(self, change: SurfaceChange, source: Source) -> None:
        if not isinstance(source, FileSource):
            self._add_callback(change, source)
            return
        file = source.file
        if file not in self._before:
            self._before[file] = self._after[file] = source.read_bytes()
            self._encodings[file] = source.encoding
        current = source.read_value(self._after[file])
        if not (fitting := fit_value(current, change, source.place)):
            self._unchanged.append(change.surface_id)
            return
        [stored] = fitting
        self._after[file] = source.replace_value(self._after[file], stored)
        self._written.append((change, source, stored))

    def build(self) -> ApplyPlan:
        for change, source, stored in self._written:
            if not is_same(source.read_value(self._after[source.file]), stored):
                raise SetupError(
                    f"{change.surface_id}: {source.place} is also the place of another surface; separate them"
                )
        surfaces = {
            file: [each.surface_id for each, source, _ in self._written if source.file == file] for file in self._after
        }
        files = tuple(
            PlannedFile(
                path=file,
                surface_ids=tuple(surfaces[file]),
                before=before,
                after=self._after[file],
                encoding=self._encodings[file],
                created=sum(not each.exists() for each in (file, *file.parents)),
            )
            for file, before in self._before.items()
            if before != self._after[file]
        )
        return ApplyPlan(files=files, callbacks=tuple(self._callbacks), unchanged=tuple(self._unchanged))

    def _add_callback(self, change: SurfaceChange, source: Source) -> None:
        current = read_callback(source)
        if not (fitting := fit_value(current, change, "its source")):
            self._unchanged.append(change.surface_id)
            return
        self._callbacks.append(
            PlannedCallback(surface_id=change.surface_id, source=source, before=current, after=encode_value(fitting[0]))
        )


def read_callback(source: Source) -> str:
    """The text behind a callback. SetupError if it fails, whatever it raises."""
    try:
        return source.read()
    except Exception as error:
        raise SetupError(f"the source cannot be read: {type(error).__name__}: {error}") from error


def fit_value(current: Json, change: SurfaceChange, place: str) -> tuple[Json, ...]:
    """What to store in a place, so that the agent reads the new value. Empty if it reads that already.

    SetupError if the place does not have the value that the run began with: somebody has edited it.
    """
    if is_same(current, change.before):
        return (change.after,)
    if _holds(current, change.after):
        return ()
    if isinstance(current, str) and isinstance(change.before, str) and isinstance(change.after, str):
        readers = find_readers(current, change.before)
        if readers:
            if (stored := refit(current, change.after, readers)) is not None:
                return (stored,)
            raise SetupError(
                f"{place} is read without the whitespace around it, which this value has; change it by hand"
            )
    if isinstance(current, str) and not isinstance(change.before, str) and is_same(_parse(current), change.before):
        indent = 2 if "\n" in current.strip() else None
        text = json.dumps(change.after, ensure_ascii=False, indent=indent)
        return (f"{text}\n" if current.endswith("\n") else text,)
    raise SetupError(
        f"{place} was edited since the run began: it holds {shorten(current)}, and the run began with "
        f"{shorten(change.before)}; undo the edit, or start a new run"
    )


def _holds(current: Json, value: Json) -> bool:
    if is_same(current, value):
        return True
    if isinstance(current, str) and isinstance(value, str):
        return bool(find_readers(current, value))
    return isinstance(current, str) and not isinstance(value, str) and is_same(_parse(current), value)


def _parse(text: str) -> Json:
    """The JSON value of a text; an object that equals nothing if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return object()
