"""Landlock: what a command may write and read is a list of paths, and it may signal none but its own processes.

https://docs.kernel.org/userspace-api/landlock.html
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from promptiter.sandbox.supervisor.syscalls import PR_SET_NO_NEW_PRIVS, call, prctl

_CREATE, _ADD, _RESTRICT = 444, 445, 446

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_MAKE_CHAR, _MAKE_BLOCK = 1 << 6, 1 << 11
_MAKE_AND_REMOVE = sum(1 << bit for bit in range(4, 13))
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_ON_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV

TRUNCATE_ABI = 3
"""From this version on, it covers files that are emptied without being opened for writing."""

SIGNAL_ABI = 6
"""From this version on, a command cannot signal the processes of others."""


def read_abi() -> int:
    """The version of Landlock that the kernel has; 0 if it has none."""
    try:
        return call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1), what="Landlock")
    except OSError:
        return 0


class Ruleset:
    """Paths that may be written, and read; reading is not restricted if no path for it is given."""

    def __init__(self, *, writable: Iterable[str], readable: Iterable[str] | None = None, network: bool = True) -> None:
        abi = read_abi()
        known = _MAKE_AND_REMOVE | _WRITE_FILE | (_READ if readable is not None else 0)
        known |= (
            (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= TRUNCATE_ABI else 0) | (_IOCTL_DEV if abi >= 5 else 0)
        )
        ports, scopes = (0 if network else 3) if abi >= 4 else 0, 3 if abi >= SIGNAL_ABI else 0
        attributes = struct.pack("=QQQ", known, ports, scopes)
        attributes = attributes[: 8 if abi < 4 else 16 if abi < SIGNAL_ABI else 24]
        self._handle = call(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0), what="Landlock")
        for path in writable:
            self._allow(path, known & ~(_MAKE_CHAR | _MAKE_BLOCK))
        for path in readable or ():
            self._allow(path, known & _READ)
        if readable is not None:
            self._allow("/", known & _READ_DIR)  # names may be listed everywhere

    def _allow(self, path: str, access: int) -> None:
        try:
            handle = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # it is gone, so there is nothing to allow
            return
        try:
            mode = os.fstat(handle).st_mode
            if stat.S_ISLNK(mode):
                return
            if not stat.S_ISDIR(mode):
                access &= _ON_FILES
            rule = struct.pack("=Qi", access, handle)
            call(_ADD, ctypes.c_int(self._handle), ctypes.c_int(1), rule, ctypes.c_uint32(0), what="Landlock rule")
        finally:
            os.close(handle)

    def apply(self) -> None:
        """Restrict this process and all it starts, for good."""
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        call(_RESTRICT, ctypes.c_int(self._handle), ctypes.c_uint32(0), what="Landlock")

    def close(self) -> None:
        os.close(self._handle)


def list_readable(hidden: Iterable[str], *, start: str = "/") -> list[str]:
    """Paths that together are everything below `start` but the hidden paths: Landlock can only allow.

    Hidden paths are real paths, without symbolic links. What is created later next to them cannot be read.
    """
    hidden = {os.path.normpath(path) for path in hidden}
    above = {folder for path in hidden for folder in _list_above(path)}
    found, waiting = [], [start]
    while waiting:
        path = waiting.pop()
        if path in hidden:
            continue
        if path not in above:
            found.append(path)
            continue
        try:
            waiting += [f"{path.rstrip('/')}/{name}" for name in os.listdir(path)]
        except OSError:
            continue
    return found


def _list_above(path: str) -> list[str]:
    """The folders above a path."""
    names = path.split("/")[1:-1]
    return ["/", *("/" + "/".join(names[:number]) for number in range(1, len(names) + 1))]
