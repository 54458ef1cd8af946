"""Writer: commits the writes of all runs of a process. Those that arrive during a commit share the next one.

So 32 answers at the same time are two commits or three, not 32 in a row. A thread works while there is something to
write.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from promptiter.concurrency import finish_before_cancel, start_in_thread
from promptiter.errors import PromptiterError, SetupError
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.writes import AppendEvent, Outcome, PutAnswer, PutTrace, Write, apply_writes

MOST_WRITES = 256
MOST_BYTES = 4_000_000
"""The largest transaction, unless one write alone is larger."""


@dataclass(slots=True)
class _Waiting:
    write: Write
    done: Future[bytes | None] = field(default_factory=Future)

    def settle(self, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class Writer:
    """Commits writes in the order in which they were submitted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting] = deque()
        self._is_working = False

    async def submit(self, write: Write) -> bytes | None:
        """Commit a write, to the end even if the caller is cancelled. Returns an answer that was stored before it."""
        waiting = _Waiting(write)
        waiting.done.set_running_or_notify_cancel()
        with self._lock:
            self._waiting.append(waiting)
            is_working, self._is_working = self._is_working, True
        if not is_working:
            start_in_thread(self._work)
        return await finish_before_cancel(asyncio.wrap_future(waiting.done))

    def _work(self) -> None:
        while batch := self._take():
            self._commit(batch)

    def _take(self) -> list[_Waiting]:
        """The writes of the next transaction."""
        batch: list[_Waiting] = []
        size = 0
        with self._lock:
            while self._waiting and len(batch) < MOST_WRITES:
                size += _size_of(self._waiting[0].write)
                if batch and size > MOST_BYTES:
                    break
                batch.append(self._waiting.popleft())
            self._is_working = bool(batch)
        return batch

    def _commit(self, batch: Sequence[_Waiting]) -> None:
        try:
            outcomes = self._write([each.write for each in batch])
        except (PromptiterError, IntegrityError) as error:
            if len(batch) > 1:  # one of them may be too large for the server: the others are stored
                for each in batch:
                    self._commit([each])
                return
            problem = error if isinstance(error, PromptiterError) else SetupError(f"a write was refused: {error}")
            batch[0].settle(problem)
        except BaseException as error:  # noqa: BLE001 - it is raised where the writes were submitted
            for each in batch:
                each.done.set_exception(error)
        else:
            for each, outcome in zip(batch, outcomes, strict=True):
                each.settle(outcome)

    def _write(self, writes: Sequence[Write]) -> list[Outcome]:
        attempts = 0

        def work(connection: Connection) -> list[Outcome]:
            nonlocal attempts
            attempts += 1
            return apply_writes(connection, self._database, writes, is_retry=attempts > 1)

        return self._database.write(work, is_durable=any(each.is_durable for each in writes))


def _size_of(write: Write) -> int:
    return len(write.body) if isinstance(write, AppendEvent | PutAnswer | PutTrace) else 0
