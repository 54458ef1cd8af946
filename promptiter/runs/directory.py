"""The folder of a run: its result, its profiles, and the texts of its surfaces, for people and programs.

runs/<run-id>/
  result.json                  RunResult
  profiles/                    baseline.json, best.json
  surfaces/                    one .md per surface that could change; where baseline and best differ, both
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import orjson

from promptiter.engine.records import RunResult
from promptiter.errors import SetupError
from traces import digest
from traces.files import replacing
from traces.model import Json

LONGEST_NAME = 120


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Make sure that runs can be written there, before anything is spent on one; SetupError if not."""
    path = Path(folder).absolute()
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "may not be written to" if there.is_dir() else "is a file"
        raise SetupError(f"runs: {str(path)!r} cannot be used: {str(there)!r} {why}; choose another folder")


def write_run(folder: str | os.PathLike[str], result: RunResult) -> Path:
    """Write what a run found into a folder of its own, and say which. Each file is there whole or not at all."""
    path = _own_folder(Path(folder), result.run_id or "run")
    for below in ("profiles", "surfaces"):
        (path / below).mkdir()
    _write(path / "profiles" / "baseline.json", result.initial_profile.to_json())
    _write(path / "profiles" / "best.json", result.accepted_profile.to_json())
    for name, text in _texts(result).items():
        _write(path / "surfaces" / name, text.encode("utf-8", "replace"))
    _write(path / "result.json", result.to_json())
    return path


def file_name(surface_id: str) -> str:
    """The name of a surface's file, without its ending: the id, with what file systems take badly written as %2F."""
    name = quote(surface_id, safe="#~")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}~{digest(surface_id)[:8]}"


def _own_folder(folder: Path, run_id: str) -> Path:
    """A new folder with the run's name; a second run of that name, which began in the same second, gets a number."""
    path, number = folder / run_id, 1
    while True:
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            number += 1
            path = folder / f"{run_id}~{number}"
        else:
            return path


def _texts(result: RunResult) -> dict[str, str]:
    texts: dict[str, str] = {}
    changes = {change.surface_id: change for change in result.changes}
    for surface_id in sorted({*result.targets, *changes}):
        name = file_name(surface_id)
        if surface_id in changes:
            texts[f"{name}.baseline.md"] = _text(changes[surface_id].before)
            texts[f"{name}.best.md"] = _text(changes[surface_id].after)
        else:
            texts[f"{name}.md"] = _text(result.accepted_profile.value(surface_id, result.structure))
    return texts


def _text(value: Json) -> str:
    """A text as it is, so that it can be copied from there; anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n"


def _write(path: Path, raw: bytes) -> None:
    with replacing(path) as file:
        file.write(raw)
