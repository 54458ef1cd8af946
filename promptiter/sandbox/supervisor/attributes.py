"""Changes of modes, owners and times that commands ask for: made for files of the copy, refused for all others.

The supervisor opens the file, looks where it is, and changes what it opened. So nothing that the command does
meanwhile leads elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from typing import NamedTuple

from promptiter.sandbox.supervisor.seccomp import ATTRIBUTE_CALLS

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
_REQUEST, _RESPONSE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_HERE, _NO_FOLLOW, _EMPTY_PATH = -100, 0x100, 0x1000
_NOW, _OMIT = (1 << 30) - 1, (1 << 30) - 2
_MAX_PATH = 4096
_SECOND = 1_000_000_000


class _Call(NamedTuple):
    """A call of a command that waits for its answer."""

    id: int
    process: int
    name: str
    arguments: tuple[int, ...]


class AttributeChanges:
    """Answers the calls that arrive at a listener. `folders` are those in which files may be changed."""

    def __init__(self, listener: int, folders: tuple[str, ...]) -> None:
        self.listener = listener
        self._folders = folders

    def answer(self) -> None:
        """Answer one call."""
        buffer = bytearray(_REQUEST.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, buffer, True)
            identity, process, _, number, _, _, *arguments = _REQUEST.unpack(buffer)
            name = ATTRIBUTE_CALLS[os.uname().machine][number]
            error = self._attempt(_Call(identity, process, name, tuple(arguments)))
            fcntl.ioctl(self.listener, _SEND, bytearray(_RESPONSE.pack(identity, 0, -error, 0)), True)
        except OSError:  # its process has ended
            return

    def close(self) -> None:
        os.close(self.listener)

    def _attempt(self, call: _Call) -> int:
        """Make the change. Returns an error number, or 0."""
        try:
            file = _open(call)
        except OverflowError:  # no address
            return errno.EFAULT
        except (OSError, ValueError) as error:
            return getattr(error, "errno", None) or errno.EPERM
        try:
            times = _read_times(call)
            fcntl.ioctl(self.listener, _IS_VALID, struct.pack("=Q", call.id))  # what was read is of this process
            place = f"/proc/self/fd/{file}"
            if not any(f"{os.readlink(place)}/".startswith(f"{folder}/") for folder in self._folders):
                return errno.EPERM
            _change(call, place, times)
        except OverflowError:  # no address, or no time
            return errno.EINVAL
        except OSError as error:
            return error.errno or errno.EPERM
        finally:
            os.close(file)
        return 0


def _change(call: _Call, place: str, times: tuple[int, int] | None) -> None:
    values = [_to_signed(each) for each in call.arguments]
    if "chmod" in call.name:
        os.chmod(place, (values[2] if "at" in call.name else values[1]) & 0o7777)
    elif "chown" in call.name:
        user, group = values[2:4] if call.name == "fchownat" else values[1:3]
        if user not in {-1, os.getuid()} or group not in {-1, *os.getgroups(), os.getgid()}:
            raise PermissionError(errno.EPERM, "another user")
        os.chown(place, user, group)
    else:
        found = os.stat(place)
        before, now = (found.st_atime_ns, found.st_mtime_ns), time.time_ns()
        first, second = times or (-_NOW, -_NOW)
        new = [
            now if each == -_NOW else old if each == -_OMIT else each
            for each, old in zip((first, second), before, strict=True)
        ]
        os.utime(place, ns=(new[0], new[1]))


def _open(call: _Call) -> int:
    """The file that a call names, as a descriptor that cannot be used for anything else."""
    first, second = call.arguments[:2]
    if call.name in {"fchmod", "fchown"}:
        return os.open(f"/proc/{call.process}/fd/{_to_signed(first)}", os.O_PATH | os.O_CLOEXEC)
    is_at = call.name.endswith(("at", "at2"))
    folder, address = (_to_signed(first), second) if is_at else (_HERE, first)
    place = f"/proc/{call.process}/" + ("cwd" if folder == _HERE else f"fd/{folder}")
    path = _read_path(call.process, address) if address else ""
    if not path:
        if address and not _read_flags(call) & _EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "empty path")
        return os.open(place, os.O_PATH | os.O_CLOEXEC)
    for own in ("/proc/self/", "/proc/thread-self/"):
        if path.startswith(own):
            path = f"/proc/{call.process}/{path[len(own) :]}"
    if path.startswith("/dev/fd/"):
        path = f"/proc/{call.process}/fd/{path[8:]}"
    follows = call.name != "lchown" and not _read_flags(call) & _NO_FOLLOW
    how = os.O_PATH | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    start = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        return os.open(path, how, dir_fd=start)
    finally:
        os.close(start)


def _read_flags(call: _Call) -> int:
    position = {"fchmodat2": 3, "fchownat": 4, "utimensat": 3}.get(call.name)
    return 0 if position is None else call.arguments[position] & 0xFFFFFFFF


def _read_times(call: _Call) -> tuple[int, int] | None:
    """Nanoseconds, or the negative number that stands for now, or for no change. None if no times are given."""
    position = {"utime": 1, "utimes": 1, "futimesat": 2, "utimensat": 2}.get(call.name)
    if position is None or not call.arguments[position]:
        return None
    address = call.arguments[position]
    if call.name == "utime":
        first, second = struct.unpack("@ll", _read_memory(call.process, address, 16))
        return first * _SECOND, second * _SECOND
    values = struct.unpack("@llll", _read_memory(call.process, address, 32))
    pairs = (values[:2], values[2:])
    if call.name != "utimensat":
        first, second = (seconds * _SECOND + micros * 1000 for seconds, micros in pairs)
        return first, second
    first, second = (-nanos if nanos in {_NOW, _OMIT} else seconds * _SECOND + nanos for seconds, nanos in pairs)
    return first, second


def _read_path(process: int, address: int) -> str:
    """The text at an address. It may end at the end of a page, after which nothing can be read."""
    found = b""
    while b"\0" not in found:
        if len(found) >= _MAX_PATH:
            raise OSError(errno.ENAMETOOLONG, "path")
        at = address + len(found)
        found += _read_memory(process, at, 4096 - at % 4096)
    return os.fsdecode(found.partition(b"\0")[0])


def _read_memory(process: int, address: int, size: int) -> bytes:
    handle = os.open(f"/proc/{process}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.pread(handle, size, address)
    finally:
        os.close(handle)
    if len(found) != size:
        raise OSError(errno.EFAULT, "memory")
    return found


def _to_signed(value: int) -> int:
    """A C int in the register of a call."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value
