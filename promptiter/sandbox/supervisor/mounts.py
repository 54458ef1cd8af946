"""Mounts by descriptor: a tree is cloned, gets its flags while no process can see it, and is then attached."""

from __future__ import annotations

import ctypes
import os
import struct

from promptiter.sandbox.supervisor.syscalls import call, mount

READ_ONLY, NO_SUID, NO_DEVICES = 1, 2, 4
MS_REC, MS_PRIVATE = 16384, 1 << 18
DETACH = 2

_OPEN_TREE, _MOVE_MOUNT, _SET_ATTRIBUTES = 428, 429, 442
_HERE, _EMPTY_PATH, _RECURSIVE, _CLONE = -100, 0x1000, 0x8000, 1
_FROM_DESCRIPTOR = 4


def clone_tree(path: str, *, flags: int = 0) -> int:
    """A copy of what is mounted at a path, as a descriptor, with these flags everywhere in it."""
    how = ctypes.c_uint(_CLONE | os.O_CLOEXEC | _RECURSIVE)
    tree = call(_OPEN_TREE, ctypes.c_int(_HERE), os.fsencode(path), how, what=f"open_tree {path}")
    if flags:
        try:
            _set_flags(tree, b"", flags, _EMPTY_PATH | _RECURSIVE)
        except OSError:
            os.close(tree)
            raise
    return tree


def attach_tree(tree: int, path: str) -> None:
    """Mount a cloned tree at a path."""
    arguments = (ctypes.c_int(tree), b"", ctypes.c_int(_HERE), os.fsencode(path), ctypes.c_uint(_FROM_DESCRIPTOR))
    try:
        call(_MOVE_MOUNT, *arguments, what=f"mount on {path}")
    finally:
        os.close(tree)


def set_flags(path: str, flags: int, *, recursive: bool = False) -> None:
    """Set flags of the mount at a path, and of all mounts in it."""
    _set_flags(_HERE, os.fsencode(path), flags, _RECURSIVE if recursive else 0)


def make_private() -> None:
    """No mount of this process appears elsewhere, and none of elsewhere appears here."""
    mount(b"none", b"/", b"none", MS_REC | MS_PRIVATE)


def _set_flags(folder: int, path: bytes, flags: int, how: int) -> None:
    attributes = struct.pack("=QQQQ", flags, 0, 0, 0)
    arguments = (ctypes.c_int(folder), path, ctypes.c_uint(how), attributes, ctypes.c_size_t(len(attributes)))
    call(_SET_ATTRIBUTES, *arguments, what=f"mount_setattr {os.fsdecode(path)}")
