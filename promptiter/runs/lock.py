"""RunLock: one process at a time works on a run.

On one machine flock decides: it goes with its process, so one that was killed blocks nobody. Other machines, which a
shared folder may serve and flock may not reach, look at the lease that stands in the same file: it is renewed while
the holder lives, and whoever finds it expired takes the run over. A holder that slept through this is told at its
next renewal, which every append to the journal asks for.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from weakref import WeakSet

import orjson

from promptiter.errors import RunLockedError, SetupError

FILE_NAME = "lock"
LEASE_S = 60.0
RENEWALS = 4
"""So often a lease is renewed before it would end."""
TRIES, PAUSE_S = 5, 0.02
"""Somebody who only asks whether a run is locked (`holder_of`) holds it for a moment."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that works on a run. `machine` is what flock reaches; times are seconds since 1970."""

    host: str
    pid: int
    machine: str
    since: float
    expires_at: float


class RunLock:
    """The lock of a run's folder: `with RunLock(folder): ...`. RunLockedError says who holds it.

    A thread renews the lease, so that it lives on while the event loop waits or is blocked.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        lease_s: float = LEASE_S,
        now: Callable[[], float] = time.time,
        machine: str | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._path = self.folder / FILE_NAME
        self._lease_s = lease_s
        self._now = now
        self._machine = machine or this_machine()
        self._file: int | None = None
        self._lease: Holder | None = None
        self._lost: str | None = None
        self._guard = threading.Lock()
        self._released = threading.Event()
        self._renewing: threading.Thread | None = None

    def acquire(self) -> None:
        """Take the run, or raise RunLockedError."""
        if self._file is not None:
            raise RunLockedError(f"this process holds the run {str(self.folder)!r} already")
        try:
            file = self._flocked()
        except OSError as error:
            told = error.strerror or error
            raise SetupError(f"the run {str(self.folder)!r} cannot be locked: {told}; use another folder") from error
        try:
            self._take(file)
        except BaseException:
            os.close(file)
            raise
        self._file, self._lost, self._released = file, None, threading.Event()
        _held().add(self)
        self._renewing = threading.Thread(target=self._keep_renewing, name="run-lock", daemon=True)
        self._renewing.start()

    def renew(self) -> None:
        """Lengthen the lease when it is time again; RunLockedError once the run is in other hands. Cheap."""
        with self._guard:
            if self._lost is not None:
                raise RunLockedError(self._lost)
            if self._file is None or self._lease is None:
                return
            now = self._now()
            if now < self._lease.expires_at - self._lease_s * (1 - 1 / RENEWALS):
                return
            found = _lease_at(self._path)
            if found is None or replace(found, expires_at=self._lease.expires_at) != self._lease:
                whose = f"taken over by {_named(found)}" if found is not None else "given up: its lock file is gone"
                self._lost = f"the run {str(self.folder)!r} was {whose}; this process must not go on with it"
                raise RunLockedError(self._lost)
            self._write(self._file, replace(self._lease, expires_at=now + self._lease_s))

    def release(self) -> None:
        """Let others have the run. Nothing of the lock stays."""
        if self._file is None:
            return
        self._released.set()
        if self._renewing is not None:
            self._renewing.join()
        with self._guard, suppress(OSError):
            if self._lost is None and _lease_at(self._path) == self._lease:
                self._path.unlink()
        file, self._file, self._lease = self._file, None, None
        _held().discard(self)
        os.close(file)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _flocked(self) -> int:
        """The lock file, with flock. One that its holder removes at this moment is no lock any more."""
        for tried in range(TRIES):
            if tried:
                time.sleep(PAUSE_S)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if _flock(file, shared=False) and _stands_at(file, self._path):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        found = _lease_at(self._path)
        who = "another process"
        if found is not None:
            is_own = found.pid == os.getpid() and found.machine == self._machine
            how = "in this very process" if is_own else f"or end it with `kill {found.pid}`"
            who = f"{_named(found)}; wait for its end, {how}"
        raise RunLockedError(f"the run {str(self.folder)!r} is in the hands of {who}")

    def _take(self, file: int) -> None:
        now = self._now()
        found = _lease_at(self._path)
        if found is not None and found.machine != self._machine and found.expires_at > now:
            left = found.expires_at - now
            raise RunLockedError(
                f"the run {str(self.folder)!r} is in the hands of {_named(found)}; "
                f"if that process is gone, try again in {left:.0f} s"
            )
        lease = Holder(
            host=socket.gethostname(), pid=os.getpid(), machine=self._machine, since=now, expires_at=now + self._lease_s
        )
        try:
            self._write(file, lease)
        except OSError as error:
            told = error.strerror or error
            raise SetupError(f"{str(self._path)!r} cannot be written: {told}; make room, and try again") from error

    def _write(self, file: int, lease: Holder) -> None:
        """In place, since flock belongs to this very file. Who reads takes the first line, which is always whole."""
        line = orjson.dumps(asdict(lease), option=orjson.OPT_APPEND_NEWLINE)
        os.pwrite(file, line, 0)
        os.ftruncate(file, len(line))
        os.fsync(file)  # or other machines see it late
        self._lease = lease

    def _keep_renewing(self) -> None:
        while not self._released.wait(self._lease_s / RENEWALS):
            try:
                self.renew()
            except RunLockedError:
                return  # the next append says so
            except OSError as error:
                logger.warning("the lease of %s could not be renewed: %s", self.folder, error.strerror or error)

    def _forget(self) -> None:
        """In a forked child: the lock is its parent's alone, and must end with it."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._lease, self._guard = None, None, threading.Lock()


def holder_of(folder: str | os.PathLike[str]) -> Holder | None:
    """Who works on a run at this moment; None if nobody does, also when a process was killed and left its lease."""
    path = Path(folder) / FILE_NAME
    found = _lease_at(path)
    if found is None:
        return None
    if found.machine != this_machine():
        return found if found.expires_at > time.time() else None
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _flock(file, shared=True) else found
    finally:
        os.close(file)


def this_machine() -> str:
    """What flock reaches: one kernel. Containers on one have different host names, copies of a machine the same."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _flock(file: int, *, shared: bool) -> bool:
    """Lock an open file until it is closed, if nobody else has it."""
    if os.name == "nt":
        raise SetupError("the folder of a run cannot be locked on Windows; use WSL")
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _stands_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _lease_at(path: Path) -> Holder | None:
    """The lease in a lock file; None if there is none, or its writer was killed before it was written."""
    try:
        found = Holder(**orjson.loads(path.read_bytes().partition(b"\n")[0]))
        float(found.expires_at)  # whoever wrote it
    except (OSError, orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return found


def _named(holder: Holder) -> str:
    return f"process {holder.pid} on {holder.host}"


@cache
def _held() -> WeakSet[RunLock]:
    """The locks of this process. A child that was forked inherits open files, and would hold the locks after it."""
    held: WeakSet[RunLock] = WeakSet()

    def forget() -> None:
        for lock in list(held):
            lock._forget()
        held.clear()

    os.register_at_fork(after_in_child=forget)
    return held
