"""Locks: one for a state folder, and a lock file beside each source file.

The folder lock allows one candidate at a time, in all processes of this machine. The lock file names the state folder
of the agent whose candidate may be in the source, so that another agent does not mistake it for the baseline.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.sources import FileSource

LOCK_WAIT_S = 2.0
"""How long to wait for a process that only reads the baseline; a run may hold the lock for hours."""
POLL_S = 0.02


class FolderLock:
    """A lock between processes, and between the event loops of one. It is released when its owner dies.

    It is an flock on a separate file, which is never removed: otherwise two owners could hold it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / "in_place.lock"
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock, also if a signal interrupts `acquire` or `release`."""
        try:
            return self._descriptor is not None and _flock(self._descriptor)
        except OSError:  # it is closed already
            return False

    def acquire(self) -> bool:
        """Acquire the lock if it is free, without waiting."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise SetupError(
                f"the state folder {str(self.path.parent)!r} cannot be used: {error.strerror or error}; choose another"
            ) from error
        self._descriptor = descriptor
        if not _flock(descriptor):
            self.release()
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        return True

    def release(self) -> None:
        """Release the lock; does nothing if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def attempts(self) -> Iterator[None]:
        """Yield every POLL_S seconds until LOCK_WAIT_S have passed."""
        for _ in range(round(LOCK_WAIT_S / POLL_S)):
            yield
            time.sleep(POLL_S)

    def acquire_soon(self) -> bool:
        """Acquire the lock, waiting up to LOCK_WAIT_S."""
        return any(self.acquire() for _ in self.attempts())

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock; SetupError if another process does."""
        if not self.acquire_soon():
            raise self.busy_error()
        try:
            yield
        finally:
            self.release()

    def busy_error(self) -> SetupError:
        """The error to raise if another process holds the lock."""
        return SetupError(
            f"process {self.path.read_text() or '?'} is running with a candidate of {str(self.path.parent)!r} in "
            "place and restores the baseline when it ends; wait for it, or stop it"
        )


def _flock(descriptor: int) -> bool:
    """Lock an open file, or keep it locked; False if another one holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_lock_owner(path: str) -> Path | None:
    """The state folder of the agent that locked a file; None if it is not locked."""
    lock = _lock_file(path).file
    return Path(lock.read_text("utf-8")) if lock.exists() else None


def lock_source(path: str, folder: Path) -> None:
    """Lock a file for the agent with this state folder: the file may now hold one of its candidates."""
    if find_lock_owner(path) != folder:
        _lock_file(path).write_bytes(str(folder).encode())


def unlock_source(path: str, folder: Path) -> None:
    """Remove the lock of the agent with this state folder; the lock of another agent stays."""
    lock = _lock_file(path)
    lock.sweep()
    if find_lock_owner(path) == folder:
        lock.file.unlink(missing_ok=True)


def _lock_file(path: str) -> FileSource:
    return FileSource(Path(path).with_name(f".{Path(path).name}.promptiter-lock"))
