"""Calls of the stages, which may be the user's own. A failed call is skipped; if no call ever works, the run ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from promptiter.engine.session import Session
from promptiter.errors import BudgetEndedError, SetupError, StageError, UnexpectedCallError
from promptiter.profile import PatchSet
from promptiter.runlog.results import PassResult
from traces.model import Json

T = TypeVar("T")


class StageCalls:
    """The stage calls of one run. `has_worked` says whether a stage ever produced a signal."""

    def __init__(self, session: Session) -> None:
        self.has_worked = False
        self._session = session

    async def call_or_error(self, call: Callable[[], Awaitable[T]]) -> tuple[T | None, str | None]:
        """Return the stage's result and None, or None and its error. Raises errors that are not the stage's fault."""
        try:
            return await call(), None
        except (BudgetEndedError, UnexpectedCallError, SetupError):
            raise
        except Exception as error:  # noqa: BLE001 - a stage may be the user's own; its failed calls are skipped
            return None, self._session.redact(f"{type(error).__name__}: {error}")

    def fail(self, message: str) -> None:
        """End the run if no stage ever worked; otherwise only report the failure, so that earlier results are kept."""
        if not self.has_worked:
            raise StageError(message)
        self._session.report(message)


async def record_patches(session: Session, patches: PatchSet, *, key: Json) -> PatchSet:
    """Record patches that were built without a model, and return those of the record."""

    async def build() -> PassResult:
        return PassResult(patches=patches)

    result: PassResult = await session.record("patches", PassResult, build, request=key)
    return result.patches
