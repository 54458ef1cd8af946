"""Workspace: the artifacts of a task as the surfaces of a run, and candidates as the bytes of files.

An artifact is the surface `workspace#file.PATH`. Each file keeps its encoding and line ends. A file that an include
path names and that does not exist yet is an empty artifact.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.sources.file import FileSource
from promptiter.structure import Node, StructureSnapshot, Surface, surface_id
from promptiter.tasks.files.globs import find_escape, find_link, has_wildcard, list_files, matches
from promptiter.tasks.files.task import FileTask
from promptiter.wording import join_names
from traces import digest

NODE = "workspace"
"""The node of all artifacts."""

MAX_ARTIFACT_BYTES = 1_000_000
MAX_ARTIFACTS = 500


@dataclass(frozen=True, slots=True)
class ArtifactSource(FileSource):
    """An artifact as `apply` writes it. One that does not exist yet is empty."""

    def read_bytes(self) -> bytes:
        return FileSource.read_bytes(self) if self.file.exists() else b""


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The artifacts of a task: their bytes by path, empty for a file that does not exist yet."""

    root: Path
    files: Mapping[str, bytes]
    description: str = ""
    name: str = NODE

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.files)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The text of each artifact, by path."""
        return {path: self.find_source(path).decode(raw) for path, raw in self.files.items()}

    @cached_property
    def structure(self) -> StructureSnapshot:
        """The artifacts as the surfaces of one node."""
        surfaces = (Surface(node_id=NODE, type="file", part=path, value=text) for path, text in self.texts.items())
        node = Node(id=NODE, description=self.description)
        return StructureSnapshot(nodes=(node,), surfaces=tuple(surfaces), entry=NODE, name=self.name)

    def find_source(self, path: str) -> FileSource:
        """Where an artifact is stored."""
        return ArtifactSource(self.root / path)

    def read_profile(self, profile: Profile) -> dict[str, str]:
        """The text of every artifact under a profile."""
        overrides = profile.overrides
        return {path: str(overrides.get(name_surface(path), text)) for path, text in self.texts.items()}

    def encode(self, texts: Mapping[str, str]) -> dict[str, bytes]:
        """The bytes of the artifacts that differ from what is on disk, in the format of each file."""
        changed = {path: text for path, text in texts.items() if text != self.texts[path]}
        return {path: self.find_source(path).encode(text, like=self.files[path]) for path, text in changed.items()}


def name_surface(path: str) -> str:
    """The id of the surface of an artifact."""
    return surface_id(NODE, "file", path)


def find_path(surface: str) -> str | None:
    """The path of the artifact behind a surface; None if it is not one."""
    prefix = name_surface("")
    return surface.removeprefix(f"{prefix}.") if surface.startswith(f"{prefix}.") else None


def open_workspace(task: FileTask) -> Workspace:
    """Read the artifacts of a task. SetupError says which file cannot be one, and why."""
    if not task.root.is_dir():
        raise SetupError(f"the workspace {str(task.root)!r} is not a folder; correct workspace in the task file")
    paths = list(dict.fromkeys((*_list_named(task), *_list_matching(task))))
    if not paths:
        patterns = join_names([repr(each) for each in task.artifacts.include], limit=5)
        raise SetupError(f"no file in {str(task.root)!r} matches {patterns}; correct artifacts.include")
    if len(paths) > MAX_ARTIFACTS:
        raise SetupError(f"{len(paths):,} files are artifacts, at most {MAX_ARTIFACTS} can be; name fewer in include")
    files = {path: _read(task.root / path, path) for path in sorted(paths)}
    found = Workspace(root=task.root, files=files, description=task.description, name=task.id)
    for path, raw in files.items():
        try:
            found.find_source(path).decode(raw)
        except SetupError as error:
            raise SetupError(f"the artifact {path!r} is not text; save it as UTF-8, or exclude it") from error
    return found


def hash_files(root: Path, paths: Iterable[str]) -> dict[str, str]:
    """The hash of each file below root; `missing` for one that is not there."""
    found = {}
    for path in sorted(paths):
        place = root / path
        found[path] = digest(place.read_bytes())[:16] if place.is_file() else "missing"
    return found


def _list_named(task: FileTask) -> Iterable[str]:
    """The include paths without wildcards that are not folders: they must be usable, and need not exist."""
    for pattern in task.artifacts.include:
        path = pattern.removeprefix("./")
        if has_wildcard(path) or (task.root / path).is_dir():
            continue
        if problem := find_escape(path):
            raise SetupError(f"artifacts.include: {pattern!r} {problem}; name a file in the workspace")
        if (link := find_link(task.root, path)) is not None:
            raise SetupError(f"artifacts.include: {pattern!r} leads through the symbolic link {link!r}; name the file")
        if not _has_type(path, task.artifacts.types):
            types = ", ".join(task.artifacts.types)
            raise SetupError(f"artifacts.include: {pattern!r} is not of an allowed type ({types}); add its type")
        if not matches(path, task.artifacts.exclude):
            yield path


def _list_matching(task: FileTask) -> Iterable[str]:
    """The files that a pattern or a folder includes. Links and files of other types are not artifacts."""
    artifacts = task.artifacts
    patterns = [each.removeprefix("./") for each in artifacts.include]
    for pattern in patterns:
        if ".." in pattern.split("/") or pattern.startswith("/"):
            raise SetupError(f"artifacts.include: {pattern!r} leaves the workspace; name files in it")
    for path in list_files(task.root, patterns, without=task.logs):
        if _has_type(path, artifacts.types) and not matches(path, artifacts.exclude):
            yield path


def _has_type(path: str, types: tuple[str, ...]) -> bool:
    return not types or Path(path).name.endswith(types)


def _read(file: Path, path: str) -> bytes:
    if not file.exists():
        return b""
    size = file.stat().st_size
    if size > MAX_ARTIFACT_BYTES:
        raise SetupError(
            f"the artifact {path!r} has {size:,} bytes, at most {MAX_ARTIFACT_BYTES:,} can be edited; exclude it"
        )
    return file.read_bytes()
