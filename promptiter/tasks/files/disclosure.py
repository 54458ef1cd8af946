"""What tells the content of files besides themselves: modules compiled from them, and the history of a repository.

A hold-out is hidden from commands, so these are hidden with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

_REPOSITORIES = (".git", ".hg", ".jj", ".svn")
_POINTER = "gitdir: "


def find_compiled(root: Path, files: Collection[str]) -> tuple[str, ...]:
    """Relative paths of what Python compiled from files of a folder."""
    scripts = [root / each for each in files if each.endswith(".py")]
    found = {place for file in scripts for place in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc")}
    return tuple(sorted(each.relative_to(root).as_posix() for each in found))


def find_repositories(root: Path) -> tuple[str, ...]:
    """Absolute paths of the repositories that may have the history of a folder."""
    return tuple(sorted({str(each) for each in _list_repositories(root)}))


def _list_repositories(root: Path) -> Iterator[Path]:
    """Repositories of the folder and of those above it. That of a git work tree, or of a submodule, is elsewhere."""
    for folder in (root, *root.parents):
        for name in _REPOSITORIES:
            place = folder / name
            if place.is_file():
                yield from _follow(place)
            if place.exists():
                yield place


def _follow(pointer: Path) -> Iterator[Path]:
    """The folder that a `.git` file leads to, and the one that all work trees of its repository share."""
    text = pointer.read_text(errors="replace").strip()
    folder = (pointer.parent / text.removeprefix(_POINTER)).resolve()
    if not text.startswith(_POINTER) or not folder.is_dir():
        return
    yield folder
    shared = folder / "commondir"
    if shared.is_file():
        yield (folder / shared.read_text(errors="replace").strip()).resolve()
