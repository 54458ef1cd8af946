"""What a private copy is made of, and what commands changed in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from promptiter.agents.argument_checks import check_above_zero, check_items
from promptiter.errors import SetupError

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyPlan:
    """A copy of the folder `root`, with other `files`. All paths are relative to it, with `/` between names.

    Commands cannot see what is `hidden`, nor change what is `protected`. They may write `disk_bytes` in all, and run
    this many processes at a time. `memory_bytes` limits the address space of each. `repositories` are hidden too: they
    are absolute paths, since the repository of a folder is often above it.
    """

    root: Path
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    disk_bytes: int = 512 * MEBIBYTE
    processes: int = 256
    memory_bytes: int | None = None
    network: bool = True

    def __post_init__(self) -> None:
        check_above_zero("disk_bytes", self.disk_bytes, int)
        check_above_zero("processes", self.processes, int)
        if self.memory_bytes is not None:
            check_above_zero("memory_bytes", self.memory_bytes, int)
        for name, paths in (("hidden", self.hidden), ("protected", self.protected), ("files", tuple(self.files))):
            check_items(name, paths, str, wanted="relative paths")
            for path in paths:
                check_relative(name, path)
        check_repositories("repositories", self.repositories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Relative paths that differ since the copy was opened. Folders are not listed, only what is in them."""

    written: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    """Symbolic links that are new, or lead elsewhere."""
    special: tuple[str, ...] = ()
    """Pipes, sockets, devices, and folders whose content is unknown: too deep, or without the right to read them."""

    @property
    def paths(self) -> tuple[str, ...]:
        """All of them, sorted."""
        return tuple(sorted({*self.written, *self.deleted, *self.links, *self.special}))


def check_repositories(place: str, paths: tuple[str, ...]) -> None:
    """Raise SetupError unless these are absolute paths."""
    check_items(place, paths, str, wanted="absolute paths")
    for path in paths:
        if not PurePosixPath(path).is_absolute() or "\0" in path:
            raise SetupError(f"{place}: {path!r} is not an absolute path; write it as /folder/.git")


def check_relative(place: str, path: str) -> None:
    """Raise SetupError unless this is a relative path that stays in its folder, in its shortest form."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or str(pure) != path or path == ".":
        raise SetupError(f"{place}: {path!r} is not a path inside of the folder; write it as folder/file")
