"""Files that only this user can read, in a folder of their own that is removed afterwards.

A process that is killed cannot remove its folders. The next one does: a folder is locked before it gets its name, and
the lock ends with its process.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from urllib.parse import quote

from promptiter.agents.black_box.removal import remove_tree

PREFIX = "promptiter-private-"
NEW = "promptiter-new-"
_FRESH_S = 60.0
"""A younger folder without its name may not be locked yet."""


@contextmanager
def make_private_folder() -> Iterator[Path]:
    """A folder that only this user can read, for as long as the block."""
    _remove_abandoned(tempfile.gettempdir())
    new = Path(tempfile.mkdtemp(prefix=NEW))  # 0700
    handle = os.open(new, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        folder = new.rename(new.with_name(f"{PREFIX}{new.name.removeprefix(NEW)}"))
        try:
            yield folder
        finally:
            remove_tree(str(folder))
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
    for prefix, age_s in ((PREFIX, 0.0), (NEW, _FRESH_S)):
        for folder in Path(parent).glob(f"{prefix}*"):
            with suppress(OSError):  # another user's, in use, or removed meanwhile
                if time.time() - folder.lstat().st_mtime >= age_s:
                    _remove_if_unused(folder)


def _remove_if_unused(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(str(folder))
    finally:
        os.close(handle)
