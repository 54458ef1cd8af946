"""System calls that Python has no function for. Each raises OSError."""

from __future__ import annotations

import ctypes
import os
from functools import cache

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

CAPSET_VERSION = 0x20080522
CAP_DAC_OVERRIDE, CAP_FOWNER, LAST_CAP = 1, 3, 63


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> int:
    """Raise OSError if a call returned -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def call(number: int, *arguments: object, what: str) -> int:
    """A system call by its number. Numbers above 400 are the same on all machines."""
    return check(int(_libc().syscall(ctypes.c_long(number), *arguments)), what)


def prctl(option: int, value: int, *, third: int = 0) -> None:
    """Set a property of this process."""
    arguments = [ctypes.c_ulong(each) for each in (value, third, 0, 0)]
    check(_libc().prctl(ctypes.c_int(option), *arguments), f"prctl {option}")


def unshare(flags: int) -> None:
    """Leave the namespaces of the parent."""
    check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def mount(source: bytes, target: bytes, kind: bytes, flags: int = 0, options: bytes = b"") -> None:
    """The classic mount call."""
    arguments = (source, target, kind, ctypes.c_ulong(flags), options or None)
    check(_libc().mount(*arguments), f"mount {os.fsdecode(kind)} on {os.fsdecode(target)}")


def unmount(target: bytes, flags: int = 0) -> None:
    """Remove a mount."""
    check(_libc().umount2(target, ctypes.c_int(flags)), f"umount {os.fsdecode(target)}")


def set_capabilities(kept: frozenset[int]) -> None:
    """Give up all capabilities but these, for this process and all it starts."""
    for capability in range(LAST_CAP + 1):
        if capability not in kept:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # this kernel has fewer, or it was not ours to drop
                continue
    try:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError:
        pass
    mask = sum(1 << each for each in kept)
    header = (ctypes.c_uint32 * 2)(CAPSET_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)  # effective, permitted, inheritable; then the high halves
    check(_libc().capset(header, data), "capset")
