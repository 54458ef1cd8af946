"""Tally: how many calls of one case run were paid, and how many answers were known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_tally: ContextVar[Tally | None] = ContextVar("promptiter_tally", default=None)


@dataclass(slots=True)
class Tally:
    """How many calls below `counting()` were paid, and how many answers were known."""

    paid: int = 0
    known: int = 0


@contextmanager
def counting() -> Iterator[Tally]:
    """Count the calls of what runs below, in its tasks and threads too, whatever else runs at the same time."""
    tally = Tally()
    token = _tally.set(tally)
    try:
        yield tally
    finally:
        _tally.reset(token)


def count(*, paid: bool) -> None:
    """Take in one call; nobody may be counting."""
    tally = _tally.get()
    if tally is not None:
        tally.paid += paid
        tally.known += not paid
