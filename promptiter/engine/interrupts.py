"""Interrupt: how a person stops a run. The first Ctrl-C lets the round in flight finish, the second stops at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

T = TypeVar("T")
Tell = Callable[[str], None]


class Interrupt:
    """A wish to stop, from a signal, a button, another thread or a file. The run looks at it between rounds.

    A run that is stopped can go on later, so it claims nothing yet; with `test_now` the search ends and it does.
    """

    def __init__(self, *, test_now: bool = False) -> None:
        self.test_now = test_now
        self.asked: str | None = None
        self._stop_file: Path | None = None

    def ask(self, why: str) -> None:
        """Stop after the round in flight."""
        self.asked = self.asked or why

    def watch(self, stop_file: Path) -> None:
        """A wish to stop is also a file that appears here."""
        self._stop_file = stop_file

    @property
    def why(self) -> str | None:
        """How the user asked to stop; None if nobody did."""
        if self.asked is None and self._stop_file is not None and self._stop_file.exists():
            return f"a file {self._stop_file.name!r} in the run's folder"
        return self.asked


def run_blocking(work: Callable[[], Coroutine[Any, Any, T]], interrupt: Interrupt, *, tell: Tell = lambda _: None) -> T:
    """What the work gives. Signals ask it to stop, then cancel it; it is expected to give a result even so.

    Where an event loop is running already, it gets a thread and a loop of its own. There signals do not reach it: the
    thread that waits hears Ctrl-C and hands it on.
    """

    async def conduct(started: Callable[[asyncio.Task[T]], None]) -> T:
        task = asyncio.create_task(work())
        started(task)
        with on_signals(interrupt, task.cancel, tell=tell):
            return await task

    if not _is_in_loop():
        return _run(conduct(lambda _: None))
    outcome: Future[T] = Future()
    running: list[asyncio.Task[T]] = []

    def in_a_thread() -> None:
        try:
            outcome.set_result(_run(conduct(running.append)))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that waits
            outcome.set_exception(error)

    threading.Thread(target=in_a_thread, name="promptiter-run", daemon=True).start()
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            _heard(
                "Ctrl-C",
                interrupt,
                lambda: running and running[0].get_loop().call_soon_threadsafe(running[0].cancel),
                tell,
            )


@contextmanager
def on_signals(interrupt: Interrupt, stop_now: Callable[[], object], *, tell: Tell = lambda _: None) -> Iterator[None]:
    """While this is open, the first Ctrl-C, SIGTERM or SIGHUP asks the run to stop, and the second calls `stop_now`.

    `tell` hears what a person should know. Outside the main thread, where Python hears no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}  # as by nohup
    for number in before:
        name = "Ctrl-C" if number is signal.SIGINT else number.name
        loop.add_signal_handler(number, _heard, name, interrupt, stop_now, tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, but threads that hang, in a tool or function that was given up, are not waited for."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        asyncio.set_event_loop(None)
        loop.close()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _heard(name: str, interrupt: Interrupt, stop_now: Callable[[], object], tell: Tell) -> None:
    if interrupt.asked is None:
        interrupt.ask(name)
        tell(f"{name}: finishing this round; once more stops at once")
    else:
        tell(f"{name}: stopping")
        stop_now()
