"""BEST: the best deliverable so far, with a manifest. It only ever improves, and is old or new at every instant.

The new folder is written beside it and takes its place in one step: an exchange of both names where the file system has
one, otherwise BEST is a symbolic link that is replaced. A writer that was killed leaves a hidden folder behind, which
the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from promptiter.sources.file import exchange_files, sync_folder
from promptiter.tasks.refine.deliverables import copy_file, copy_tree, list_files

BEST = "BEST"
MANIFEST = "manifest.json"
KEPT = "BEST.before_"
_HIDDEN = ".BEST."
_LOCK = ".BEST.lock"


class BestManifest(BaseModel):
    """Which iteration BEST is from, and how much better than the seed it is."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    best_run_id: str
    best_loss: float
    seed_loss: float
    session_id: str
    seed_run_id: str = ""
    best_iter: int = 0
    delta: float = 0.0
    run_dir: str = ""
    """The folder of the winning run, relative to the one that BEST is in."""


def read_manifest(home: Path) -> BestManifest | None:
    """The manifest of BEST; None if there is no BEST, or one that no refinement wrote."""
    file = home / BEST / MANIFEST
    try:
        return BestManifest.model_validate_json(file.read_bytes()) if file.is_file() else None
    except (OSError, ValidationError):
        return None


def write_best(home: Path, deliverable: Path, manifest: BestManifest) -> bool:
    """Let BEST be this deliverable, if its loss is strictly lower than that of BEST. Returns whether it was.

    A folder or file of that name that no refinement wrote is kept as BEST.before_<session>.
    """
    home.mkdir(parents=True, exist_ok=True)
    with _locked(home):
        best = home / BEST
        _remove_leftovers(home, keep=best.readlink().name if best.is_symlink() else "")
        incumbent = read_manifest(home)
        if incumbent is not None and incumbent.best_loss <= manifest.best_loss:
            return False
        if incumbent is None and best.is_dir() and list_files(best) not in ([], [MANIFEST]):
            copy_tree(best, home / f"{KEPT}{manifest.session_id}", sync=True)
        elif best.is_file():
            copy_file(best, home / f"{KEPT}{manifest.session_id}", sync=True)
        new = home / f"{_HIDDEN}{manifest.session_id}.{manifest.best_iter}"
        _fill(new, deliverable, manifest)
        _replace(best, new)
        sync_folder(home)
        _remove_leftovers(home, keep=new.name if best.is_symlink() else "")
    return True


def _fill(folder: Path, deliverable: Path, manifest: BestManifest) -> None:
    """Write all of the new BEST, and make it survive a power loss."""
    copy_tree(deliverable, folder, sync=True)
    own = folder / MANIFEST
    if own.exists():  # a file of the deliverable
        own.rename(folder / f"deliverable_{MANIFEST}")
    with own.open("wb") as file:
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        file.write(orjson.dumps(manifest.model_dump(mode="json"), option=options))
        file.flush()
        os.fsync(file.fileno())
    for path in (folder, *(each for each in folder.rglob("*") if each.is_dir())):
        sync_folder(path)


def _replace(best: Path, new: Path) -> None:
    """Let a folder take the place of BEST in one step."""
    if best.is_symlink() or (not best.exists() and not can_exchange(best.parent)):
        link = best.with_name(f"{_HIDDEN}link")
        link.symlink_to(new.name)
        link.replace(best)
    elif not best.exists():
        new.rename(best)
    elif not exchange_files(new, best):  # a BEST that came from another file system: there is no single step
        best.rename(best.with_name(f"{_HIDDEN}old"))
        new.rename(best)


def can_exchange(folder: Path) -> bool:
    """Whether the file system of a folder can exchange two names in one step."""
    one, other = (folder / f"{_HIDDEN}probe.{each}" for each in "ab")
    one.touch()
    other.touch()
    try:
        return exchange_files(one, other)
    finally:
        one.unlink()
        other.unlink()


def _remove_leftovers(home: Path, *, keep: str) -> None:
    """Remove hidden folders of BEST, except the one that it leads to. Without a BEST, an old one is put back."""
    if (old := home / f"{_HIDDEN}old").is_dir() and not (home / BEST).exists():
        old.rename(home / BEST)
    for path in home.glob(f"{_HIDDEN}*"):
        if path.name in (keep, _LOCK):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One writer of BEST at a time, in all processes."""
    descriptor = os.open(home / _LOCK, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
