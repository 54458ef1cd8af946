"""The processes of a copy: all of them are found and ended, also those that left their session and their parent."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Iterator
from typing import Protocol

_POLL_S = 0.005
_LOOK_S = 0.5


class Processes(Protocol):
    """All processes that commands started."""

    def signal(self, number: int) -> None:
        """Send a signal to each."""

    def exceeds(self, limit: int) -> bool:
        """Whether there are more than this."""

    def kill(self) -> None:
        """Send SIGKILL so that none can start another one meanwhile."""


class NamespaceProcesses:
    """Those of the namespace of which this is process 1: all but itself."""

    def signal(self, number: int) -> None:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return

    def exceeds(self, limit: int) -> bool:
        return sum(name.isdigit() for name in os.listdir("/proc")) - 1 > limit

    def kill(self) -> None:
        self.signal(signal.SIGKILL)  # all at once: the kernel lets none fork meanwhile


class Descendants:
    """Those that this process started, and theirs. As a subreaper, it becomes the parent of those that lose theirs."""

    def __init__(self) -> None:
        self._threads = _count_threads()
        self._next_look = 0.0

    def signal(self, number: int) -> None:
        for process in self._find():
            _signal(process, number)

    def exceeds(self, limit: int) -> bool:
        """Looking at every process takes long, so it is done now and then, and when there are many new ones."""
        has_many = _count_threads() - self._threads > limit
        if not has_many and time.monotonic() < self._next_look:
            return False
        if has_many:
            _run_first()
        self._next_look = time.monotonic() + _LOOK_S
        return len(self._find()) > limit

    def kill(self) -> None:
        """Stop all until no new one appears, then kill them: a process that starts others is faster otherwise."""
        _run_first()
        stopped: set[int] = set()
        while new := self._find() - stopped:
            for process in new:
                _signal(process, signal.SIGSTOP)
            stopped |= new
        for process in stopped:
            _signal(process, signal.SIGKILL)

    def _find(self) -> set[int]:
        return find_descendants()


def find_descendants() -> set[int]:
    """All processes that this one started, and theirs."""
    children: dict[int, list[int]] = {}
    for process, parent in _list_parents():
        children.setdefault(parent, []).append(process)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def measure_deleted(folder: str) -> int:
    """The size of files on the file system of a folder that are deleted, and that a descendant still has open."""
    if not os.path.isdir("/proc/self"):
        return 0
    device = os.stat(folder).st_dev
    sizes: dict[int, int] = {}
    for process in find_descendants():
        for file in _list_open(process):
            if file.st_dev == device and not file.st_nlink and stat.S_ISREG(file.st_mode):
                sizes[file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())


def end_processes(processes: Processes, *, grace_s: float) -> None:
    """End all that is left: SIGTERM, and SIGKILL after the grace period. Returns when none is left."""
    if not reap():
        return
    processes.signal(signal.SIGTERM)
    processes.signal(signal.SIGCONT)
    end = time.monotonic() + grace_s
    while time.monotonic() < end:
        if not reap():
            return
        time.sleep(_POLL_S)
    while reap():
        processes.kill()
        time.sleep(_POLL_S)


def reap(statuses: dict[int, int] | None = None) -> bool:
    """Remove processes that have ended, and note their statuses. False if no process is left."""
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not process:
            return True
        if statuses is not None:
            statuses[process] = status


def _run_first() -> None:
    """Run before all others from now on, if that is allowed: for root, the number of processes has no limit."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (OSError, AttributeError):
        return


def _count_threads() -> int:
    """Threads of the whole machine."""
    try:
        with open("/proc/loadavg") as opened:
            return int(opened.read().split()[3].partition("/")[2])
    except OSError:
        return 0


def _list_parents() -> list[tuple[int, int]]:
    """All processes, each with its parent."""
    if not os.path.isdir("/proc/self"):  # not Linux
        with os.popen("/bin/ps -axo pid=,ppid=") as rows:
            found = [line.split() for line in rows]
        return [(int(process), int(parent)) for process, parent in found]
    return [(int(name), _read_parent(name)) for name in os.listdir("/proc") if name.isdigit()]


def _read_parent(name: str) -> int:
    try:
        with open(f"/proc/{name}/stat", "rb") as opened:
            fields = opened.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def _list_open(process: int) -> Iterator[os.stat_result]:
    """What a process has open. Nothing, if it has ended, or does not let others look."""
    try:
        names = os.listdir(f"/proc/{process}/fd")
    except OSError:
        return
    for name in names:
        try:
            yield os.stat(f"/proc/{process}/fd/{name}")
        except OSError:
            continue


def _signal(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except OSError:
        return
