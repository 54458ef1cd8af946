"""How much commands may write to a copy in a folder. An overlay needs no quota: its tmpfs has a size."""

from __future__ import annotations

import stat
import time

from promptiter.sandbox.supervisor.changes import walk_files
from promptiter.sandbox.supervisor.processes import measure_deleted

_LOOK_S = 0.3
_BYTES_PER_FILE = 4096
"""What a small file counts for."""
_BYTES_UNKNOWN = 1 << 50
"""What a folder counts for that is too deep, or that cannot be read: more than any quota."""


class Quota:
    """How much commands may add to a folder; without one, nothing is limited. A large one is measured less often."""

    def __init__(self, folder: str | None, max_bytes: int) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._base = 0
        self._next = 0.0

    def start(self) -> None:
        """Count what is there now as given."""
        self._base = self._measure()

    def is_exceeded(self, *, at_end: bool = False) -> bool:
        """Whether more was added. False if the folder was measured just before, unless the command is `at_end`."""
        if self._folder is None or (time.monotonic() < self._next and not at_end):
            return False
        return self._measure() - self._base >= self._max_bytes

    def _measure(self) -> int:
        if self._folder is None:
            return 0
        started = time.monotonic()
        used = measure_deleted(self._folder)
        for path, found in walk_files(self._folder, with_folders=True):
            is_unknown = stat.S_ISDIR(found.st_mode) and not path.endswith("/")
            used += _BYTES_UNKNOWN if is_unknown else max(found.st_blocks * 512, _BYTES_PER_FILE)
        self._next = time.monotonic() + max(_LOOK_S, 10 * (time.monotonic() - started))
        return used
