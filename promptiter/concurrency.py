"""Concurrency helpers: run coroutines together, do blocking work, and let work finish before a cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


async def run_together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all calls at once and return their results in order. The first error cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def run_in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a thread of its own, to its end.

    The threads of `asyncio.to_thread` are few and shared with tools of the user, which may hang.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(finished: Future[T]) -> None:
        if done.cancelled():
            return
        if (error := finished.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(finished.result())

    def run() -> None:
        finished: Future[T] = Future()
        try:
            finished.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised in the waiting task
            finished.set_exception(error)
        with suppress(RuntimeError):  # the loop is closed, so no task waits
            loop.call_soon_threadsafe(settle, finished)

    threading.Thread(target=copy_context().run, args=(run,), name="promptiter-io", daemon=True).start()
    return await done


async def finish_before_cancel(work: Awaitable[T]) -> T:
    """Finish the work before a cancellation takes effect."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - the task's own error, raised below
            break
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def is_cancelled(error: BaseException) -> bool:
    """Whether an error is a cancellation of the current task, not a CancelledError that user code raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_in_loop() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
