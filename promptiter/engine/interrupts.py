"""Interrupt: how a person stops a run. The first Ctrl-C finishes the work in progress, the second stops at once."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from promptiter.concurrency import is_in_loop

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))

_received: set[signal.Signals] = set()
"""The signals that have asked a run of this process to stop."""

T = TypeVar("T")
Notify = Callable[[str], None]


class Interrupt:
    """A request to stop, from a signal, a button, another thread or a file.

    The case runs and stage calls in progress are finished, and no others are started, wherever the run is: in a round
    or in the final test. It can be resumed. With `test_now` the search ends after the current round, and the test
    follows. A run that is handed over writes no end: another process continues it as if this one had been killed.
    """

    def __init__(self, *, test_now: bool = False) -> None:
        self._test_now = test_now
        self._test_requests: list[Callable[[], bool]] = []
        self._reason: str | None = None
        self._is_handed_over = False
        self._find_request: Callable[[], str | None] = lambda: None

    def stop(self, reason: str) -> None:
        """Stop after the work in progress."""
        self._reason = self._reason or reason

    def hand_over(self, reason: str) -> None:
        """Stop after the work in progress, for another process to continue."""
        self._is_handed_over = self._is_handed_over or self._reason is None
        self.stop(reason)

    @property
    def is_handed_over(self) -> bool:
        """Whether another process continues the run."""
        return self._is_handed_over

    def watch(self, find_request: Callable[[], str | None]) -> None:
        """Also stop once this returns how a stop was requested."""
        self._find_request = find_request

    def end_search_when(self, is_requested: Callable[[], bool]) -> None:
        """Also end the search, and test its result, once this returns true."""
        self._test_requests.append(is_requested)

    @property
    def test_now(self) -> bool:
        """Whether the search ends after the current round, and the final test follows."""
        return self._test_now or any(is_requested() for is_requested in self._test_requests)

    @property
    def reason(self) -> str | None:
        """How the user asked to stop; None if the run should continue."""
        return self._reason or self._find_request()

    def on_signal(self, name: str, stop_now: Callable[[], object], notify: Notify) -> None:
        """Stop after the work in progress, or at once if this is the second signal."""
        if self._reason is None:
            self.stop(name)
            notify(f"{name}: finishing the work in progress; a second one stops at once")
        else:
            notify(f"{name}: stopping")
            stop_now()


def run_blocking(
    work: Callable[[], Coroutine[Any, Any, T]], interrupt: Interrupt, *, notify: Notify = lambda _: None
) -> T:
    """Return the result of `work`. The first signal asks it to stop, the second cancels it; both should give a result.

    If an event loop is already running, `work` gets its own thread and loop. Signals do not reach that thread, so the
    waiting one catches Ctrl-C and passes it on. Once SIGTERM or SIGHUP has stopped one call, the next one ends the
    process: it is asked to end, and a loop over runs would start another.
    """
    for number in _received - {signal.SIGINT}:
        raise SystemExit(128 + number)

    async def run_task(on_start: Callable[[asyncio.Task[T]], None]) -> T:
        task = asyncio.create_task(work())
        on_start(task)
        with on_signals(interrupt, task.cancel, notify=notify):
            return await task

    if not is_in_loop():
        return _run(run_task(lambda _: None))
    outcome: Future[T] = Future()
    running: list[asyncio.Task[T]] = []

    def run_in_own_loop() -> None:
        try:
            outcome.set_result(_run(run_task(running.append)))
        except BaseException as error:  # noqa: BLE001 - it is raised again in the waiting thread
            outcome.set_exception(error)

    threading.Thread(target=run_in_own_loop, name="promptiter-run", daemon=True).start()
    while True:
        try:
            return outcome.result()
        except KeyboardInterrupt:
            interrupt.on_signal(
                "Ctrl-C", lambda: running and running[0].get_loop().call_soon_threadsafe(running[0].cancel), notify
            )


@contextmanager
def on_signals(
    interrupt: Interrupt, stop_now: Callable[[], object], *, notify: Notify = lambda _: None
) -> Iterator[None]:
    """In this block the first Ctrl-C, SIGTERM or SIGHUP asks the run to stop, and the second calls `stop_now`.

    `notify` is called with messages for the user. Outside the main thread, where Python gets no signals, the block
    does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    # What nohup or a script ignores stays ignored.
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}

    def handle(number: signal.Signals) -> None:
        _received.add(number)
        interrupt.on_signal("Ctrl-C" if number is signal.SIGINT else number.name, stop_now, notify)

    for number in before:
        loop.add_signal_handler(number, handle, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, but does not wait for threads that hang in a tool or function that timed out."""
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
