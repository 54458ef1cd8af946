"""Exit hooks: close agents when the program exits and on SIGTERM, so that they restore their baseline."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Protocol

from promptiter.concurrency import is_in_loop
from promptiter.llm.redaction import process_redactor

_log = logging.getLogger(__name__)


class Closable(Protocol):
    """Anything with a `close` method."""

    def close(self) -> object: ...


_open: dict[int, tuple[Closable, int]] = {}
"""What to close, by identity, with the process that opened it: a fork must not close objects of its parent."""
_is_ending = False


class TerminatedError(KeyboardInterrupt):
    """The program is ending, and everything is closed. Like Ctrl-C, it passes code that catches errors of agents."""


def close_at_exit(subject: Closable) -> None:
    """Close it when the program exits. On SIGTERM, unless it has a handler, close it at once and unwind the stack.

    By default Python would die of a SIGTERM at once.
    """
    if not _open:
        atexit.register(_close_all)
    _open[id(subject)] = (subject, os.getpid())
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _unwind)


def cancel_close_at_exit(subject: Closable) -> None:
    """Undo `close_at_exit`."""
    _open.pop(id(subject), None)
    if _open:
        return
    atexit.unregister(_close_all)
    if _in_main_thread() and signal.getsignal(signal.SIGTERM) is _unwind:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def defer_signals() -> Iterator[None]:
    """Defer signals to the end of this block. Has an effect only in the main thread, which receives them."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
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


def _unwind(number: int, _: FrameType | None) -> None:
    """Close everything now, whatever the code that is interrupted here does with the error."""
    show_error = sys.excepthook

    def exit_quietly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, TerminatedError):
            show_error(kind, error, trace)
            return
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + number)

    sys.excepthook = exit_quietly
    _close_all()
    raise TerminatedError


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
