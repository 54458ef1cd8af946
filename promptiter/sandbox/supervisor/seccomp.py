"""Filters of system calls for what Landlock and namespaces do not cover.

With Landlock: modes and times of files, sockets, shared memory, other processes. Changes of modes, owners and times
wait until the supervisor has made them, or refused (`attributes`). Others are refused at once. With namespaces: the
kernel's keys, and networks that have no namespace. https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from promptiter.sandbox.supervisor.landlock import TRUNCATE_ABI, read_abi
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
    """Numbers that differ between machines.

    `opens` come with the position of their flags. `of_processes` name a process first, `of_groups` second: first, they
    say what it is, and the number for all processes of a user comes with them.
    """

    audit: int
    seccomp: int
    socket: int
    socketpair: int
    ioctl: int
    truncate: int
    opens: tuple[tuple[int, int], ...]
    of_processes: tuple[int, ...]
    of_groups: tuple[tuple[int, int], ...]
    set_xattrs: tuple[int, ...]
    ipc: tuple[int, ...]
    keys: tuple[int, ...]


_MACHINES = {
    "x86_64": _Machine(
        audit=0xC000003E, seccomp=317, socket=41, socketpair=53, ioctl=16, truncate=76,
        opens=((2, 1), (257, 2)),  # open, openat
        of_processes=(302, 142, 144, 314),  # prlimit64, sched_setparam, sched_setscheduler, sched_setattr
        of_groups=((141, 2), (251, 3)),  # setpriority, ioprio_set
        set_xattrs=(188, 189, 190, 197, 198, 199),
        ipc=(29, 30, 31, 64, 65, 66, 68, 69, 70, 71, 220, 240, 241),  # shm, sem and msg calls, mq_open, mq_unlink
        keys=(248, 249, 250),
    ),
    "aarch64": _Machine(
        audit=0xC00000B7, seccomp=277, socket=198, socketpair=199, ioctl=29, truncate=45,
        opens=((56, 2),),
        of_processes=(261, 118, 119, 274),
        of_groups=((140, 2), (30, 3)),
        set_xattrs=(5, 6, 7, 14, 15, 16),
        ipc=(194, 196, 195, 190, 193, 191, 186, 189, 188, 187, 192, 180, 181),
        keys=(217, 218, 219),
    ),
}  # fmt: skip

_NEW_ATTRIBUTE_CALLS = (463, 466, 469)
"""setxattrat, removexattrat, file_setattr: programs use the older ones if a kernel does not have these."""
_IO_URING = 425
"""Its operations pass no filter."""
_OPENAT2 = 437
"""Its flags are in memory, where no filter can read them."""
_X32 = 0x40000000

_FILE_SYSTEM_IOCTLS = (0x5800, 0x6600, 0x7600, 0x9400, 0xBC00, 0xF500)
"""By the second byte: flags, versions, encryption, subvolumes. Many work on files that are only open for reading."""
_HARMLESS_IOCTLS = (0x80086601, 0x80087601, 0x801C581F, 0xC020660B, 0x40049409, 0x4020940D)
"""Those that read flags, version and extents, and reflinks, whose target has to be open for writing."""

_LOAD, _EQUAL, _AT_LEAST, _RETURN, _AND = 0x20, 0x15, 0x35, 0x06, 0x54
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_ALLOW, _ASK, _REFUSE = 0x7FFF0000, 0x7FC00000, 0x00050000
_SET_FILTER, _NEW_LISTENER = 1, 8
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET = 1, 5
_ALL_BITS = 0xFFFFFFFF


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
    blocks = _list_blocks(os.uname().machine, network=network)
    how = (ctypes.c_ulong(_SET_FILTER), ctypes.c_ulong(_NEW_LISTENER))
    return _install(blocks, how)


def install_shared_filter(*, network: bool) -> None:
    """Refuse calls for what all namespaces share, or what the namespaces of this process should not reach.

    Keyrings of the kernel belong to no namespace, so a command could change those of its user. Some networks have no
    namespace either, such as that of a virtual machine and its host. no_new_privs has to be set.
    """
    machine = _MACHINES[os.uname().machine]
    blocks = _refuse_calls(machine.keys, errno.EACCES)
    if not network:
        families = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)
        allowed = _choose((0, _ALL_BITS, families, _ALLOW), otherwise=_REFUSE | errno.EAFNOSUPPORT)
        blocks += [_Block(machine.socket, allowed), *_refuse_calls((_IO_URING,), errno.ENOSYS)]
    _install(blocks, (ctypes.c_ulong(_SET_FILTER), ctypes.c_ulong(0)))


def _install(blocks: Sequence[_Block], how: tuple[ctypes.c_ulong, ctypes.c_ulong]) -> int:
    machine = os.uname().machine
    program = _build(machine, blocks)
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    return call(_MACHINES[machine].seccomp, *how, header, what="seccomp")


def _build(name: str, blocks: Sequence[_Block]) -> list[tuple[int, int, int, int]]:
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


def _list_blocks(name: str, *, network: bool) -> list[_Block]:
    machine = _MACHINES[name]
    blocks = [_Block(number, [(_RETURN, 0, 0, _ASK)]) for number in ATTRIBUTE_CALLS[name]]
    for numbers, error in (
        (machine.set_xattrs, errno.EOPNOTSUPP),
        ((*_NEW_ATTRIBUTE_CALLS, _IO_URING), errno.ENOSYS),
        ((*machine.ipc, *machine.keys), errno.EACCES),
    ):
        blocks += _refuse_calls(numbers, error)
    denied, refused = _REFUSE | errno.EPERM, _REFUSE | errno.EACCES
    caller = (_ALL_BITS, (0,), _ALLOW)
    blocks += [_Block(number, _choose((0, *caller), otherwise=denied)) for number in machine.of_processes]
    for number, user in machine.of_groups:
        blocks.append(_Block(number, _choose((0, _ALL_BITS, (user,), denied), (1, *caller), otherwise=denied)))
    file_systems = _choose((1, _ALL_BITS, _HARMLESS_IOCTLS, _ALLOW), (1, 0xFF00, _FILE_SYSTEM_IOCTLS, denied))
    blocks.append(_Block(machine.ioctl, file_systems))
    no_unix = _choose((0, _ALL_BITS, (_AF_UNIX,), refused))
    blocks.append(_Block(machine.socket, no_unix if network else [(_RETURN, 0, 0, refused)]))
    # a pair of sockets for datagrams could send to any other socket, although both have a partner
    streams = _choose((1, 0xF, (_SOCK_STREAM, _SOCK_SEQPACKET), _ALLOW), otherwise=refused)
    blocks.append(_Block(machine.socketpair, streams))
    return blocks + (_list_truncations(machine) if read_abi() < TRUNCATE_ABI else [])


def _list_truncations(machine: _Machine) -> list[_Block]:
    """Calls that empty a file without opening it for writing, which is all that an old Landlock refuses."""
    refused = _REFUSE | errno.EACCES
    emptying = (os.O_TRUNC | os.O_RDONLY, os.O_TRUNC | os.O_ACCMODE)
    blocks = [*_refuse_calls((machine.truncate,), errno.EACCES), *_refuse_calls((_OPENAT2,), errno.ENOSYS)]
    for number, position in machine.opens:
        blocks.append(_Block(number, _choose((position, os.O_TRUNC | os.O_ACCMODE, emptying, refused))))
    return blocks


def _refuse_calls(numbers: Sequence[int], error: int) -> list[_Block]:
    return [_Block(number, [(_RETURN, 0, 0, _REFUSE | error)]) for number in numbers]


def _choose(*choices: tuple[int, int, Sequence[int], int], otherwise: int = _ALLOW) -> list[tuple[int, int, int, int]]:
    """Decide by arguments. A choice: the position, a mask, values of the masked argument, the decision for these."""
    code: list[tuple[int, int, int, int]] = []
    for position, mask, values, decision in choices:
        code += [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * position), (_AND, 0, 0, mask)]
        for value in values:
            code += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, decision)]
    return [*code, (_RETURN, 0, 0, otherwise)]
