"""What a copy is made of, and what it can do: mounted over the original, or in a folder of its own."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from promptiter.sandbox.supervisor.changes import ChangeList, Snapshot, sign
from promptiter.sandbox.supervisor.commands import Restrictions
from promptiter.sandbox.supervisor.files import find_status, write_file

TEMPORARY = ("TMPDIR", "TMP", "TEMP")
"""Variables that name the folder of temporary files."""


class OpenRequest(NamedTuple):
    """What the copy is made of. `folder` is private, and empty; None if the copy is an overlay."""

    kind: str
    root: str
    folder: str | None
    files: dict[str, bytes]
    hidden: list[str]
    protected: list[str]
    repositories: list[str]
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
