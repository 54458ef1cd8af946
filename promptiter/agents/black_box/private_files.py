"""Files that only this user can read, in a folder of their own that is removed afterwards.

A process that is killed cannot remove its folders. The next one does: a folder is locked while it is in use, and the
lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

PREFIX = "promptiter-private-"
_FRESH_S = 60.0
"""A younger folder may not be locked yet."""


@contextmanager
def make_private_folder() -> Iterator[Path]:
    """A folder that only this user can read, for as long as the block."""
    _remove_abandoned(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as folder:  # 0700
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield Path(folder)
        finally:
            os.close(handle)


@contextmanager
def write_private_files(texts: Mapping[str, str]) -> Iterator[dict[str, Path]]:
    """Write each text to a file, and return the paths by name. No name can lead out of the folder."""
    if not texts:
        yield {}
        return
    with make_private_folder() as folder:
        files = {}
        for number, (name, text) in enumerate(sorted(texts.items()), 1):
            files[name] = folder / f"{number}_{quote(name, safe='')[:100]}.txt"
            handle = os.open(files[name], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "wb") as file:
                file.write(text.encode(errors="replace"))
        yield files


@cache
def _remove_abandoned(parent: str) -> None:
    """Remove the folders of processes that were killed; once in each process."""
    for folder in Path(parent).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, in use, or removed meanwhile
            if time.time() - folder.lstat().st_mtime > _FRESH_S:
                _remove_if_unused(folder)


def _remove_if_unused(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(handle)
