"""The rows of runs: what a list shows of them, and how a query selects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, Row, Select, false, or_, select

from promptiter.runs.run_list import ListedRun, ListedStatus, RunQuery
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.leases import read_holder
from promptiter.runs.sql.packing import unpack
from promptiter.runs.sql.tables import RUNS

_COLUMNS = (
    *(RUNS.c.run_id, RUNS.c.created_at, RUNS.c.status, RUNS.c.verdict, RUNS.c.round, RUNS.c.baseline, RUNS.c.best),
    *(RUNS.c.duration_s, RUNS.c.details, RUNS.c.is_final, RUNS.c.is_named, RUNS.c.is_cancel_requested),
    *(RUNS.c.lease_holder, RUNS.c.lease_expires_at),
)
_UNFINISHED = ("queued", "interrupted", "running")


def read_rows(database: Database, app: str, query: RunQuery, *, now: Callable[[], float]) -> Iterator[ListedRun]:
    """Yield the runs of an app that a query may ask for, in the descending order of their ids."""
    cursor = query.cursor
    while True:
        rows = database.read(partial(_fetch, wanted=_select(app, query, cursor)))
        moment = now()
        for row in rows:
            yield list_row(row, now=moment)
        if len(rows) <= query.limit:
            return
        cursor = rows[-1].run_id


def list_row(row: Sequence[Any], *, now: float) -> ListedRun:
    """What a list shows of a run; see `describe_run`."""
    # Taking the row apart once is much faster than its attributes, which matters in long lists.
    run_id, created_at, status, verdict, rounds, baseline, best, duration_s, raw, *others = row
    is_final, is_named, is_cancelled, holding, expires_at = others
    details = orjson.loads(unpack(raw)) if raw is not None else {}
    spent = details.get("spent", {})
    has_unknown_cost = spent.get("unpriced_calls") or spent.get("uncounted_calls")
    holder = None if holding is None else read_holder(holding, expires_at, now=now)
    has_ended = holder is None and status not in _UNFINISHED
    shown = find_status(status, is_held=holder is not None, is_cancelled=bool(is_cancelled))
    return ListedRun(
        run_id=run_id,
        status=shown,
        created_at=created_at,
        verdict=verdict if has_ended else None,
        stop_reason=details.get("stop_reason") if has_ended else None,
        rounds=rounds,
        baseline=baseline if has_ended else None,
        best=best if has_ended else None,
        calls=spent.get("calls", 0),
        cost_usd=None if has_unknown_cost else spent.get("cost_usd", 0.0),
        duration_s=duration_s,
        holder=holder,
        is_abandoned=holder is None and holding is not None,
        error=details.get("error") if has_ended else None,
        can_resume=shown not in ("running", "queued") and not is_final,
        is_named=bool(is_named),
    )


def find_status(status: ListedStatus, *, is_held: bool, is_cancelled: bool) -> ListedStatus:
    """The status of a run whose row has this one."""
    if is_held:
        return "running"
    if is_cancelled:
        return "cancelled"
    return "interrupted" if status == "running" else status


def _fetch(connection: Connection, wanted: Select[Any]) -> Sequence[Row[Any]]:
    return connection.execute(wanted).all()


def _select(app: str, query: RunQuery, cursor: str | None) -> Select[Any]:
    """The rows that a query may ask for. Those of a process that is gone are only recognized when they are read."""
    wanted = select(*_COLUMNS).where(RUNS.c.app == app).order_by(RUNS.c.run_id.desc()).limit(query.limit + 1)
    if cursor is not None:
        wanted = wanted.where(RUNS.c.run_id < cursor)
    if query.statuses:
        wanted = wanted.where(or_(*(_STATUSES.get(each, false()) for each in query.statuses)))
    if query.verdicts:
        wanted = wanted.where(RUNS.c.verdict.in_(query.verdicts))
    if query.created_from:
        wanted = wanted.where(RUNS.c.created_at >= query.created_from)
    if query.created_before:
        wanted = wanted.where(RUNS.c.created_at < query.created_before)
    if query.text:
        wanted = wanted.where(RUNS.c.run_id.contains(query.text, autoescape=True))
    return wanted


_STATUSES: Mapping[ListedStatus, ColumnElement[bool]] = {
    "queued": RUNS.c.status == "queued",
    "running": RUNS.c.lease_expires_at.is_not(None),
    "interrupted": RUNS.c.status.in_(("interrupted", "running")),
    "succeeded": RUNS.c.status == "succeeded",
    "failed": RUNS.c.status == "failed",
    "cancelled": or_(RUNS.c.status == "cancelled", RUNS.c.is_cancel_requested == 1),
}
"""Which rows may have a status."""
