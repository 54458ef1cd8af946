"""The runs in a folder: how each ended and what it cost. Reads the header and the last event of each run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.errors import PromptiterError, SetupError, nearest
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.policies.verdict import Verdict
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import Status
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.folder_store import read_ledger
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import read_header
from promptiter.runs.lock import Holder, find_holder
from promptiter.runs.outcome import Outcome, classify_end
from promptiter.wording import join_names

MAX_NAMED = 5
"""Maximum number of runs that an error names if several match."""

ListedStatus: TypeAlias = Status | Literal["interrupted", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run in a list. An unfinished run that no process holds is `interrupted` and can be resumed.

    A run that is not `is_named` was started from Python with parts that have no name, so only Python can resume it.
    `baseline` and `best` are values of the objective. `error` says why a run failed or cannot be read.
    """

    run_id: str
    path: Path
    status: ListedStatus
    created_at: str = ""
    verdict: Verdict | None = None
    stop_reason: str | None = None
    rounds: int = 0
    baseline: float | None = None
    best: float | None = None
    spent: Spending = NOTHING
    duration_s: float | None = None
    holder: Holder | None = None
    error: str | None = None
    can_resume: bool = False
    is_named: bool = True

    @property
    def outcome(self) -> Outcome | Literal["unreadable"]:
        """How it ended, or its current state."""
        if self.status == "unreadable":
            return "unreadable"
        if self.status != "succeeded" or self.verdict is None:
            return "running" if self.status in ("queued", "running") else _UNFINISHED.get(self.status, "interrupted")
        if self.stop_reason == "user_stop" and self.can_resume:
            return "stopped"
        return classify_end(self.verdict, rounds=self.rounds, stop_reason=self.stop_reason)


_UNFINISHED: Mapping[ListedStatus, Outcome] = {"failed": "failed", "cancelled": "cancelled"}


def list_runs(folder: str | os.PathLike[str]) -> list[ListedRun]:
    """List the runs of a folder, oldest first. A run that cannot be read is listed as `unreadable`."""
    return [_list_run(path.parent) for path in sorted(Path(folder).glob(f"*/{HEADER}"))]


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
        raise SetupError(f"there are no runs in {where!r}; give the path of a run's folder")
    hint = nearest(run, known) or "; give the path of a run's folder"
    raise SetupError(f"there is no run {run!r} in {os.fspath(folder)!r}{hint}")


def _list_run(path: Path) -> ListedRun:
    try:
        return _read_run(path)
    except PromptiterError as error:
        return ListedRun(run_id=path.name, path=path, status="unreadable", error=str(error))


def _read_run(path: Path) -> ListedRun:
    header, holder = read_header(path), find_holder(path)
    last = EventFile(path / JOURNAL).last()
    end = None if last is None else last.payload
    if last is None or not isinstance(end, RunCompleted) or holder is not None:
        return ListedRun(
            run_id=path.name,
            path=path,
            status="interrupted" if holder is None else "running",
            created_at=header.created_at,
            rounds=0 if last is None else last.round,
            spent=read_ledger(path).total,
            holder=holder,
            duration_s=None if last is None else last.measured.elapsed_s,
            can_resume=holder is None,
            is_named=not header.nameless_parts,
        )
    return ListedRun(
        run_id=path.name,
        path=path,
        status=end.status,
        created_at=header.created_at,
        verdict=end.verdict,
        stop_reason=end.stop.reason if end.stop is not None else None,
        rounds=last.round,
        baseline=end.baseline,
        best=end.best,
        spent=end.measured.spent.total,
        duration_s=end.measured.duration_s,
        error=end.error,
        can_resume=not is_finished(last),
        is_named=not header.nameless_parts,
    )
