"""Calls of the stages, which may be the user's own: a failed call skips one step or surface, not the whole pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from promptiter.errors import BudgetEndedError, SetupError, UnexpectedCallError

T = TypeVar("T")

Redact: TypeAlias = Callable[[str], str]
"""Returns a text without secrets."""


async def call_or_error(call: Callable[[], Awaitable[T]], redact: Redact) -> tuple[T | None, str | None]:
    """Return the stage's result and None, or None and its error. Raises errors that are not the stage's fault."""
    try:
        return await call(), None
    except (BudgetEndedError, UnexpectedCallError, SetupError):
        raise
    except Exception as error:  # noqa: BLE001 - a stage may be the user's own; its failed calls are skipped
        return None, redact(f"{type(error).__name__}: {error}")
