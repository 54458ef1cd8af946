"""EditWorkspace: the folder whose files a command may edit, in a private copy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.sandbox import CopyPlan
from promptiter.sandbox.plan import MEBIBYTE, check_relative, check_repositories
from promptiter.sandbox.sandbox import WantedKind
from promptiter.sources.file import FileSource
from promptiter.structure import StructureSnapshot, surface_id
from promptiter.wording import shorten

IGNORED = ("__pycache__", ".git", ".mypy_cache", ".pytest_cache", ".ruff_cache")
"""Folders in which programs write by themselves: what changes there is lost with the copy."""

MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EditWorkspace:
    """A folder, and which of its files are `artifacts`: surfaces of the type file of one node, by their paths.

    All paths are relative to `root`. A command cannot see the `hidden` ones, such as a hold-out, nor change the
    `protected` ones. What it changes in folders with an `ignored` name does not count. The other fields are those of
    the private copy.
    """

    root: str | os.PathLike[str]
    artifacts: tuple[str, ...]
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    ignored: tuple[str, ...] = IGNORED
    node: str = "workspace"
    sandbox: WantedKind = "auto"
    disk_bytes: int = 512 * MEBIBYTE
    processes: int = 256
    memory_bytes: int | None = None
    network: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root).absolute())
        if not self.artifacts:
            raise SetupError("the workspace of a mutator has no artifacts; name the files that it may edit")
        for name in ("artifacts", "hidden", "protected"):
            for path in getattr(self, name):
                check_relative(f"{name} of the workspace", path)
        check_repositories("repositories of the workspace", self.repositories)

    @property
    def folder(self) -> Path:
        """The root, as an absolute path."""
        return Path(self.root)

    @classmethod
    def of(cls, given: Any) -> EditWorkspace:
        """The workspace itself, or that of a mapping, such as options of promptiter.yaml."""
        if isinstance(given, cls):
            return given
        known = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping) or not {"root", "artifacts"} <= set(given) <= set(known):
            raise SetupError(
                f"the workspace of a command is {shorten(given)}; give an EditWorkspace, or a mapping with root and "
                f"artifacts, and perhaps {', '.join(known[2:])}"
            )
        lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list | tuple)}
        return cls(**{**given, **lists})

    def build_plan(self, profile: Profile, structure: StructureSnapshot, others: Mapping[str, str]) -> CopyPlan:
        """A copy with the files of a profile, and others."""
        files: dict[str, str | bytes] = dict(others)
        for path in self.artifacts:
            text = str(profile.value(self.name_surface(path), structure))
            on_disk = self._read_original(path)
            if on_disk is None and not text:
                continue
            content = FileSource(self.folder / path).encode(text, like=on_disk or b"")
            if content != on_disk:
                files[path] = content
        return CopyPlan(
            root=self.folder,
            files=files,
            hidden=self.hidden,
            protected=self.protected,
            repositories=self.repositories,
            disk_bytes=self.disk_bytes,
            processes=self.processes,
            memory_bytes=self.memory_bytes,
            network=self.network,
        )

    def name_surface(self, path: str) -> str:
        """The id of the surface of an artifact."""
        return surface_id(self.node, "file", path)

    def decode(self, path: str, content: bytes) -> str:
        """The text of an artifact. SetupError if it is not text."""
        return FileSource(self.folder / path).decode(content)

    def is_ignored(self, path: str) -> bool:
        """Whether it does not matter that this path has changed."""
        return not set(self.ignored).isdisjoint(PurePosixPath(path).parts)

    def find_free_name(self, wanted: str) -> str:
        """The name, or one like it, that the folder does not have."""
        name, number = wanted, 1
        while os.path.lexists(self.folder / name):
            number += 1
            name = f"{wanted}-{number}"
        return name

    def _read_original(self, path: str) -> bytes | None:
        file = self.folder / path
        return file.read_bytes() if file.is_file() else None
