"""RunLock: only one process at a time works on a run.

On one machine flock decides. The kernel releases it when the process dies, so a killed process blocks nothing. Other
machines may share the folder without sharing flock, so the lock file also holds a lease: the holder renews it, and
another machine may take over the run once it has expired. A holder that was suspended meanwhile finds out at its next
renewal; every append to the journal checks for that.
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
"""Number of renewals in one lease period."""
TRIES, PAUSE_S = 5, 0.02
"""`find_holder` takes a shared lock for a moment, so a failed attempt is repeated."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """The process that is working on a run. `machine` is the scope of flock; times are Unix timestamps."""

    host: str
    pid: int
    machine: str
    since: float
    expires_at: float


class RunLock:
    """The lock of a run's folder: `with RunLock(folder): ...`. RunLockedError names the holder.

    A thread renews the lease, so that it stays valid while the event loop is blocked.
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
        """Lock the run, or raise RunLockedError."""
        if self._file is not None:
            raise RunLockedError(f"this process already holds the run {str(self.folder)!r}")
        try:
            file = self._open_and_flock()
        except OSError as error:
            cause = error.strerror or error
            raise SetupError(f"the run {str(self.folder)!r} cannot be locked: {cause}; use another folder") from error
        try:
            self._write_first_lease(file)
        except BaseException:
            os.close(file)
            raise
        self._file, self._lost, self._released = file, None, threading.Event()
        _held_locks().add(self)
        self._renewing = threading.Thread(target=self._keep_renewing, name="run-lock", daemon=True)
        self._renewing.start()

    @property
    def is_due(self) -> bool:
        """Whether `renew` has something to do. This never blocks."""
        lease = self._lease
        is_old = lease is not None and self._now() >= lease.expires_at - self._lease_s * (1 - 1 / RENEWALS)
        return is_old or self._lost is not None

    def renew(self) -> None:
        """Extend the lease when it is due; RunLockedError if another process took over the run."""
        with self._guard:
            if self._lost is not None:
                raise RunLockedError(self._lost)
            if self._file is None or self._lease is None or not self.is_due:
                return
            lease = _read_lease(self._path)
            if lease is None or replace(lease, expires_at=self._lease.expires_at) != self._lease:
                how = f"taken over by {_describe(lease)}" if lease is not None else "lost: its lock file is gone"
                self._lost = f"the run {str(self.folder)!r} was {how}; this process stops working on it"
                raise RunLockedError(self._lost)
            self._write(self._file, replace(self._lease, expires_at=self._now() + self._lease_s))

    def release(self) -> None:
        """Unlock the run and remove the lock file."""
        if self._file is None:
            return
        self._released.set()
        if self._renewing is not None:
            self._renewing.join()
        with self._guard, suppress(OSError):
            if self._lost is None and _read_lease(self._path) == self._lease:
                self._path.unlink()
        file, self._file, self._lease = self._file, None, None
        _held_locks().discard(self)
        os.close(file)

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _open_and_flock(self) -> int:
        """Open the lock file and flock it. A file that its holder has just removed does not count."""
        for tried in range(TRIES):
            if tried:
                time.sleep(PAUSE_S)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                if _flock(file, shared=False) and _is_at(file, self._path):
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)
        lease = _read_lease(self._path)
        who = "another process"
        if lease is not None:
            is_own = lease.pid == os.getpid() and lease.machine == self._machine
            advice = "that is this process" if is_own else f"wait until it ends, or end it with `kill {lease.pid}`"
            who = f"{_describe(lease)}; {advice}"
        raise RunLockedError(f"the run {str(self.folder)!r} is locked by {who}")

    def _write_first_lease(self, file: int) -> None:
        now = self._now()
        other = _read_lease(self._path)
        if other is not None and other.machine != self._machine and other.expires_at > now:
            left = other.expires_at - now
            raise RunLockedError(
                f"the run {str(self.folder)!r} is locked by {_describe(other)}; "
                f"if that process is gone, try again in {left:.0f} s"
            )
        lease = Holder(
            host=socket.gethostname(), pid=os.getpid(), machine=self._machine, since=now, expires_at=now + self._lease_s
        )
        try:
            self._write(file, lease)
        except OSError as error:
            cause = error.strerror or error
            raise SetupError(f"{str(self._path)!r} cannot be written: {cause}; free some space, then retry") from error

    def _write(self, file: int, lease: Holder) -> None:
        """Write in place, since flock belongs to this file. Readers take the first line, which is always complete."""
        line = orjson.dumps(asdict(lease), option=orjson.OPT_APPEND_NEWLINE)
        os.pwrite(file, line, 0)
        os.ftruncate(file, len(line))
        os.fsync(file)  # otherwise other machines see it late
        self._lease = lease

    def _keep_renewing(self) -> None:
        while not self._released.wait(self._lease_s / RENEWALS):
            try:
                self.renew()
            except RunLockedError:
                return  # the next append raises it
            except OSError as error:
                logger.warning("the lease of %s could not be renewed: %s", self.folder, error.strerror or error)

    def _forget(self) -> None:
        """Drop the lock in a forked child: it belongs to the parent alone."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._lease, self._guard = None, None, threading.Lock()


def find_holder(folder: str | os.PathLike[str]) -> Holder | None:
    """Find the process that is working on a run; None if there is none or it was killed."""
    path = Path(folder) / FILE_NAME
    lease = _read_lease(path)
    if lease is None:
        return None
    if lease.machine != this_machine():
        return lease if lease.expires_at > time.time() else None
    try:
        file = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if _flock(file, shared=True) else lease
    finally:
        os.close(file)


def this_machine() -> str:
    """The id of this kernel, the scope of flock. Containers share it under different host names."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def _flock(file: int, *, shared: bool) -> bool:
    """Lock an open file until it is closed; False if another process holds it."""
    if os.name == "nt":
        raise SetupError("the folder of a run cannot be locked on Windows; use WSL")
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _read_lease(path: Path) -> Holder | None:
    """Read the lease in a lock file; None if there is none, or the process was killed before writing it."""
    try:
        lease = Holder(**orjson.loads(path.read_bytes().partition(b"\n")[0]))
        float(lease.expires_at)  # raises unless it is a number
    except (OSError, orjson.JSONDecodeError, TypeError, ValueError):
        return None
    return lease


def _describe(holder: Holder) -> str:
    return f"process {holder.pid} on {holder.host}"


@cache
def _held_locks() -> WeakSet[RunLock]:
    """The locks of this process. A forked child inherits open files, and would keep the locks of a dead parent."""
    held: WeakSet[RunLock] = WeakSet()

    def forget() -> None:
        for lock in list(held):
            lock._forget()
        held.clear()

    os.register_at_fork(after_in_child=forget)
    return held
