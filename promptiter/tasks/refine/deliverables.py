"""Deliverables: copying them, finding them, and the folders of an iteration.

Copies are reflinks where the file system has them, never hard links: an iteration that writes into its input must not
change the deliverable of the run before. Symbolic links are left out, because they may lead anywhere.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.sandbox.supervisor.copying import reflink

FINAL = "FINAL"
OUTPUT = "output"
DEEPEST = 100
LONGEST_NAME = 255
"""Bytes in the name of a file or folder, on all common file systems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFolders:
    """Where an iteration runs: its folder, the prior deliverable, its own, and the record of its run."""

    root: Path
    input: Path
    output: Path
    run_dir: Path

    @staticmethod
    def of(work: Path, *, number: int, run_id: str) -> IterationFolders:
        """The folders of an iteration below the folder of its session. Nothing is created."""
        root = work / f"iter_{number}"
        return IterationFolders(
            root=root,
            input=root / "input",
            output=root / OUTPUT / run_id,
            run_dir=root / "workspace" / "runs" / run_id,
        )

    def prepare(self, deliverable: Path) -> None:
        """Create the folders, with a copy of the prior deliverable as input."""
        self.root.mkdir(parents=True)
        copy_tree(deliverable, self.input)
        self.output.mkdir(parents=True)
        self.run_dir.mkdir(parents=True)


def list_files(folder: Path) -> list[str]:
    """The regular files below a folder, as relative paths, sorted. Symbolic links are left out."""
    return sorted(path.relative_to(folder).as_posix() for path in _walk(folder))


def copy_tree(source: Path, target: Path, *, sync: bool = False) -> None:
    """Copy the regular files of a folder into another one, which is created. With `sync`, they survive a power loss."""
    target.mkdir(parents=True, exist_ok=True)
    for path in _walk(source):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy_file(path, copy, sync=sync)


def copy_file(source: Path, target: Path, *, sync: bool = False) -> None:
    """Copy a file with its permissions: as a reflink if the file system can, otherwise byte for byte."""
    with source.open("rb") as old, target.open("wb") as new:
        if not reflink(old.fileno(), new.fileno()):
            shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fchmod(new.fileno(), (os.fstat(old.fileno()).st_mode & 0o777) | 0o600)
        if sync:
            os.fsync(new.fileno())


def find_deliverable(run_dir: Path, *run_ids: str) -> Path | None:
    """The FINAL folder of a run. Without one, it is made of the output of the run; None if there is neither.

    A run that another program made for us may have an id of its own besides the one that it was given.
    """
    final = run_dir / FINAL
    if has_files(final):
        return final
    for output in (output for run_id in run_ids for output in _list_outputs(run_dir, run_id)):
        if has_files(output) and not output.parent.is_symlink():
            place_copy(final, partial(copy_tree, output))
            return final
    return None


def has_files(folder: Path) -> bool:
    """Whether this is a folder with files. A symbolic link is not: it may lead anywhere."""
    return folder.is_dir() and not folder.is_symlink() and bool(list_files(folder))


def require_deliverable(run_dir: Path, run_id: str) -> Path:
    """`find_deliverable` for a seed; SetupError if there is none."""
    found = find_deliverable(run_dir, run_id)
    if found is None:
        raise SetupError(
            f"{str(run_dir)!r} has no deliverable: neither {FINAL}/ nor {OUTPUT}/{run_id}/ has files, links aside; "
            f"put what should be refined into {FINAL}/"
        )
    return found


def _list_outputs(run_dir: Path, run_id: str) -> Iterator[Path]:
    """Where the output of a run may be: in its folder, or in one above it under its id."""
    run_dir = run_dir.absolute()
    if can_name_folder(run_id):
        for folder in (run_dir, *run_dir.parents):
            yield folder / OUTPUT / run_id
    yield run_dir / OUTPUT


def can_name_folder(run_id: str) -> bool:
    """Whether an id that another program wrote can be the name of a folder, and leads nowhere else."""
    return Path(run_id).name == run_id and run_id not in ("", ".", "..") and len(os.fsencode(run_id)) <= LONGEST_NAME


def place_copy(target: Path, fill: Callable[[Path], None]) -> None:
    """Let a folder appear with all of its files at once. If another process is faster, its copy is kept."""
    part = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        part.chmod(0o755)
        fill(part)
        try:
            part.rename(target)
        except OSError:
            if not has_files(target):
                raise
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _walk(folder: Path, depth: int = 0) -> Iterator[Path]:
    if depth > DEEPEST:
        raise SetupError(f"the deliverable has folders that are more than {DEEPEST} deep: {str(folder)[:200]!r}...")
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            continue
        if path.is_dir():
            yield from _walk(path, depth + 1)
        elif path.is_file():
            yield path
