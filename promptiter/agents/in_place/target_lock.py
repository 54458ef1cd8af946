"""Who may write a target: the lock of a state folder, and the claim that stands beside a file.

The lock lets one candidate at a time in, in all processes of this machine. The claim names the state folder of the
agent whose candidate may be in a file, so that an agent with another folder does not take it for the baseline.
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
"""So long is waited for somebody who only looks; a run may hold the lock for hours."""
POLL_S = 0.02


class FolderLock:
    """A lock between processes, and between the event loops of one. The end of its owner frees it, whatever ended it.

    It is an flock on a file of its own, which stays: removing it would let two owners in.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder.absolute() / "in_place.lock"
        self._descriptor: int | None = None

    @property
    def is_held(self) -> bool:
        return self._descriptor is not None

    def acquire(self) -> bool:
        """Take the lock if it is free, without waiting."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise SetupError(
                f"the state folder {str(self.path.parent)!r} cannot be used: {error.strerror or error}; choose another"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Free the lock; does nothing if it is not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def tries(self) -> Iterator[None]:
        """Moments to try at, as long as it makes sense to wait for somebody who only looks."""
        for _ in range(round(LOCK_WAIT_S / POLL_S)):
            yield
            time.sleep(POLL_S)

    def acquire_soon(self) -> bool:
        """Take the lock if it is free or soon will be."""
        return any(self.acquire() for _ in self.tries())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; SetupError if somebody else does."""
        if not self.acquire_soon():
            raise self.busy()
        try:
            yield
        finally:
            self.release()

    def busy(self) -> SetupError:
        """What to tell somebody who cannot have the lock."""
        return SetupError(
            f"process {self.path.read_text() or '?'} is running with a candidate of {str(self.path.parent)!r} in "
            "place; it restores the baseline at its end: wait for it, or stop it"
        )


def claimant(path: str) -> Path | None:
    """The state folder of the agent whose candidate may be in a file."""
    claim = _claim_file(path).file
    return Path(claim.read_text("utf-8")) if claim.exists() else None


def claim(path: str, folder: Path) -> None:
    """Say that a file may hold a candidate of the agent with this state folder."""
    if claimant(path) != folder:
        _claim_file(path).write_bytes(str(folder).encode())


def unclaim(path: str, folder: Path) -> None:
    """Take such a claim back; one of another agent stays."""
    claim = _claim_file(path)
    claim.sweep()
    if claimant(path) == folder:
        claim.file.unlink(missing_ok=True)


def _claim_file(path: str) -> FileSource:
    return FileSource(Path(path).with_name(f".{Path(path).name}.promptiter-claim"))
