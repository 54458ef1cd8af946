"""Interrupt: how a person stops a run. The first Ctrl-C lets the round in flight finish, the second stops at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """A wish to stop, from a signal, a button or another thread. The run looks at it between rounds."""

    def __init__(self) -> None:
        self.why: str | None = None

    def ask(self, why: str) -> None:
        """Stop after the round in flight."""
        self.why = self.why or why


@contextmanager
def on_signals(
    interrupt: Interrupt, stop_now: Callable[[], object], *, tell: Callable[[str], None] = lambda _: None
) -> Iterator[None]:
    """While this is open, the first Ctrl-C or SIGTERM asks the run to stop, and the second calls `stop_now`.

    `tell` hears what a person should know. Outside the main thread, where Python hears no signals, it does nothing.
    """
    loop = asyncio.get_running_loop()

    def heard(number: signal.Signals) -> None:
        name = "Ctrl-C" if number is signal.SIGINT else number.name
        if interrupt.why is None:
            interrupt.ask(name)
            tell(f"{name}: finishing this round; once more stops at once")
        else:
            tell(f"{name}: stopping")
            stop_now()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
