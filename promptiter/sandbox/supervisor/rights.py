"""What a new process gives up before it becomes a command."""

from __future__ import annotations

import os
import resource
import signal
import sys
from typing import NamedTuple

from promptiter.sandbox.supervisor.landlock import Ruleset
from promptiter.sandbox.supervisor.seccomp import install_filter, install_shared_filter
from promptiter.sandbox.supervisor.syscalls import (
    CAP_DAC_OVERRIDE,
    CAP_FOWNER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    prctl,
    set_capabilities,
)

IN_NAMESPACES = frozenset({CAP_DAC_OVERRIDE, CAP_FOWNER})
"""What root keeps there: it may use files of all users, as it is used to. Mounts protect all but the copy."""


class Rights(NamedTuple):
    """What is left to a command."""

    ruleset: Ruleset | None
    capabilities: frozenset[int] | None
    processes: int | None
    file_bytes: int
    memory_bytes: int | None
    filtered: str = ""
    """Which calls a filter refuses: "all" that are not of a copy, those for what namespaces have "shared", or none."""
    network: bool = True

    def apply(self) -> int:
        """Give up everything else, for this process and all it starts.

        Returns a descriptor on which the filter asks about calls, or -1.
        """
        limits = [(resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, self.file_bytes)]
        if self.processes is not None:
            limits.append((resource.RLIMIT_NPROC, self.processes))
        if self.memory_bytes is not None:
            limits.append((resource.RLIMIT_AS, self.memory_bytes))
        for kind, limit in limits:
            _limit(kind, limit)
        if not sys.platform.startswith("linux"):
            return -1
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if self.capabilities is not None:
            set_capabilities(self.capabilities)
            prctl(PR_SET_NO_NEW_PRIVS, 1)
        if self.ruleset is not None:
            self.ruleset.apply()
        if self.filtered == "shared":
            install_shared_filter(network=self.network)
        return install_filter(network=self.network) if self.filtered == "all" else -1


def count_threads_of_user() -> int | None:
    """Threads of this user on the machine, which count towards the limit outside of namespaces. None if unknown."""
    if not os.path.isdir("/proc/self"):
        return None
    found = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                found += len(os.listdir(f"/proc/{name}/task"))
        except OSError:
            continue
    return found


def _limit(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(kind, (limit, limit))
