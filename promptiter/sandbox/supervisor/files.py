"""Files of a copy: those that are written into it before the first command, and those that are read from it.

No command runs meanwhile, so what was checked stays as it is. No path leads through a symbolic link.
"""

from __future__ import annotations

import os
import stat


class RefusedFileError(Exception):
    """A path that leads out of the copy, or to something that is not a file; the message says which."""


def write_file(root: str, path: str, content: bytes) -> None:
    """Write a file into the copy, and the folders above it. One that exists keeps its mode."""
    folder = root
    for name in path.split("/")[:-1]:
        folder = f"{folder}/{name}"
        if not os.path.lexists(folder):
            os.mkdir(folder)
        elif not stat.S_ISDIR(os.lstat(folder).st_mode):
            raise RefusedFileError(f"{path!r} leads through {folder[len(root) + 1 :]!r}, {describe_kind(folder)}")
    file, mode = f"{root}/{path}", 0o644
    if os.path.lexists(file):
        found = os.lstat(file).st_mode
        if not stat.S_ISREG(found):
            raise RefusedFileError(f"{path!r} is {describe_kind(file)}")
        mode = stat.S_IMODE(found)
        os.unlink(file)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(handle, left) :]
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def read_file(root: str, path: str, *, max_bytes: int) -> bytes | None:
    """The content of a file of the copy; None if there is none."""
    folder = root
    names = path.split("/")
    for number, name in enumerate(names, 1):
        folder = f"{folder}/{name}"
        try:
            mode = os.lstat(folder).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return None
        wanted = stat.S_ISREG(mode) if number == len(names) else stat.S_ISDIR(mode)
        if not wanted:
            raise RefusedFileError(f"{folder[len(root) + 1 :]!r} is {describe_kind(folder)}")
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as opened:
        content = opened.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise RefusedFileError(f"{path!r} has {os.lstat(folder).st_size:,} bytes; at most {max_bytes:,} are read")
    return content


def describe_kind(path: str) -> str:
    """What is at a path, in words."""
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISREG, "a file"), (stat.S_ISFIFO, "a pipe"))
    return next((kind for is_kind, kind in kinds if is_kind(mode)), "a socket or device")


def find_status(path: str) -> os.stat_result | None:
    """What is at a path, itself; None if nothing is."""
    try:
        return os.lstat(path)
    except OSError:
        return None


def find_mode(path: str) -> int:
    """The mode of what is at a path; 0 if nothing is."""
    found = find_status(path)
    return 0 if found is None else found.st_mode


def have_same_content(one: str, other: str) -> bool:
    """Whether two files have the same content and mode."""
    first, second = os.lstat(one), os.lstat(other)
    if not (stat.S_ISREG(first.st_mode) and first.st_mode == second.st_mode and first.st_size == second.st_size):
        return False
    with open(one, "rb", buffering=0) as left, open(other, "rb", buffering=0) as right:
        while True:
            part = left.read(1 << 20)
            if part != right.read(1 << 20):
                return False
            if not part:
                return True
