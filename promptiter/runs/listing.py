"""Runs at rest: which there are, how they ended, what they cost. Reads the header and last event of each run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.errors import PromptiterError, SetupError, nearest
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.llm.cache.call_log import CallLog
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.policies.final_test import Verdict
from promptiter.runlog.codec import from_plain
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.results import RunMeasured, Status
from promptiter.runs.file_journal import FILE_NAME as JOURNAL
from promptiter.runs.file_journal import FileJournal
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import read_header
from promptiter.runs.lock import Holder, holder_of
from promptiter.runs.outcome import Outcome, outcome_at_end

NAMED = 5
"""So many runs are named when a name fits several."""

ListedStatus: TypeAlias = Status | Literal["interrupted", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """One run in a list. A run without an end that no process holds was `interrupted`, and can be resumed.

    One that is not `is_configured` was started by Python code, and is resumed from there. `baseline` and `best` are
    figures of the objective. `error` says why a run failed, or cannot be read.
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
    is_configured: bool = True

    @property
    def outcome(self) -> Outcome | Literal["unreadable"]:
        """How it ended, or where it is, in a word."""
        if self.status == "unreadable":
            return "unreadable"
        if self.status != "succeeded" or self.verdict is None:
            return "running" if self.status in ("queued", "running") else _UNFINISHED.get(self.status, "interrupted")
        if self.stop_reason == "user_stop" and self.can_resume:
            return "stopped"
        return outcome_at_end(self.verdict, rounds=self.rounds, stop_reason=self.stop_reason)


_UNFINISHED: Mapping[ListedStatus, Outcome] = {"failed": "failed", "cancelled": "cancelled"}


def list_runs(folder: str | os.PathLike[str]) -> list[ListedRun]:
    """The runs of a folder, the oldest first. One that cannot be read is listed as `unreadable`."""
    return [_listed_run(path.parent) for path in sorted(Path(folder).glob(f"*/{HEADER}"))]


def find_run(run: str, folder: str | os.PathLike[str]) -> Path:
    """The folder of a run that a person names: by path, by id, by a part of it, or as `latest`; SetupError if none."""
    if (Path(run) / HEADER).is_file():
        return Path(run)
    if Path(run).is_dir() and any(Path(run).glob(f"*/{HEADER}")):
        run, folder = "latest", run
    known = sorted(path.parent.name for path in Path(folder).glob(f"*/{HEADER}"))
    fitting = [name for name in known if run in name] if run != "latest" else known[-1:]
    if run in known or len(fitting) == 1:
        return Path(folder) / (run if run in known else fitting[0])
    if not known:
        raise SetupError(f"there are no runs in {os.fspath(folder)!r}; give the path of a run's folder")
    if fitting:
        more = f" and {len(fitting) - NAMED} more" if len(fitting) > NAMED else ""
        raise SetupError(f"{run!r} may be {', '.join(fitting[:NAMED])}{more}; give more of the name")
    raise SetupError(f"there is no run {run!r} in {os.fspath(folder)!r}{nearest(run, known)}")


def _listed_run(path: Path) -> ListedRun:
    try:
        return _read_run(path)
    except PromptiterError as error:
        return ListedRun(run_id=path.name, path=path, status="unreadable", error=str(error))


def _read_run(path: Path) -> ListedRun:
    header, holder = read_header(path), holder_of(path)
    last = FileJournal(path / JOURNAL).last()
    if last is None or last.type != "run_completed" or holder is not None:
        return ListedRun(
            run_id=path.name,
            path=path,
            status="interrupted" if holder is None else "running",
            created_at=header.created_at,
            rounds=0 if last is None else last.round,
            spent=_spent(path / CALLS),
            holder=holder,
            duration_s=None if last is None else last.data.get("measured", {}).get("elapsed_s"),
            can_resume=holder is None,
            is_configured=header.configuration is not None,
        )
    data = last.data
    measured: RunMeasured = from_plain(RunMeasured, data["measured"])
    reasons = [reason["kind"] for reason in (data["stop"] or {}).get("reasons", ())]
    return ListedRun(
        run_id=path.name,
        path=path,
        status=data["status"],
        created_at=header.created_at,
        verdict=data["verdict"],
        stop_reason=reasons[0] if reasons else None,
        rounds=last.round,
        baseline=data["baseline"],
        best=data["best"],
        spent=measured.spent.total,
        duration_s=measured.duration_s,
        error=data["error"],
        can_resume=not is_finished(last),
        is_configured=header.configuration is not None,
    )


def _spent(calls: Path) -> Spending:
    """What a run without an end has paid; unfinished ones are few, so all of its calls are looked at."""
    if not calls.exists():
        return NOTHING
    log = CallLog(calls)
    try:
        return log.ledger().total
    finally:
        log.close()
