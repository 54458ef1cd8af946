"""Ends runs whose process ended without doing so."""

from __future__ import annotations

from promptiter.concurrency import run_in_thread
from promptiter.runlog.codec import to_short_plain
from promptiter.runlog.events import Event, EventMeasured
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.payloads import RunCompleted
from promptiter.runlog.results import RunMeasured
from promptiter.runs.store import Store


async def mark_failed(store: Store, run_id: str, error: str) -> None:
    """Write a failure as the end of a run that was interrupted. It can be resumed. RunLockedError if it is not."""
    async with store.open(run_id) as run:
        last = await run.journal.last()
        if last is None or isinstance(last.payload, RunCompleted):
            return
        result = await run_in_thread(lambda: fold_lazily(run.journal.reader()))
        spent, elapsed_s = await run.answers.ledger(), last.measured.elapsed_s
        end = RunCompleted(
            status="failed",
            verdict=result.verdict,
            error=error,
            baseline=result.baseline_score,
            best=result.accepted_score,
            measured=RunMeasured(run_id=run_id, duration_s=elapsed_s, spent=spent),
        )
        await run.journal.append(
            Event(
                seq=last.seq + 1,
                run_id=last.run_id,
                round=last.round,
                phase="end",
                type=end.event_type,
                version=end.version,
                data=to_short_plain(end),
                measured=EventMeasured(elapsed_s=elapsed_s),
            )
        )
