"""Executor: where cases run.

An executor gets plain jobs and a JobHost, which runs a job in this process (`host.run_here`) or gives it as bytes
(`host.pack`) and answers the calls of the worker that runs them.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Protocol, TypeAlias

from promptiter.evaluation.case_runner import CaseJob
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.workers.job_host import JobHost
from promptiter.numbers import check_count

FinishedJob: TypeAlias = tuple[CaseJob, CaseRow]


class Executor(Protocol):
    """Runs jobs and yields each with its row as it finishes. A failed case is a row; an exception ends the batch.

    The evaluator calls it for each evaluation, several at once if there are several. When the iteration ends early, by
    an error or because it is closed or cancelled, no job may run on.
    """

    def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        """Execute all jobs, in any order."""


class LocalExecutor:
    """Runs jobs on the current event loop, at most `concurrency` at a time. Jobs are taken lazily."""

    def __init__(self, *, concurrency: int = 16) -> None:
        self.concurrency = max(1, concurrency)

    def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        return run_concurrently(jobs, host.run_here, concurrency=self.concurrency)


class ThreadExecutor:
    """Runs jobs in threads, each with its own event loop, for agents that block the loop."""

    def __init__(self, *, threads: int = 8) -> None:
        check_count(threads, "threads")
        self.threads = threads

    async def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        loop = asyncio.get_running_loop()

        async def run_in_pool(job: CaseJob) -> CaseRow:
            here = contextvars.copy_context()
            return await loop.run_in_executor(pool, lambda: here.run(asyncio.run, host.run_here(job)))

        pool = ThreadPoolExecutor(self.threads, thread_name_prefix="promptiter-case")
        try:
            async with aclosing(run_concurrently(jobs, run_in_pool, concurrency=self.threads)) as finished:
                async for each in finished:
                    yield each
        finally:
            # Not on the loop: jobs that still run in the threads wait for calls that this loop makes.
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)


async def run_concurrently(
    jobs: Iterable[CaseJob], work: Callable[[CaseJob], Coroutine[Any, Any, CaseRow]], *, concurrency: int
) -> AsyncGenerator[FinishedJob, None]:
    """Run `work` on all jobs, at most `concurrency` at a time, and yield the rows as they finish.

    Jobs are taken lazily. When the iteration ends early, the others are cancelled.
    """

    async def run_job(job: CaseJob) -> FinishedJob:
        return job, await work(job)

    waiting = iter(jobs)
    running: set[asyncio.Future[FinishedJob]] = set()
    done: set[asyncio.Future[FinishedJob]] = set()
    try:
        while True:
            while len(running) < concurrency and (job := next(waiting, None)) is not None:
                running.add(asyncio.create_task(run_job(job)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, *done, return_exceptions=True)
