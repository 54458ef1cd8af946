"""Calls of the stages, which may be the user's own: what one fails on is skipped; if none ever works, the run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from promptiter.engine.session import Session
from promptiter.errors import BudgetEndedError, SetupError, StageError, UnexpectedCallError

T = TypeVar("T")


class StageCalls:
    """The calls of one run. `has_worked` says whether a stage ever came to something."""

    def __init__(self, session: Session) -> None:
        self.has_worked = False
        self._session = session

    async def or_error(self, call: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
        """What a stage answers, or why it could not; what is not that stage's fault is raised."""
        try:
            return await call(), None
        except (BudgetEndedError, UnexpectedCallError, SetupError):
            raise
        except Exception as error:  # noqa: BLE001 - a stage may be the user's own; what it fails on is skipped
            return None, self._session.redacted(f"{type(error).__name__}: {error}")

    def fail(self, told: str) -> None:
        """A stage that never worked ends the run; what a stage achieved before is not lost by a later failure."""
        if not self.has_worked:
            raise StageError(told)
        self._session.report(told)


async def all_of(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """All at once, in their order; the first error ends the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_awaited(call)) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def _awaited(call: Callable[[], Awaitable[T]]) -> T:
    return await call()
