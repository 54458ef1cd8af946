"""Copies of runs that are in a database: a refinement is made of files, so its run becomes a folder beside the project.

refined_runs/<app>/<run_id>/     the run, as `promptiter export` writes it, and its refinements
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from promptiter.concurrency import run_in_thread
from promptiter.manager import Manager
from promptiter.manager.app import ConfiguredApp
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.folder_store import FolderView
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.run_copy import FILES, copy_run
from promptiter.runs.store import RunView

COPIES = "refined_runs"


@dataclass(frozen=True, slots=True)
class RefinedCopies:
    """Where the refinements of runs are: in the folder of a run, or in that of its copy."""

    manager: Manager

    def find(self, app: str, view: RunView) -> Path | None:
        """The folder of a run, or of its copy, which may not exist yet. None if the app has no project for it."""
        return view.path if isinstance(view, FolderView) else self._locate(app, view.header.run_id)

    async def update(self, view: RunView, folder: Path) -> None:
        """Copy a run that is in a database, unless its folder has all of it. OSError or SetupError if it cannot."""
        if isinstance(view, FolderView):
            return
        last = await view.last()
        copied = await FileJournal(folder / JOURNAL).last() if (folder / HEADER).is_file() else None
        if copied is not None and last is not None and copied.seq == last.seq:
            return
        await run_in_thread(lambda: folder.parent.mkdir(parents=True, exist_ok=True))
        part = await run_in_thread(lambda: Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)))
        try:
            await copy_run(view, part / "run")
            await run_in_thread(lambda: _move(part / "run", folder))
        finally:
            await run_in_thread(lambda: shutil.rmtree(part, ignore_errors=True))

    def remove(self, apps: Iterable[str], run_ids: Iterable[str]) -> None:
        """Remove the copies of runs that were deleted; blocking."""
        apps = list(apps)
        for folder in (self._locate(app, run_id) for run_id in run_ids for app in apps):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _locate(self, app: str, run_id: str) -> Path | None:
        managed = self.manager.apps.get(app)
        if not isinstance(managed, ConfiguredApp) or Path(run_id).name != run_id:
            return None
        return managed.file.absolute().parent / COPIES / app / run_id


def _move(source: Path, folder: Path) -> None:
    """Move the files of a copy. The events and the header come last: with them it is complete."""
    folder.mkdir(exist_ok=True)
    for name in (*reversed(FILES), HEADER):
        if (source / name).exists():
            (source / name).replace(folder / name)
