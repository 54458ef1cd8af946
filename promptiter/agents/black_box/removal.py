"""Removal of what a command left, however deep, and whatever modes its folders have.

The supervisor of a sandbox uses this too: standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def remove_tree(path: str) -> None:
    """Remove a file, or a folder with all that is in it. What cannot be removed stays.

    Folders are moved up before they are emptied: a deep path is too long to be named, and recursion has a limit.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    free_names = (f"{path}/{number}.removed" for number in range(1 << 62))
    while _empty_once(path, free_names):
        pass
    _attempt_rmdir(path)


def _empty_once(top: str, free_names: Iterator[str]) -> bool:
    """Remove what is directly in a folder. What was in folders in it is there afterwards. False if nothing moved."""
    moved = False
    for entry in _list_folder(top):
        if not entry.is_dir(follow_symlinks=False):
            moved |= _attempt_unlink(entry.path)
            continue
        for inner in _list_folder(entry.path):
            if inner.is_dir(follow_symlinks=False):
                moved |= _move(inner.path, free_names)
            else:
                moved |= _attempt_unlink(inner.path)
        moved |= _attempt_rmdir(entry.path)
    return moved


def _list_folder(folder: str) -> list[os.DirEntry[str]]:
    try:
        os.chmod(folder, 0o700)
        return list(os.scandir(folder))
    except OSError:
        return []


def _move(folder: str, free_names: Iterator[str]) -> bool:
    target = next(name for name in free_names if not os.path.lexists(name))
    try:
        os.chmod(folder, 0o700)
        os.rename(folder, target)
    except OSError:
        return False
    return True


def _attempt_unlink(path: str) -> bool:
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def _attempt_rmdir(folder: str) -> bool:
    try:
        os.rmdir(folder)
    except OSError:
        return False
    return True
