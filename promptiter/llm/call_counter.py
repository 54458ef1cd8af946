"""Counts the calls of one case run: how many were paid, and how many were answered from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_counter: ContextVar[CallCounter | None] = ContextVar("promptiter_call_counter", default=None)


@dataclass(slots=True)
class CallCounter:
    """Numbers of calls made inside `count_calls()`."""

    paid: int = 0
    cached: int = 0


@contextmanager
def count_calls() -> Iterator[CallCounter]:
    """Count the calls made inside this block, including those of its tasks and threads, and no others."""
    counter = CallCounter()
    token = _counter.set(counter)
    try:
        yield counter
    finally:
        _counter.reset(token)


def record_call(*, paid: bool) -> None:
    """Count one call, if a `count_calls` block is active."""
    counter = _counter.get()
    if counter is not None:
        counter.paid += paid
        counter.cached += not paid
