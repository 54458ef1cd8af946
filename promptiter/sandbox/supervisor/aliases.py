"""Other paths of a file: what is mounted twice can be reached twice, so it has to be hidden twice."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from promptiter.sandbox.supervisor.changes import walk_files
from promptiter.sandbox.supervisor.files import find_status

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A part of a file system, from `root` down, and where it is mounted."""

    device: str
    root: str
    place: str
    kind: str = ""


def read_mounts() -> list[Mount]:
    """The mounts of this process, in the order in which they cover each other."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as opened:
            rows = [line.rstrip("\n").split(" ") for line in opened]
    except OSError:  # not Linux
        return []
    return [Mount(row[2], _unescape(row[3]), _unescape(row[4]), row[row.index("-") + 1]) for row in rows]


def find_aliases(path: str, mounts: list[Mount]) -> list[str]:
    """All paths of what is at a real path, itself included."""
    containing = [mount for mount in mounts if _find_below(path, mount.place) is not None]
    if not containing:
        return [path]
    own = max(containing, key=lambda mount: len(mount.place))  # the last of equal ones covers the others
    own = [mount for mount in containing if mount.place == own.place][-1]
    inner = f"{own.root.rstrip('/')}/{_find_below(path, own.place)}".rstrip("/")
    found = {path}
    for mount in mounts:
        below = _find_below(inner, mount.root) if mount.device == own.device else None
        if below is not None:
            found.add(f"{mount.place.rstrip('/')}/{below}".rstrip("/"))
    return sorted(found)


def find_hidden(root: str, paths: Iterable[str], repositories: Iterable[str]) -> list[str]:
    """The real paths of what is to be hidden: what links lead to, and other hard links in the same folder, included.

    Not those of repositories: git makes many hard links in them, and none that matters.
    """
    found = {each for path in paths for each in (f"{root}/{path}", os.path.realpath(f"{root}/{path}"))}
    inodes = {
        (status.st_dev, status.st_ino)
        for place in found
        for status in (find_status(place), *(status for _, status in walk_files(place)))
        if status is not None and stat.S_ISREG(status.st_mode) and status.st_nlink > 1
    }
    if inodes:
        found |= {f"{root}/{name}" for name, each in walk_files(root) if (each.st_dev, each.st_ino) in inodes}
    return sorted(found.union(map(os.path.realpath, repositories)))


def _find_below(path: str, folder: str) -> str | None:
    """The path relative to a folder; None if it is not in it."""
    if path == folder:
        return ""
    folder = f"{folder.rstrip('/')}/"
    return path[len(folder) :] if path.startswith(folder) else None


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 8)), text)
