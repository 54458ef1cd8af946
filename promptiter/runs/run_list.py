"""Lists of runs: what is shown of each run, which runs are asked for, and a page of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from promptiter.errors import RunCancelledError, RunLockedError, SetupError
from promptiter.llm.ledger import Spending
from promptiter.policies.verdict import Verdict
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import Status
from promptiter.runs.header import RunHeader
from promptiter.runs.lock import Holder
from promptiter.runs.outcome import Outcome, classify_end

ListedStatus: TypeAlias = Status | Literal["interrupted", "unreadable"]
LISTED_STATUSES: tuple[ListedStatus, ...] = (*get_args(Status), "interrupted", "unreadable")

WAITING: tuple[ListedStatus, ...] = ("queued", "interrupted")
"""The status of runs that wait for a process to work on them."""

ENDED: tuple[ListedStatus, ...] = ("succeeded", "failed", "cancelled")

MAX_PAGE = 500
"""The most runs of one page."""


class ListedRun(NamedTuple):
    """One run in a list: a named tuple, because lists may have thousands.

    An unfinished run that no process holds is `interrupted` and can be resumed. The run of a Manager that has not
    begun, or that is to be resumed, is `queued`; a Manager works on it when it is its turn. A run that is not
    `is_named` was started from Python with parts that have no name, so only Python can resume it. `baseline` and `best`
    are values of the objective. `cost_usd` is None if the cost of a call is unknown. `error` says why a run failed or
    cannot be read. `path` is its folder, if any.
    """

    run_id: str
    status: ListedStatus
    path: Path | None = None
    created_at: str = ""
    verdict: Verdict | None = None
    stop_reason: str | None = None
    rounds: int = 0
    baseline: float | None = None
    best: float | None = None
    calls: int = 0
    cost_usd: float | None = 0.0
    duration_s: float | None = None
    holder: Holder | None = None
    error: str | None = None
    can_resume: bool = False
    is_named: bool = True
    is_abandoned: bool = False
    """Whether its process ended without leaving it, so that its lease is left over."""

    @property
    def outcome(self) -> Outcome | Literal["queued", "unreadable"]:
        """How it ended, or its current state."""
        if self.status in ("queued", "running", "unreadable"):
            return self.status
        if self.status != "succeeded" or self.verdict is None:
            return _UNFINISHED.get(self.status, "interrupted")
        if self.stop_reason == "user_stop" and self.can_resume:
            return "stopped"
        return classify_end(self.verdict, rounds=self.rounds, stop_reason=self.stop_reason)


_UNFINISHED: Mapping[ListedStatus, Outcome] = {"failed": "failed", "cancelled": "cancelled"}


def describe_run(
    header: RunHeader,
    last: Event | None,
    *,
    spent: Spending,
    holder: Holder | None,
    is_cancelled: bool,
    is_queued: bool,
) -> ListedRun:
    """What a list shows of a run with this last event. `spent` counts if the run has not ended."""
    end = None if last is None else last.payload
    status = find_status(header, last, is_held=holder is not None, is_cancelled=is_cancelled, is_queued=is_queued)
    listed = ListedRun(
        run_id=header.run_id,
        status=status,
        created_at=header.created_at,
        rounds=0 if last is None else last.round,
        calls=spent.calls,
        cost_usd=find_cost(spent),
        holder=holder,
        duration_s=None if last is None else last.measured.elapsed_s,
        can_resume=status not in ("running", "queued"),
        is_named=not header.nameless_parts,
    )
    if last is None or not isinstance(end, RunCompleted) or status in ("running", "queued"):
        return listed
    total = end.measured.spent.total
    return listed._replace(
        verdict=end.verdict,
        stop_reason=end.stop.reason if end.stop is not None else None,
        baseline=end.baseline,
        best=end.best,
        calls=total.calls,
        cost_usd=find_cost(total),
        duration_s=end.measured.duration_s,
        error=end.error,
        can_resume=not is_finished(last),
    )


def find_status(
    header: RunHeader, last: Event | None, *, is_held: bool, is_cancelled: bool, is_queued: bool
) -> ListedStatus:
    """The status of a run with this last event. It `is_queued` if it is to be resumed since then."""
    if is_held:
        return "running"
    if is_cancelled:
        return "cancelled"
    if is_queued or (last is None and header.app):
        return "queued"
    return last.payload.status if last is not None and isinstance(last.payload, RunCompleted) else "interrupted"


def find_cost(spent: Spending) -> float | None:
    """The cost in dollars; None if the price or the tokens of a call are unknown."""
    return None if spent.unpriced_calls or spent.uncounted_calls else spent.cost_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs are asked for: those with one of the `statuses` and `verdicts`, and with `text` in their id.

    `created_from` and `created_before` are times in ISO 8601. Runs come in the descending order of their ids, which
    begin with the time of the start; those of the next page come after `cursor`.
    """

    statuses: tuple[ListedStatus, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    created_from: str = ""
    created_before: str = ""
    text: str = ""
    limit: int = 50
    cursor: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MAX_PAGE:
            raise SetupError(f"the limit of a list of runs is {self.limit}; give 1 to {MAX_PAGE}")

    def matches(self, run: ListedRun) -> bool:
        """Whether a run is asked for, wherever its page begins."""
        return (
            (not self.statuses or run.status in self.statuses)
            and (not self.verdicts or run.verdict in self.verdicts)
            and (not self.created_from or run.created_at >= self.created_from)
            and (not self.created_before or run.created_at < self.created_before)
            and self.text in run.run_id
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """Some runs, and where the next page begins; None after the last."""

    runs: tuple[ListedRun, ...]
    next_cursor: str | None = None


def take_page(runs: Iterable[ListedRun], query: RunQuery) -> RunPage:
    """The page of a query, from runs in the descending order of their ids that come after its cursor."""
    page: list[ListedRun] = []
    for run in runs:
        if not query.matches(run):
            continue
        if len(page) == query.limit:
            return RunPage(tuple(page), page[-1].run_id)
        page.append(run)
    return RunPage(tuple(page))


def number_id(run_id: str, number: int) -> str:
    """The id of a run that is the second, third or so with this id: `id~2`, …, `id~9`, `id~~10`.

    There is a tilde for each digit, so the numbers are in the same order as the ids, which databases compare as text.
    """
    return run_id if number == 1 else f"{run_id}{'~' * len(str(number))}{number}"


def check_ended(run_id: str, status: ListedStatus) -> None:
    """Raise RunLockedError if a run has not ended."""
    if status not in ENDED:
        raise RunLockedError(f"the run {run_id!r} is {status}")


def check_not_cancelled(event: Event, *, is_cancelled: bool) -> None:
    """Raise RunCancelledError if an event is the success of a run that was cancelled."""
    if is_cancelled and isinstance(event.payload, RunCompleted) and event.payload.status == "succeeded":
        raise RunCancelledError(f"the run {event.run_id!r} was cancelled")
