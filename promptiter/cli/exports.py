"""`promptiter export`: a run from a server or a database, as a folder of this machine."""

from __future__ import annotations

from pathlib import Path

from promptiter.cli.options import find_runs
from promptiter.cli.output import echo
from promptiter.cli.places import RunPlace
from promptiter.config.file import FILE_NAME
from promptiter.errors import SetupError
from promptiter.runs.header import read_header
from promptiter.runs.lock import find_holder
from promptiter.runs.run_copy import finish_copy, set_configuration
from promptiter.wording import path_from_here


def export_run(place: RunPlace, run_id: str, *, to: Path | None, config: Path | None) -> Path:
    """Copy a run into a folder, with its result and its report, and return its path."""
    if Path(run_id).name != run_id or run_id in (".", ".."):
        raise SetupError(f"the run {run_id!r} cannot be exported: its id cannot be the name of a folder")
    folder = (to or find_runs(None)) / run_id
    place.copy_run(run_id, folder, traces=True)
    _choose_project(folder, config)
    if (folder / "journal.jsonl").exists():
        finish_copy(folder)
    if find_holder(folder) is not None:
        echo("note: the run is in progress; this is a copy of what it has so far", err=True)
    return path_from_here(folder)


def _choose_project(folder: Path, config: Path | None) -> None:
    """Let the run belong to a project of this machine, so that it can be applied here."""
    found = read_header(folder).configuration
    if found is None:
        return
    file = config or Path(FILE_NAME)
    file = file / FILE_NAME if file.is_dir() else file
    if config is not None and not file.exists():
        raise SetupError(f"there is no {str(file)!r}; give the configuration of the project")
    if config is not None or (file.exists() and not Path(found.file).exists()):
        set_configuration(folder, file)
        echo(f"note: the run belongs to {path_from_here(file.absolute())} here", err=True)
