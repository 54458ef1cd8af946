"""Results of runs as JSON, for clients that poll them: encoded when they have changed, and once for all who wait."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from promptiter.concurrency import run_in_thread
from promptiter.runlog.results import RunResult, Status

T = TypeVar("T")

MAX_BYTES = 64_000_000
"""The most that is kept of results. A larger one is encoded each time."""
WORK_SHARE = 0.2
"""A result that changes all the time is encoded again after so long that this is the share of the time it takes."""
MAX_AGE_S = 1.0
"""The result of a run in progress is at most this old."""

Version: TypeAlias = tuple[object, ...]
"""What a result depends on: the number of events, the status, the error."""


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """The content of result.json. Equal tags mean equal content."""

    status: Status
    body: bytes
    tag: str

    @staticmethod
    def of(status: Status, body: bytes) -> EncodedResult:
        return EncodedResult(status, body, hashlib.blake2b(body, digest_size=16).hexdigest())


@dataclass(frozen=True, slots=True)
class _Kept:
    result: EncodedResult
    version: Version
    fresh_until: float


class EncodedResults:
    """The results of the runs of one store, as they were encoded last."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0

    def find(self, run_id: str, status: Status, version: Version) -> EncodedResult | None:
        """The result of a run if it was encoded already, or just now while the run is in progress."""
        kept = self._kept.get(run_id)
        if kept is None:
            return None
        is_recent = status == kept.result.status == "running" and self._now() < kept.fresh_until
        if kept.version != version and not is_recent:
            return None
        self._kept.move_to_end(run_id)
        return kept.result

    async def encode(self, result: RunResult, version: Version) -> EncodedResult:
        """Encode a result, in a thread: that of a long run takes a while."""
        began = self._now()
        body = await run_in_thread(lambda: result.to_json().rstrip())
        found = EncodedResult.of(result.status, body)
        ended = self._now()
        pause = min(MAX_AGE_S, (ended - began) / WORK_SHARE)
        self._keep(result.run_id, _Kept(found, version, ended + pause))
        return found

    def forget(self, run_id: str) -> None:
        """Forget a run that was deleted."""
        if (kept := self._kept.pop(run_id, None)) is not None:
            self._size -= len(kept.result.body)

    def _keep(self, run_id: str, kept: _Kept) -> None:
        self.forget(run_id)
        if len(kept.result.body) > MAX_BYTES:
            return
        self._kept[run_id] = kept
        self._size += len(kept.result.body)
        while self._size > MAX_BYTES:
            self.forget(next(iter(self._kept)))


class SharedCalls(Generic[T]):
    """Calls by key, one at a time. Those that arrive during a call share the next one.

    Many callers cost no more than one, and no answer is older than its question.
    """

    def __init__(self) -> None:
        self._current: dict[str, asyncio.Task[T]] = {}
        self._next: dict[str, asyncio.Task[T]] = {}

    async def call(self, key: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        task = self._next.get(key)
        if task is None:
            task = asyncio.create_task(self._run(key, work, self._current.get(key)))
            task.add_done_callback(_look_at_error)
            (self._next if key in self._current else self._current)[key] = task
        return await asyncio.shield(task)

    async def _run(self, key: str, work: Callable[[], Awaitable[T]], before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
            self._current[key] = self._next.pop(key)
        try:
            return await work()
        finally:
            if key not in self._next:
                del self._current[key]


def _look_at_error(task: asyncio.Task[Any]) -> None:
    """Retrieve the error, so that asyncio does not log it if every caller has left."""
    if not task.cancelled():
        task.exception()
