"""Seeds: finished results that a refinement starts from, as folders of one layout.

    a run of AWP            its own folder
    a folder with a rubric  its files, or FINAL/; the record is made by judging them
    a task of an experiment the run that is marked as its best: experiment/tasks/<id>/

Seeds of our own runs are in `run_seeds`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from promptiter.errors import SetupError, nearest
from promptiter.evaluation.data.case import EvalCase
from promptiter.profile import Profile
from promptiter.tasks.refine.best import BEST, KEPT, MANIFEST
from promptiter.tasks.refine.deliverables import (
    FINAL,
    can_name_folder,
    copy_file,
    has_files,
    list_files,
    place_copy,
    require_deliverable,
)
from promptiter.tasks.refine.records import RunRecord
from promptiter.tasks.refine.run_folder import COMPLETION, read_run
from promptiter.tasks.refine.sessions import SessionFolder
from promptiter.wording import join_names

SESSIONS = "refinement_sessions"
WORK = "refinements_work"
RUBRIC = "rubric.md"
TASK = "task.md"
SHOWN_TASKS = 8
_NOT_DELIVERED = (BEST, SESSIONS, WORK, FINAL, RUBRIC, TASK, "promptiter.yaml")
"""What is in a folder with a rubric, and not part of its deliverable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed:
    """A finished result. `home` is where BEST and the work are written.

    If it `is_measured`, its record has the values of the metrics that iterations are measured by. `case` and `profile`
    are those of a run of ours.
    """

    home: Path
    deliverable: Path
    record: RunRecord
    sessions: SessionFolder
    is_measured: bool = True
    case: EvalCase | None = None
    profile: Profile | None = None
    rubric: str = ""


def find_sessions(home: Path) -> SessionFolder:
    """Where the sessions of a seed are."""
    return SessionFolder(folder=home / SESSIONS)


def is_run_folder(folder: Path) -> bool:
    """Whether a folder is a finished run in the layout of AWP."""
    return (folder / COMPLETION).is_file()


def not_a_result(folder: Path) -> SetupError:
    """The error of a folder that is none of the seeds."""
    return SetupError(
        f"{str(folder)!r} is not a finished result: it has no {COMPLETION} and no {RUBRIC}; name the folder of a run, "
        "or give --rubric FILE"
    )


def open_run_folder(folder: Path) -> Seed:
    """The seed of a finished run in the layout of AWP. SetupError if it cannot be read, or delivered nothing."""
    record = read_run(folder)
    return Seed(
        home=folder,
        deliverable=require_deliverable(folder, record.run_id),
        record=record,
        sessions=find_sessions(folder),
    )


def open_rubric_folder(folder: Path, *, rubric: Path | None = None, task: str = "") -> Seed:
    """The seed of a folder with a rubric: FINAL/, or else its files."""
    file = rubric or folder / RUBRIC
    text = read_text(file, what="the rubric")
    if not text.strip():
        raise SetupError(f"the rubric {str(file)!r} is empty; list what a good deliverable has, one line each")
    if not task and (folder / TASK).is_file():
        task = read_text(folder / TASK, what="the task")
    final = folder / FINAL
    if not has_files(final):
        final = _collect(folder, without=file)
    return Seed(
        home=folder,
        deliverable=final,
        record=RunRecord(run_id=folder.absolute().name, task=task or f"Deliver what meets these criteria:\n\n{text}"),
        sessions=find_sessions(folder),
        is_measured=False,
        rubric=text,
    )


def open_target(target: str) -> Seed:
    """The seed of `experiment:task`: the best run of that task. The experiment is a folder, or a name in this one."""
    experiment, home = _find_task(target)
    run_dir = _find_best_run(experiment, home)
    record = read_run(run_dir)
    return Seed(
        home=home,
        deliverable=require_deliverable(run_dir, record.run_id),
        record=record,
        sessions=_sessions_of_task(home),
    )


def find_target_sessions(target: str) -> tuple[Path, SessionFolder]:
    """The folder of a task, and where its sessions are."""
    _, home = _find_task(target)
    return home, _sessions_of_task(home)


def _sessions_of_task(home: Path) -> SessionFolder:
    return SessionFolder(folder=home / "refinements", prefix="session_", latest="session.json")


def _find_task(target: str) -> tuple[Path, Path]:
    """The folders of the experiment and of the task. SetupError if there is none."""
    name, colon, task_id = target.rpartition(":")
    if not colon or not name or not task_id or Path(task_id).name != task_id or task_id in (".", ".."):
        raise SetupError(f"--target {target!r} must be EXPERIMENT:TASK, such as experiments/report:intro")
    places = (Path(name), Path("experiments") / name)
    experiment = next((place for place in places if (place / "tasks").is_dir()), None)
    if experiment is None:
        raise SetupError(f"there is no experiment {name!r}: no folder {str(places[0] / 'tasks')!r}")
    home = experiment / "tasks" / task_id
    if not home.is_dir():
        known = sorted(each.name for each in (experiment / "tasks").iterdir() if each.is_dir())
        hint = nearest(task_id, known) or f"; its tasks are {join_names(known, limit=SHOWN_TASKS)}" * bool(known)
        raise SetupError(f"the experiment {name!r} has no task {task_id!r}{hint}")
    return experiment, home


def _find_best_run(experiment: Path, home: Path) -> Path:
    """The folder of the run that is marked as the best one of a task; the only one, if none is marked."""
    for run_dir in _list_marked(experiment, home):
        if is_run_folder(run_dir):
            return run_dir
    runs = sorted(each.parent for each in home.glob(f"runs/*/{COMPLETION}"))
    if len(runs) == 1:
        return runs[0]
    if not runs:
        raise SetupError(f"the task {str(home)!r} has no finished run: no runs/*/{COMPLETION} in it")
    raise SetupError(
        f"the task {str(home)!r} has {len(runs)} runs, and none is marked as the best; write the id of one as "
        f"best_run_id into {str(home / BEST / MANIFEST)!r}"
    )


def _list_marked(experiment: Path, home: Path) -> Iterator[Path]:
    for file in (home / BEST / MANIFEST, home / "best.json", home / "task.json"):
        try:
            document = orjson.loads(file.read_bytes()) if file.is_file() else None
        except (OSError, orjson.JSONDecodeError):
            continue
        if not isinstance(document, dict):
            continue
        own = document.get("run_dir")
        if isinstance(own, str) and own and (home / own).resolve().is_relative_to(experiment.resolve()):
            yield home / own
        run_id = document.get("best_run_id") or document.get("best_run")
        if isinstance(run_id, str) and can_name_folder(run_id):
            yield from (home / "runs" / run_id, experiment / "runs" / run_id, experiment / run_id)
    yield home / BEST


def _collect(folder: Path, *, without: Path) -> Path:
    """Copy the files of a folder into one of their own, as its deliverable. SetupError if there are none."""
    left_out = {*_NOT_DELIVERED, *([without.name] if without.absolute().parent == folder.absolute() else [])}
    names = [name for name in list_files(folder) if not _is_left_out(name.split("/"), left_out)]
    if not names:
        raise SetupError(f"{str(folder)!r} has no files to refine besides its rubric; put them there or into {FINAL}/")
    final = folder / WORK / f"seed_{_hash_files(folder, names)}" / FINAL
    if not final.is_dir():  # another refinement may use it already
        final.parent.mkdir(parents=True, exist_ok=True)
        place_copy(final, lambda part: _copy_files(folder, names, part))
    return final


def _is_left_out(parts: Sequence[str], left_out: Collection[str]) -> bool:
    """Whether a file is not part of a deliverable: it is hidden, or belongs to the refinement."""
    is_hidden = any(part.startswith(".") for part in parts)
    return is_hidden or parts[0] in left_out or parts[0].startswith(KEPT)


def _hash_files(folder: Path, names: Sequence[str]) -> str:
    """A name for these files with this content."""
    found = hashlib.sha256()
    for name in names:
        with (folder / name).open("rb") as file:
            found.update(os.fsencode(name) + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()[:12]


def _copy_files(folder: Path, names: Sequence[str], target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        copy_file(folder / name, target / name)


def read_text(file: Path, *, what: str) -> str:
    """Read a file of the user; SetupError if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SetupError(f"{what} {str(file)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"{what} {str(file)!r} is invalid UTF-8 at byte {error.start}; save it as UTF-8") from error
