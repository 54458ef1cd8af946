"""The runs in a folder: how each ended and what it cost. Reads the header and the last event of each run."""

from __future__ import annotations

import os
from pathlib import Path

from promptiter.errors import SetupError, nearest
from promptiter.runs.app_list import list_apps
from promptiter.runs.folder_store import read_run
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.run_list import ListedRun
from promptiter.wording import join_names

MAX_NAMED = 5
"""Maximum number of runs that an error names if several match."""


def list_runs(folder: str | os.PathLike[str]) -> list[ListedRun]:
    """List the runs of a folder, oldest first. A run that cannot be read is listed as `unreadable`."""
    return [read_run(path.parent) for path in sorted(Path(folder).glob(f"*/{HEADER}"))]


def find_run(run: str, folder: str | os.PathLike[str]) -> Path:
    """Find the folder of a run by its path, its id, a part of its id, or `latest`; SetupError if none matches."""
    if (Path(run) / HEADER).is_file():
        return Path(run)
    if Path(run).is_dir() and any(Path(run).glob(f"*/{HEADER}")):
        run, folder = "latest", run
    known = sorted(path.parent.name for path in Path(folder).glob(f"*/{HEADER}"))
    matching = [name for name in known if run in name] if run != "latest" else known[-1:]
    if run in known or len(matching) == 1:
        return Path(folder) / (run if run in known else matching[0])
    if matching:
        raise SetupError(f"{run!r} matches {join_names(matching, limit=MAX_NAMED)}; give more of the name")
    if run == "latest" or Path(run).is_dir():
        where = os.fspath(folder) if run == "latest" else run
        if apps := list_apps(where):
            first = str(Path(where) / apps[0])
            names = join_names(apps, limit=MAX_NAMED)
            raise SetupError(f"there are no runs outside an app in {where!r}; it has the apps {names}: name {first!r}")
        raise SetupError(f"there are no runs in {where!r}; give the path of a run's folder")
    hint = nearest(run, known) or "; give the path of a run's folder"
    raise SetupError(f"there is no run {run!r} in {os.fspath(folder)!r}{hint}")
