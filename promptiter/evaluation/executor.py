"""Executor: where cases run. Jobs are plain data, so that they can be sent to other processes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from promptiter.agents.base import Substitute
from promptiter.evaluation.result import CaseRow
from promptiter.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseJob:
    """One case run: the case by name, the profile, the repeat, and outputs that are given in advance."""

    case_id: str
    profile: Profile
    repeat: int = 0
    substitutes: tuple[Substitute, ...] = ()


Work: TypeAlias = Callable[[CaseJob], Coroutine[Any, Any, CaseRow]]


class Executor(Protocol):
    """Runs jobs and yields rows as they finish. A failed case is a row; an exception ends the evaluation."""

    def run(self, jobs: Iterable[CaseJob], work: Work) -> AsyncIterator[CaseRow]:
        """Execute all jobs, in any order."""


class LocalExecutor:
    """Runs jobs on the current event loop, at most `concurrency` at a time. Jobs are taken lazily."""

    def __init__(self, *, concurrency: int = 16) -> None:
        self.concurrency = max(1, concurrency)

    async def run(self, jobs: Iterable[CaseJob], work: Work) -> AsyncIterator[CaseRow]:
        waiting = iter(jobs)
        running: set[asyncio.Future[CaseRow]] = set()
        done: set[asyncio.Future[CaseRow]] = set()
        try:
            while True:
                while len(running) < self.concurrency and (job := next(waiting, None)) is not None:
                    running.add(asyncio.ensure_future(work(job)))
                if not running:
                    return
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, *done, return_exceptions=True)


class ThreadExecutor:
    """Runs jobs in threads, each with its own event loop, for agents that block the loop."""

    def __init__(self, *, threads: int = 8) -> None:
        self.threads = max(1, threads)

    async def run(self, jobs: Iterable[CaseJob], work: Work) -> AsyncIterator[CaseRow]:
        loop = asyncio.get_running_loop()

        async def run_in_thread(job: CaseJob) -> CaseRow:
            here = contextvars.copy_context()
            return await loop.run_in_executor(pool, lambda: here.run(asyncio.run, work(job)))

        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="promptiter-case")
        try:
            async for row in LocalExecutor(concurrency=self.threads).run(jobs, run_in_thread):
                yield row
        finally:
            # Not on the loop: jobs that still run in the threads wait for calls that this loop makes.
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
