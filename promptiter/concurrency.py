"""Concurrency helpers: run coroutines together, and let work finish before a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable
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
