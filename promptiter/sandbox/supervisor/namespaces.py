"""Namespaces of its own for a copy: users, mounts, processes, and a network if it is to have none."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct
import sys

from promptiter.sandbox.supervisor.syscalls import (
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    prctl,
    unshare,
)

_SET_INTERFACE_FLAGS, _UP_AND_RUNNING = 0x8914, 0x41


def enter_namespaces(*, network: bool) -> None:
    """Become process 1 of new namespaces. The process that called waits for it, and ends as it does.

    All processes of the namespaces end with process 1, however it ends.
    """
    uid, gid = os.getuid(), os.getgid()
    mapper = _Mapper() if uid == 0 else None
    flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    unshare(flags | (0 if network else CLONE_NEWNET))
    if mapper is None or not mapper.map_users():
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    child = os.fork()
    if child:
        _wait_for(child)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prctl(PR_SET_DUMPABLE, 0)
    if not network:
        _start_loopback()


class _Mapper:
    """A process outside of the new namespace, which is allowed to map all users into it."""

    def __init__(self) -> None:
        go, self._go = os.pipe()
        self._target = os.getpid()
        self._process = os.fork()
        if self._process:
            os.close(go)
            return
        try:
            os.close(self._go)
            os.read(go, 1)
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{self._target}/{name}", _repeat_ranges(f"/proc/self/{name}"))
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the answer is the exit code
            os._exit(1)

    def map_users(self) -> bool:
        os.write(self._go, b"\n")
        os.close(self._go)
        _, status = os.waitpid(self._process, 0)
        return status == 0


def _repeat_ranges(file: str) -> str:
    """Every id of this namespace as itself in the new one."""
    with open(file) as opened:
        rows = [line.split() for line in opened]
    return "".join(f"{start} {start} {count}\n" for start, _, count in rows)


def _write(file: str, text: str) -> None:
    handle = os.open(file, os.O_WRONLY)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _wait_for(child: int) -> None:
    """Keep nothing but the wait."""
    for descriptor in (0, 1):
        os.close(descriptor)
    _, status = os.waitpid(child, 0)
    sys.stderr.flush()
    os._exit(0 if status == 0 else 1)


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        fcntl.ioctl(opened, _SET_INTERFACE_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
