"""What commands changed in a copy: from the upper layer of an overlay, or by comparison with a snapshot."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator, Mapping

from promptiter.sandbox.supervisor.files import find_mode, find_status, have_same_content

MAX_CHANGES = 100_000
"""More than this many changed files are an error."""

MAX_PATH = 3000
"""A folder with a longer path is listed itself, not what is in it: such paths cannot be used."""

Signature = tuple[int, int, int, int, int]
"""Mode, size, inode, and the times of the last change of content and of anything: no command can set the last one."""
Snapshot = dict[str, Signature]


class TooManyChangesError(Exception):
    """More files were changed than can be listed."""


class ChangeList:
    """Changed paths by kind."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.deleted: list[str] = []
        self.links: list[str] = []
        self.special: list[str] = []

    def add(self, path: str, mode: int) -> None:
        """A file that was written, or something else that appeared in its place."""
        others = self.links if stat.S_ISLNK(mode) else self.special
        self._append(self.written if stat.S_ISREG(mode) else others, path)

    def add_deleted(self, path: str) -> None:
        self._append(self.deleted, path)

    def to_json(self) -> dict[str, list[str]]:
        kinds = ("written", "deleted", "links", "special")
        return {kind: sorted(getattr(self, kind)) for kind in kinds}

    def _append(self, kind: list[str], path: str) -> None:
        kind.append(path)
        if len(kind) > MAX_CHANGES:
            raise TooManyChangesError(f"more than {MAX_CHANGES:,} files were changed")


def take_snapshot(root: str) -> Snapshot:
    """The signature of every file, link and other entry but folders."""
    return {path: sign(found) for path, found in walk_files(root)}


def sign(found: os.stat_result) -> Signature:
    return found.st_mode, found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def walk_files(root: str, *, with_folders: bool = False) -> Iterator[tuple[str, os.stat_result]]:
    """All entries but folders, with relative paths. Does not follow links.

    Folders that are too deep, or that cannot be read, are entries: anything may be in them.

    Paths of other folders, if they are wanted, end with `/`.
    """
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(f"{root}/{folder}"))
        except PermissionError:
            if (unreadable := find_status(f"{root}/{folder}")) is not None:
                yield folder.rstrip("/") or ".", unreadable
            continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False) and len(os.fsencode(path)) < MAX_PATH:
                folders.append(f"{path}/")
                if not with_folders:
                    continue
                path += "/"
            try:
                yield path, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue


def compare_copy(root: str, before: Mapping[str, Signature], *, original: str, planned: frozenset[str]) -> ChangeList:
    """What differs from the snapshot. A file with the content of the original is not a change."""
    changes = ChangeList()
    after = set()
    for path, found in walk_files(root):
        after.add(path)
        if before.get(path) == sign(found) or (
            path in before and path not in planned and _is_original(f"{root}/{path}", f"{original}/{path}")
        ):
            continue
        changes.add(path, found.st_mode)
    for path in before.keys() - after:
        changes.add_deleted(path)
    return changes


def find_differences(before: Snapshot, after: Snapshot) -> list[str]:
    """Paths that differ between two snapshots."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def read_overlay(upper: str, lower: str, *, planned: Mapping[str, Signature]) -> ChangeList:
    """What the upper layer says. Files of the plan count if they were changed after they were written."""
    changes = ChangeList()
    folders = [""]
    gone = set(planned)
    while folders:
        folder = folders.pop()
        names = set()
        for entry in os.scandir(f"{upper}/{folder}"):
            names.add(entry.name)
            path = f"{folder}{entry.name}"
            gone.discard(path)
            found = entry.stat(follow_symlinks=False)
            below = find_mode(f"{lower}/{path}")
            if stat.S_ISDIR(below) and not stat.S_ISDIR(found.st_mode):
                _add_deleted_below(changes, lower, f"{path}/")
            if stat.S_ISDIR(found.st_mode) and len(os.fsencode(path)) >= MAX_PATH:
                changes.add(path, found.st_mode)
            elif stat.S_ISDIR(found.st_mode):
                folders.append(f"{path}/")
                if below and not stat.S_ISDIR(below):
                    changes.add_deleted(path)
            elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:  # a whiteout
                if (below and not stat.S_ISDIR(below)) or path in planned:
                    changes.add_deleted(path)
            elif path in planned:
                if planned[path] != sign(found):
                    changes.add(path, found.st_mode)
            elif not _is_original(entry.path, f"{lower}/{path}"):
                changes.add(path, found.st_mode)
        if _is_opaque(f"{upper}/{folder}"):
            _add_deleted_below(changes, lower, folder, kept=names)
    for path in gone:
        changes.add_deleted(path)
    return changes


def _add_deleted_below(changes: ChangeList, lower: str, folder: str, *, kept: Collection[str] = ()) -> None:
    """Everything of the lower folder is deleted, but these names in it, which the upper layer has."""
    for path, _ in walk_files(f"{lower}/{folder}"):
        if path.split("/")[0] not in kept:
            changes.add_deleted(f"{folder}{path}")


def _is_opaque(folder: str) -> bool:
    try:
        return os.getxattr(folder, "user.overlay.opaque") == b"y"
    except OSError:
        return False


def _is_original(path: str, original: str) -> bool:
    """Whether a file or link is as it was, although it was touched."""
    try:
        if stat.S_ISLNK(os.lstat(path).st_mode):
            return os.readlink(path) == os.readlink(original)
        return have_same_content(path, original)
    except OSError:
        return False
