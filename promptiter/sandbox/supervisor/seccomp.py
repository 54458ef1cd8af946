"""A filter of system calls for what Landlock does not cover: modes and times of files, sockets, other processes.

Changes of modes, owners and times wait until the supervisor has made them, or refused (`attributes`). Others are
refused at once. https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from promptiter.sandbox.supervisor.syscalls import call

ATTRIBUTE_CALLS = {
    "x86_64": {
        90: "chmod", 91: "fchmod", 268: "fchmodat", 452: "fchmodat2",
        92: "chown", 93: "fchown", 94: "lchown", 260: "fchownat",
        132: "utime", 235: "utimes", 261: "futimesat", 280: "utimensat",
    },
    "aarch64": {52: "fchmod", 53: "fchmodat", 452: "fchmodat2", 54: "fchownat", 55: "fchown", 88: "utimensat"},
}  # fmt: skip
"""Calls that the supervisor makes for a command."""


class _Machine(NamedTuple):
    """Numbers that differ between machines."""

    audit: int
    seccomp: int
    socket: int
    socketpair: int
    ioctl: int
    prlimit: int
    setpriority: int
    ioprio_set: int
    set_xattrs: tuple[int, ...]
    ipc: tuple[int, ...]
    keys: tuple[int, ...]


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, 41, 53, 16, 302, 141, 251, (188, 189, 190, 197, 198, 199), (29, 64, 68, 240),
                       (248, 249, 250)),
    "aarch64": _Machine(0xC00000B7, 277, 198, 199, 29, 261, 140, 30, (5, 6, 7, 14, 15, 16), (194, 190, 186, 180),
                        (217, 218, 219)),
}  # fmt: skip

_NEW_ATTRIBUTE_CALLS = (463, 466, 469)
"""setxattrat, removexattrat, file_setattr: programs use the older ones if a kernel does not have these."""
_IO_URING = 425
"""Its operations pass no filter."""
_SET_FLAGS = (0x40086602, 0x401C5820)
_X32 = 0x40000000

_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
_SET_FILTER, _NEW_LISTENER = 1, 8
_AF_UNIX = 1
_SOCK_DGRAM, _SOCK_TYPES = 2, 0xF


class _Block(NamedTuple):
    """Instructions that are reached for one call, and end with a decision."""

    number: int
    code: Sequence[tuple[int, int, int, int]]


def has_filter() -> bool:
    """Whether the numbers of this machine are known."""
    return os.uname().machine in _MACHINES


def install_filter(*, network: bool) -> int:
    """Filter the calls of this process and all it starts. Returns a descriptor on which they ask.

    no_new_privs has to be set.
    """
    machine = os.uname().machine
    blocks = _list_blocks(machine, _MACHINES[machine], network=network)
    how = (ctypes.c_ulong(_SET_FILTER), ctypes.c_ulong(_NEW_LISTENER))
    return _install(blocks, how)


def install_key_filter() -> None:
    """Refuse all calls for keys: keyrings of the kernel belong to no namespace, so a command could change those of its
    user.

    no_new_privs has to be set.
    """
    blocks = _refuse_calls(_MACHINES[os.uname().machine].keys, errno.EACCES)
    _install(blocks, (ctypes.c_ulong(_SET_FILTER), ctypes.c_ulong(0)))


def _install(blocks: Sequence[_Block], how: tuple[ctypes.c_ulong, ctypes.c_ulong]) -> int:
    program = _build(blocks)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    return call(_MACHINES[os.uname().machine].seccomp, *how, header, what="seccomp")


def _build(blocks: Sequence[_Block]) -> list[tuple[int, int, int, int]]:
    name = os.uname().machine
    program = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _MACHINES[name].audit),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if name == "x86_64":
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _REFUSE | errno.ENOSYS)]
    for number, code in blocks:
        program += [(_EQUAL, 0, len(code), number), *code]
    return [*program, (_RETURN, 0, 0, _ALLOW)]


def _list_blocks(name: str, machine: _Machine, *, network: bool) -> list[_Block]:
    blocks = [_Block(number, [(_RETURN, 0, 0, _ASK)]) for number in ATTRIBUTE_CALLS[name]]
    for numbers, error in (
        (machine.set_xattrs, errno.EOPNOTSUPP),
        ((*_NEW_ATTRIBUTE_CALLS, _IO_URING), errno.ENOSYS),
        ((*machine.ipc, *machine.keys), errno.EACCES),
    ):
        blocks += _refuse_calls(numbers, error)
    for number, position in ((machine.prlimit, 0), (machine.setpriority, 1), (machine.ioprio_set, 1)):
        blocks.append(_Block(number, _refuse_unless_zero(position)))
    blocks.append(_Block(machine.ioctl, _refuse_values(1, _SET_FLAGS, errno.EPERM)))
    no_socket = [(_RETURN, 0, 0, _REFUSE | errno.EACCES)]
    blocks.append(_Block(machine.socket, _refuse_values(0, (_AF_UNIX,), errno.EACCES) if network else no_socket))
    blocks.append(_Block(machine.socketpair, _refuse_datagrams()))
    return blocks


def _refuse_calls(numbers: Sequence[int], error: int) -> list[_Block]:
    return [_Block(number, [(_RETURN, 0, 0, _REFUSE | error)]) for number in numbers]


def _refuse_datagrams() -> list[tuple[int, int, int, int]]:
    """A pair of sockets for datagrams: each could send to any other socket, although both have a partner."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8),
        (_AND, 0, 0, _SOCK_TYPES),
        (_EQUAL, 0, 1, _SOCK_DGRAM),
        (_RETURN, 0, 0, _REFUSE | errno.EACCES),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _refuse_unless_zero(position: int) -> list[tuple[int, int, int, int]]:
    """The argument names a process, and 0 is the caller."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _REFUSE | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _refuse_values(position: int, values: Sequence[int], error: int) -> list[tuple[int, int, int, int]]:
    code = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position)]
    for value in values:
        code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, _REFUSE | error)]
    return [*code, (_RETURN, 0, 0, _ALLOW)]
