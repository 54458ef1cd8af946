"""Exit hooks: close agents when the program exits and on SIGTERM or SIGHUP, so that they restore their baseline."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol, TypeAlias

from promptiter.concurrency import is_in_loop
from promptiter.llm.redaction import process_redactor

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """Anything with a `close` method."""

    def close(self) -> object: ...


_Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers
_ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

_open: dict[int, tuple[Closable, int]] = {}
"""What to close, by identity, with the process that opened it: a fork must not close objects of its parent."""
_is_ending = False


def close_at_exit(subject: Closable) -> None:
    """Close it when the program exits, and on SIGTERM or SIGHUP, unless the program handles or ignores that itself."""
    if not _open:
        atexit.register(_close_all)
    _open[id(subject)] = (subject, os.getpid())
    _replace_handlers(signal.SIG_DFL, _end_program)


def cancel_close_at_exit(subject: Closable) -> None:
    """Undo `close_at_exit`."""
    _open.pop(id(subject), None)
    if _open:
        return
    atexit.unregister(_close_all)
    _replace_handlers(_end_program, signal.SIG_DFL)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals to the end of this block. Has an effect only in the main thread, which receives them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, *_ENDING)}
    # An event loop handles signals between its steps; a handler that is not Python's could not be reinstalled.
    if not _in_main_thread() or is_in_loop() or None in handlers.values():
        yield
        return
    received: list[int] = []
    for number in handlers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in received:
            signal.raise_signal(each)


def is_ending() -> bool:
    """Whether the program is ending, so that nothing may be opened again."""
    return _is_ending


def _close_all() -> None:
    global _is_ending  # noqa: PLW0603 - of this process
    _is_ending = True
    for subject, process in list(_open.values()):
        if process != os.getpid():
            continue
        try:
            subject.close()
        except Exception:  # noqa: BLE001 - the program is ending, and the others must be closed too
            text = process_redactor().redact_text(traceback.format_exc())
            _log.error("%s could not be closed when the program ended: %s", type(subject).__qualname__, text)


def _replace_handlers(old: _Handler, new: _Handler) -> None:
    """Replace one handler of the signals that end a program by another. Only the main thread can."""
    for number in _ENDING if _in_main_thread() else ():
        if signal.getsignal(number) is old:
            signal.signal(number, new)


def _end_program(number: int, _: FrameType | None) -> None:
    """Close everything, then end at once, as Python does on a signal without a handler.

    An error raised here instead could appear between any two instructions: it would get lost in code that catches all
    errors, or leave an event loop that cannot end.
    """
    _close_all()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the signal may have interrupted a write
            stream.flush()
    os._exit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
