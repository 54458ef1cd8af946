"""A copy of a folder, by reflinks where the file system has them."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Collection

_CLONE = 0x40049409
"""FICLONE of Linux."""
_CHUNK = 1 << 30


def copy_tree(source: str, target: str, *, skipped: Collection[str] = ()) -> None:
    """Copy what is in a folder into another one that exists, without the skipped relative paths.

    Modes and times are kept, sockets and devices are left out, and so is what this user cannot read.
    """
    folders = [""]
    times: list[tuple[str, os.stat_result]] = []
    while folders:
        folder = folders.pop()
        times.append((f"{target}/{folder}", os.stat(f"{source}/{folder}")))
        try:
            entries = list(os.scandir(f"{source}/{folder}"))
        except PermissionError:
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            if path in skipped:
                continue
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(f"{target}/{path}", 0o700)
                folders.append(f"{path}/")
            else:
                copy_file(entry.path, f"{target}/{path}")
    for folder, found in reversed(times):
        os.utime(folder, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.chmod(folder, stat.S_IMODE(found.st_mode) | 0o700)


def copy_file(source: str, target: str) -> None:
    """Copy a file, a symbolic link or a pipe, with its mode and times."""
    found = os.lstat(source)
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(target, stat.S_IMODE(found.st_mode))
    elif stat.S_ISREG(found.st_mode):
        try:
            reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
        except PermissionError:
            return
        writing = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _copy_content(reading, writing)
            os.fchmod(writing, stat.S_IMODE(found.st_mode))
            os.utime(writing, ns=(found.st_atime_ns, found.st_mtime_ns))
        finally:
            os.close(reading)
            os.close(writing)


def _copy_content(reading: int, writing: int) -> None:
    if reflink(reading, writing):
        return
    try:
        while os.copy_file_range(reading, writing, _CHUNK):
            pass
    except (OSError, AttributeError) as error:
        if getattr(error, "errno", errno.ENOSYS) not in {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}:
            raise
        while part := os.read(reading, 1 << 20):
            os.write(writing, part)


def reflink(reading: int, writing: int) -> bool:
    """Let one file share the blocks of another one until either is written to; False if the file system cannot."""
    try:
        fcntl.ioctl(writing, _CLONE, reading)
    except OSError:
        return False
    return True
