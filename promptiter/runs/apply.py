"""Applies the result of a run: its values go back to where they are stored. Reverts it, too.

    report = apply_result(read_result(folder), folder, project=Project(folder=Path(".")), sources={...})

All files are changed or none. What they held is saved first, in the state folder of the project and in the folder of
the run. Callbacks are called last: if one fails, the files are rolled back, but not the callbacks before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.agents.in_place.exit_hooks import defer_signals
from promptiter.agents.in_place.saved_baseline import STATE_FOLDER, SavedBaseline
from promptiter.agents.in_place.saved_value import FileChange
from promptiter.agents.in_place.source_lock import FolderLock
from promptiter.errors import ApplyError, PromptiterError, SetupError
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from promptiter.runs.applied_files import AppliedRun, plan_revert, read_applied, write_applied
from promptiter.runs.apply_plan import (
    ApplyPlan,
    PlannedCallback,
    PlannedFile,
    plan_changes,
)
from promptiter.runs.git_commit import GitCommit
from promptiter.runs.outcome import Outcome, classify_result
from promptiter.runs.place_search import Project
from promptiter.sources import FileSource, Source
from promptiter.wording import join_names

_log = logging.getLogger(__name__)

IMPROVED: tuple[Outcome, ...] = ("improved", "improved_on_validation")
"""The outcomes that are applied without force."""

ApplyState: TypeAlias = Literal["applied", "reverted", "preview", "unchanged"]


class NotAdoptedError(PromptiterError):
    """A run may not be applied, because of its `outcome`."""

    def __init__(self, message: str, *, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyReport:
    """What was changed. `unchanged`: every place had its value already. `commit` is the hash of the commit."""

    state: ApplyState
    run_id: str
    files: tuple[PlannedFile, ...] = ()
    callbacks: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    commit: str | None = None

    @property
    def surface_ids(self) -> tuple[str, ...]:
        """The surfaces whose values were changed."""
        return (*(each for file in self.files for each in file.surface_ids), *self.callbacks)


def apply_result(
    result: RunResult,
    folder: Path,
    *,
    project: Project,
    sources: Mapping[str, Source] | None = None,
    force: bool = False,
    require_unseen: bool = False,
    dry_run: bool = False,
    commit_message: Callable[[], str] | None = None,
) -> ApplyReport:
    """Write the adopted values of a run to their sources; without a source, where they are found in the project.

    NotAdoptedError if the run shows no improvement, or with `require_unseen` none for new cases; `force` applies the
    best profile of the search. With a `commit_message`, the files are committed to git.
    """
    profile = choose_profile(result, force=force, require_unseen=require_unseen)
    changes = tuple(Profile.baseline(result.structure).changes(profile, result.structure))
    recover(project.folder)
    plan = plan_changes(changes, structure=result.structure, sources=sources or {}, project=project)
    if dry_run:
        return _report("preview", result.run_id, plan)
    if not plan.is_empty:
        applied = (read_applied(folder) or AppliedRun()).merge(plan)
        number = _carry_out(plan, project, commit_message, backup=lambda: write_applied(folder, applied))
        return _report("applied", result.run_id, plan, commit=number)
    number = None if commit_message is None else _commit_applied(folder, commit_message)
    return _report("unchanged" if number is None else "applied", result.run_id, plan, commit=number)


def revert_result(
    folder: Path,
    *,
    run_id: str,
    project: Project,
    sources: Mapping[str, Source] | None = None,
    dry_run: bool = False,
    commit_message: Callable[[], str] | None = None,
) -> ApplyReport:
    """Restore what applying a run replaced, byte for byte. SetupError, and no change, if a file was edited since."""
    recover(project.folder)
    applied = read_applied(folder)
    if applied is None:
        raise SetupError(f"the run {run_id} was never applied, so there is nothing to revert")
    plan = plan_revert(applied, sources or {}, folder)
    if dry_run or plan.is_empty:
        return _report("preview" if dry_run else "unchanged", run_id, plan)
    return _report("reverted", run_id, plan, commit=_carry_out(plan, project, commit_message))


def choose_profile(result: RunResult, *, force: bool = False, require_unseen: bool = False) -> Profile:
    """The profile to apply. NotAdoptedError if the run may not be applied."""
    outcome = classify_result(result)
    if outcome in (IMPROVED[:1] if require_unseen else IMPROVED):
        return result.accepted_profile
    if result.working_profile == result.initial_profile:
        raise NotAdoptedError(
            f"the run {result.run_id} accepted no change, so there is nothing to apply", outcome=outcome
        )
    if force:
        return result.working_profile
    what = "no improvement for new cases" if outcome in IMPROVED else "no improvement"
    raise NotAdoptedError(
        f"the run {result.run_id} shows {what} ({outcome}), so it is not applied; --force applies the best profile of "
        "its search",
        outcome=outcome,
    )


def recover(folder: Path) -> None:
    """Roll back or complete what a process that was killed left in the project, unless another process is at it."""
    saved = SavedBaseline(folder / STATE_FOLDER)
    if not saved.has_leftovers:
        return
    lock = FolderLock(saved.folder)
    if not lock.acquire():
        return
    try:
        if all(value.path is not None for value in saved.load()):
            for each in saved.restore({}):
                if not each.is_settled:
                    _log.warning("%s: %s", each.place, each.note)
    finally:
        lock.release()


def _report(state: ApplyState, run_id: str, plan: ApplyPlan, *, commit: str | None = None) -> ApplyReport:
    called = tuple(each.surface_id for each in plan.callbacks)
    return ApplyReport(
        state=state, run_id=run_id, files=plan.files, callbacks=called, unchanged=plan.unchanged, commit=commit
    )


def _carry_out(
    plan: ApplyPlan,
    project: Project,
    commit_message: Callable[[], str] | None,
    *,
    backup: Callable[[], None] = lambda: None,
) -> str | None:
    """Change everything, and commit the files if wanted. If the commit fails, the files are as before."""
    if commit_message is None or not plan.files:
        _replace(plan, project.folder, backup=backup)
        return None
    created = [file.path for file in plan.files if file.created]
    commit, message = GitCommit.of([file.path for file in plan.files], created=created), commit_message()
    commit.check_clean()
    _replace(plan, project.folder, backup=backup)
    try:
        return commit.make(message)
    except SetupError as error:
        raise ApplyError(f"{error}; {_undo(plan, project)}{_list_called(plan.callbacks)}") from error


def _undo(plan: ApplyPlan, project: Project) -> str:
    """Restore the files after a commit failed, and say whether that was possible: a hook may have edited one."""
    try:
        _replace(plan.reverse_files(), project.folder)
    except PromptiterError as error:
        return f"all files keep the new values, because they could not be restored ({error}); commit them with git"
    return "the files are as they were"


def _commit_applied(folder: Path, commit_message: Callable[[], str]) -> str | None:
    """Commit the files that an earlier command applied and did not commit."""
    applied = read_applied(folder) or AppliedRun()
    before = {file.path: file.before for file in applied.files if file.is_applied}
    commit = GitCommit.of(tuple(before)).without_clean_files()
    commit.check_committed(before)
    return commit.make(commit_message()) if commit.files else None


def _replace(plan: ApplyPlan, folder: Path, *, backup: Callable[[], None] = lambda: None) -> None:
    """Change all files, then the callbacks. An error says what was not restored."""
    saved, called = SavedBaseline(folder / STATE_FOLDER), []
    changes = [
        FileChange(name=", ".join(file.surface_ids), source=FileSource(file.path), before=file.before, after=file.after)
        for file in plan.files
    ]

    def call() -> None:
        for each in plan.callbacks:
            called.append(each)
            _call(each)

    try:
        with FolderLock(saved.folder).hold(), defer_signals():
            backup()
            _create_missing(plan.files)
            saved.replace_all(changes, finish=call)
            _remove_empty((file.path, file.removed) for file in plan.files)
    except Exception as error:
        _remove_empty((file.path, file.created) for file in plan.files)
        notes = getattr(error, "__notes__", [])
        if not called and not notes and isinstance(error, SetupError):
            raise
        rest = "; ".join(notes) or "the files are as they were"
        raise ApplyError(f"{error}; {rest}{_list_called(called)}") from error


def _create_missing(files: Sequence[PlannedFile]) -> None:
    """Create new files, empty, so that they can be replaced and restored as any other."""
    for file in files:
        if not file.before and not file.path.exists():
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.touch()


def _remove_empty(files: Iterable[tuple[Path, int]]) -> None:
    """Remove the last parts of these paths, as many as are given, if they are empty."""
    parts = {each for path, count in files for each in (path, *path.parents)[:count]}
    for each in sorted(parts, key=lambda path: len(path.parts), reverse=True):
        if each.is_dir() and not any(each.iterdir()):
            each.rmdir()
        elif each.is_file() and not each.stat().st_size:
            each.unlink()


def _call(callback: PlannedCallback) -> None:
    try:
        callback.source.write(callback.after)
        current = callback.source.read()
    except Exception as error:
        raise ApplyError(f"{callback.surface_id}: its source failed: {type(error).__name__}: {error}") from error
    if current != callback.after:
        raise ApplyError(f"{callback.surface_id}: its source does not keep what is written to it")


def _list_called(callbacks: Sequence[PlannedCallback]) -> str:
    names = [each.surface_id for each in callbacks]
    return f"; callbacks are not rolled back, so check {join_names(names)}" if names else ""
