"""What commands in namespaces see: the machine, read-only, with an overlay over the workspace.

Absolute paths lead into the copy, since it is mounted over the original. Everything that is written, also to /tmp and
/dev/shm, is in one tmpfs of limited size, which ends with the last process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

from promptiter.sandbox.supervisor.aliases import Mount, read_mounts
from promptiter.sandbox.supervisor.files import find_mode
from promptiter.sandbox.supervisor.mounts import (
    DETACH,
    NO_DEVICES,
    NO_SUID,
    READ_ONLY,
    attach_tree,
    clone_tree,
    make_private,
    set_flags,
)
from promptiter.sandbox.supervisor.syscalls import mount, unmount

SCRATCH = {"/tmp": "tmp", "/var/tmp": "var_tmp", "/dev/shm": "shm"}  # noqa: S108 - they become private
"""Folders where everybody may write, and what they are called in the tmpfs."""

EMPTY_FILE, EMPTY_FOLDER = "/dev/empty/file", "/dev/empty/folder"
"""What is mounted over hidden paths."""

_SAFE = NO_SUID | NO_DEVICES
DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
_BYTES_PER_INODE = 4096


class OverlayRefusedError(OSError):
    """This folder cannot be under an overlay here."""


def mount_view(
    root: str, *, copy: str | None, visible: Iterable[str], sockets: Iterable[str], disk_bytes: int
) -> tuple[int, int]:
    """Mount everything. Returns descriptors of the upper and the lower layer.

    If there is a `copy`, it is mounted instead of an overlay. `visible` are paths below the scratch folders that
    commands need.
    """
    make_private()
    original = clone_tree(root, flags=_SAFE | READ_ONLY)
    copied = None if copy is None else clone_tree(copy, flags=_SAFE)
    shown = [(path, *_keep_entry(path)) for path in find_entries(visible)]
    devices = [(name, clone_tree(f"/dev/{name}", flags=NO_SUID)) for name in DEVICES]
    scratch = [folder for folder in SCRATCH if os.path.isdir(folder) and not os.path.islink(folder)]
    set_flags("/", _SAFE | READ_ONLY, recursive=True)

    stage = _mount_stage(disk_bytes)
    attach_tree(original, f"{stage}/lower")
    if copied is None:
        _mount_overlay(stage)
    else:
        attach_tree(copied, f"{stage}/merged")
    upper, lower = (os.open(f"{stage}/{name}", os.O_RDONLY | os.O_DIRECTORY) for name in ("upper", "lower"))
    merged = clone_tree(f"{stage}/merged")
    folders = {name: clone_tree(f"{stage}/{name}") for name in ("dev", *SCRATCH.values())}
    unmount(os.fsencode(stage), DETACH)

    _mount_devices(folders.pop("dev"), devices)
    for folder in scratch:
        if folder != root:
            attach_tree(folders.pop(SCRATCH[folder]), folder)
    for path, tree, target in shown:
        _show_entry(path, tree, target)
    for tree in folders.values():
        os.close(tree)
    set_flags("/dev", READ_ONLY)
    mount(b"proc", b"/proc", b"proc")
    set_flags("/proc", _SAFE | READ_ONLY)
    attach_tree(merged, root)
    _cover_sockets(sockets)
    return upper, lower


def list_sockets() -> list[str]:
    """Paths of the sockets of this machine's services: who can connect to one can have things done elsewhere."""
    try:
        with open("/proc/net/unix", errors="surrogateescape") as opened:
            rows = [line.rstrip("\n").split(" ", 7) for line in opened]
    except OSError:
        rows = []
    known = {row[-1].strip() for row in rows if row[-1].lstrip().startswith("/")}
    return sorted(known.union(_find_sockets("/run", read_mounts())))


def _find_sockets(start: str, mounts: Iterable[Mount]) -> Iterator[str]:
    """Sockets below a folder by their files: the kernel only knows the names that they got first."""
    foreign = {mount.place for mount in mounts if mount.kind != "tmpfs"}
    for folder, folders, names in os.walk(start):
        folders[:] = [name for name in folders if f"{folder}/{name}" not in foreign]
        for name in names:
            path = f"{folder}/{name}"
            if stat.S_ISSOCK(find_mode(path)):
                yield path


def find_entries(visible: Iterable[str]) -> list[str]:
    """The first folders below the scratch folders that lead to these paths."""
    found = set()
    for path in visible:
        for folder in SCRATCH:
            if path.startswith(f"{folder}/"):
                found.add(f"{folder}/{path[len(folder) + 1 :].split('/')[0]}")
    return sorted(found)


def _keep_entry(path: str) -> tuple[int, str]:
    """What is at a path: a tree that can be mounted again, or the target of a symbolic link."""
    try:
        if os.path.islink(path):
            return -1, os.readlink(path)
        return clone_tree(path, flags=_SAFE | READ_ONLY), ""
    except FileNotFoundError:
        return -1, ""


def _show_entry(path: str, tree: int, target: str) -> None:
    if target:
        os.symlink(target, path)
    elif tree >= 0:
        make_mount_point(path, like=os.fstat(tree).st_mode)
        attach_tree(tree, path)


def make_mount_point(path: str, *, like: int) -> None:
    """An empty folder or file, on which a folder or file can be mounted."""
    if stat.S_ISDIR(like):
        os.mkdir(path, 0o755)
    else:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))


def _mount_stage(disk_bytes: int) -> str:
    """The tmpfs, at a place that it leaves again."""
    stage = next(folder for folder in ("/tmp", "/dev/shm", "/mnt") if os.path.isdir(folder))  # noqa: S108
    inodes = min(1_000_000, max(20_000, disk_bytes // _BYTES_PER_INODE))
    options = f"size={disk_bytes},nr_inodes={inodes},mode=0755"
    mount(b"tmpfs", os.fsencode(stage), b"tmpfs", 2 | 4, options.encode())
    for name in ("lower", "upper", "work", "merged", "dev", "dev/pts", "dev/shm", "dev/empty"):
        os.mkdir(f"{stage}/{name}")
    os.mkdir(f"{stage}{EMPTY_FOLDER}")
    make_mount_point(f"{stage}{EMPTY_FILE}", like=stat.S_IFREG)
    for name in SCRATCH.values():
        os.mkdir(f"{stage}/{name}")
        os.chmod(f"{stage}/{name}", 0o1777)  # noqa: S103 - as /tmp is everywhere
    for name in DEVICES:
        make_mount_point(f"{stage}/dev/{name}", like=stat.S_IFREG)
    for name, target in _LINKS.items():
        os.symlink(target, f"{stage}/dev/{name}")
    return stage


def _mount_overlay(stage: str) -> None:
    """The copy: what is written goes to the upper layer. The folder itself keeps its owner and mode."""
    original = os.stat(f"{stage}/lower")
    os.chmod(f"{stage}/upper", stat.S_IMODE(original.st_mode))
    try:
        os.chown(f"{stage}/upper", original.st_uid, original.st_gid)
    except OSError:  # another user's folder
        pass
    options = f"lowerdir={stage}/lower,upperdir={stage}/upper,workdir={stage}/work,userxattr"
    try:
        mount(b"overlay", f"{stage}/merged".encode(), b"overlay", 2 | 4, options.encode())
    except OSError as error:
        raise OverlayRefusedError(error.errno, str(error)) from error


def _mount_devices(tree: int, devices: list[tuple[str, int]]) -> None:
    attach_tree(tree, "/dev")
    for name, device in devices:
        attach_tree(device, f"/dev/{name}")
    mount(b"devpts", b"/dev/pts", b"devpts", 2 | 8, b"newinstance,ptmxmode=0666,mode=0620")


def _cover_sockets(paths: Iterable[str]) -> None:
    """Mount something else over each socket, so that nothing can connect to it."""
    for path in paths:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                attach_tree(clone_tree("/dev/null"), path)
        except OSError:  # it is gone, or was never visible here
            continue
