"""What a copy is made of, and what it can do: mounted over the original, or in a folder of its own."""

from __future__ import annotations

import stat
import time
from typing import NamedTuple, Protocol

from promptiter.sandbox.supervisor.changes import ChangeList, Snapshot, sign, walk_files
from promptiter.sandbox.supervisor.commands import Restrictions
from promptiter.sandbox.supervisor.files import find_status, write_file
from promptiter.sandbox.supervisor.processes import measure_deleted

TEMPORARY = ("TMPDIR", "TMP", "TEMP")
"""Variables that name the folder of temporary files."""


_LOOK_S = 0.3
_BYTES_PER_FILE = 4096
"""What a small file counts for."""


class OpenRequest(NamedTuple):
    """What the copy is made of. `folder` is private, and empty; None if the copy is an overlay."""

    kind: str
    root: str
    folder: str | None
    files: dict[str, bytes]
    hidden: list[str]
    protected: list[str]
    visible: list[str]
    disk_bytes: int
    processes: int
    memory_bytes: int | None
    network: bool


class Copy(Protocol):
    """A copy that is open."""

    root: str
    description: str

    def prepare_run(self) -> None:
        """Called before each command."""

    def restrict(self) -> Restrictions:
        """How a command is restricted and watched."""

    def adapt_environment(self, environment: dict[str, str]) -> dict[str, str]:
        """The variables of a command: temporary files are in the copy."""

    def list_changes(self) -> ChangeList:
        """What commands changed in it."""

    def find_tampering(self) -> list[str]:
        """Protected paths that commands changed."""

    def find_outside_changes(self) -> list[str]:
        """What changed in the original."""

    def reveal(self) -> None:
        """Show the hidden paths."""


class Quota:
    """How much commands may add to a folder. Looking takes long in a large one, so it is done less often there."""

    def __init__(self, folder: str | None, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._base = 0
        self._next = 0.0

    def start(self) -> None:
        """Count what is there from now on as given."""
        self._base = self._measure()

    def is_exceeded(self, *, at_end: bool = False) -> bool:
        """Whether more was added. Answers no if it looked just before, unless a command is at its end."""
        if self._folder is None or (time.monotonic() < self._next and not at_end):
            return False
        return self._measure() - self._base >= self._max_bytes

    def _measure(self) -> int:
        if self._folder is None:
            return 0
        started = time.monotonic()
        used = measure_deleted(self._folder)
        for path, found in walk_files(self._folder, with_folders=True):
            is_too_deep = stat.S_ISDIR(found.st_mode) and not path.endswith("/")
            used += self._max_bytes if is_too_deep else max(found.st_blocks * 512, _BYTES_PER_FILE)
        self._next = time.monotonic() + max(_LOOK_S, 10 * (time.monotonic() - started))
        return used


def write_plan(root: str, files: dict[str, bytes]) -> Snapshot:
    """Write the files of the plan into the copy, and return what they look like now."""
    for path, content in files.items():
        write_file(root, path, content)
    found = {path: find_status(f"{root}/{path}") for path in files}
    return {path: sign(status) for path, status in found.items() if status is not None}


def find_touched(protected: list[str], changes: ChangeList) -> list[str]:
    """Protected paths of which something changed, in them or above them."""
    changed = [path for paths in changes.to_json().values() for path in paths]
    return sorted(each for each in protected if any(is_in(path, each) or is_in(each, path) for path in changed))


def is_in(path: str, folder: str) -> bool:
    """Whether a relative path is this one, or in this folder."""
    return path == folder or path.startswith(f"{folder}/")
