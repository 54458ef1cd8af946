"""The end of a program, for agents that must put something back: they are closed at its exit and on SIGTERM."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from promptiter.llm.redaction import process_redactor

_log = logging.getLogger(__name__)


class Closing(Protocol):
    """What is closed at the end."""

    def close(self) -> object: ...


_open: dict[int, tuple[Closing, int]] = {}
"""What is to be closed, by identity, with the process that opened it: a fork must not close what is its parent's."""


def close_at_end(subject: Closing) -> None:
    """Close it at the end of the program. Until then SIGTERM, if nobody else hears it, ends the program by unwinding.

    Without that, Python would die of a SIGTERM on the spot.
    """
    if not _open:
        atexit.register(_close_all)
    _open[id(subject)] = (subject, os.getpid())
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _unwind)


def closed(subject: Closing) -> None:
    """It was closed: nothing is to be done at the end."""
    _open.pop(id(subject), None)
    if _open:
        return
    atexit.unregister(_close_all)
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is _unwind:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals wait until the end of this block. In other threads than the main one they never disturb."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # An event loop hears signals by itself, and between steps only; a handler that is not Python's cannot be put back.
    if not _in_main_thread() or _in_loop() or None in handlers.values():
        yield
        return
    heard: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, _: heard.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in heard:
            signal.raise_signal(each)


def _close_all() -> None:
    for subject, process in list(_open.values()):
        if process != os.getpid():
            continue
        try:
            subject.close()
        except Exception:  # noqa: BLE001 - nobody is left to raise it to, and the others come next
            told = process_redactor().redact_text(traceback.format_exc())
            _log.error("%s could not be closed at the end of the program: %s", type(subject).__qualname__, told)


def _unwind(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
