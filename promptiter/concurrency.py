"""Concurrency helpers: run coroutines together, limit them, do blocking work, and finish work before a cancellation.

Several threads may have an event loop each, such as those of runs that were started with `run_sync`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextvars import copy_context
from functools import cache
from queue import Empty, SimpleQueue
from types import CodeType, FunctionType
from typing import Any, TypeVar

T = TypeVar("T")

MAX_IDLE_S = 5.0
"""How long a thread waits for work before it ends."""


async def run_together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run all calls at once and return their results in order. The first error cancels the others and is raised."""
    calls = list(calls)
    if len(calls) == 1:  # needs no task of its own
        return [await calls[0]]
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


async def run_in_thread(work: Callable[[], T]) -> T:
    """Do blocking work in a thread, and finish it before a cancellation takes effect.

    The threads of `asyncio.to_thread` are few and shared with tools of the user, which may hang.
    """
    return await finish_before_cancel(asyncio.wrap_future(_threads.run(work)))


def start_in_thread(work: Callable[[], object]) -> None:
    """Start blocking work in a thread. It must not raise: nothing waits for it."""
    _threads.run(work)


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or the `__call__` of an object, is async."""
    for each in (function, type(function).__call__):
        code = getattr(each, "__code__", None)
        if type(code) is CodeType and code.co_flags & inspect.CO_COROUTINE:
            return True
    if isinstance(function, FunctionType):
        return inspect.iscoroutinefunction(function)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def call_in_thread(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call a synchronous function of the user in a thread. A cancellation does not wait for it: it may hang."""
    return await asyncio.wrap_future(_threads.run(lambda: function(*arguments, **keywords)))


async def call_any(function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
    """Call a function or callable object of the user: an async one here, a synchronous one in a thread."""
    if is_async(function):
        return await function(*arguments, **keywords)
    answer = await call_in_thread(function, *arguments, **keywords)
    return await answer if inspect.isawaitable(answer) else answer


_STOPPED = "the function raised StopIteration; give `next` a default, or catch it"


class _Threads:
    """Threads for blocking work, as many as are needed at a time. One that is idle is used again.

    Work that hangs keeps its thread; nothing else waits for it, not even the end of the program.
    """

    def __init__(self) -> None:
        self._idle: deque[SimpleQueue[Callable[[], None]]] = deque()
        os.register_at_fork(after_in_child=self._idle.clear)  # a forked process has none of these threads

    def run(self, work: Callable[[], T]) -> Future[T]:
        """Do the work in a thread, with a copy of the context."""
        finished: Future[T] = Future()
        finished.set_running_or_notify_cancel()  # a cancelled waiter must not keep the thread from setting the result
        here = copy_context()

        def run() -> None:
            try:
                finished.set_result(here.run(work))
            except StopIteration as error:  # asyncio cannot pass it on, so the waiting task would hang
                finished.set_exception(RuntimeError(_STOPPED).with_traceback(error.__traceback__))
            except BaseException as error:  # noqa: BLE001 - it is raised in the waiting task
                finished.set_exception(error)

        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._serve, args=(jobs,), name="promptiter-call", daemon=True).start()
        jobs.put(run)
        return finished

    def _serve(self, jobs: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                job = jobs.get(timeout=MAX_IDLE_S)
            except Empty:
                try:
                    self._idle.remove(jobs)
                except ValueError:  # it was given work just now
                    continue
                return
            job()
            del job  # what it refers to may be released now
            self._idle.append(jobs)


_threads = _Threads()


async def finish_before_cancel(work: Awaitable[T]) -> T:
    """Finish the work before a cancellation takes effect."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - the task's own error, raised below
            break
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


class Slots:
    """At most `count` holders at a time, first come first served, over the event loops of all threads.

    async with slots:
        await call()
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        with self._lock:
            if self._free and not self._waiters:
                self._free -= 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                is_waiting = turn in self._waiters
                if is_waiting:
                    self._waiters.remove(turn)
            if not is_waiting:  # it was granted just before the cancellation
                self._release()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _release(self) -> None:
        with self._lock:
            while self._waiters:
                if settle_future(self._waiters.popleft()):
                    return
            self._free += 1


class HomeLoop:
    """One event loop on which the calls of several threads are made: the first that was bound and still runs.

    The loop of a run outlives the calls that its threads make. Otherwise any caller's loop may end first
    (`outlives_callers=False`): once a second loop makes calls, all are made on one in the background, which never ends.
    A forked process has loops of its own: those of its parent do not run there.
    """

    def __init__(self, *, outlives_callers: bool = True) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = os.getpid()
        self._outlives_callers = outlives_callers

    def bind(self, *, replace: bool = False) -> asyncio.AbstractEventLoop:
        """Make calls on the running event loop from now on, unless the loop bound before still runs, or in any case."""
        if replace or self._loop is None or not self._loop.is_running() or self._process != os.getpid():
            self._loop, self._process = asyncio.get_running_loop(), os.getpid()
        return self._loop

    async def wait_until_free(self, timeout_s: float) -> bool:
        """Wait until this loop, if it is another one that runs, has time for something else. False if it has not."""
        home = self._loop
        if home is None or not home.is_running() or home is asyncio.get_running_loop() or self._process != os.getpid():
            return True
        reached, here = asyncio.Event(), asyncio.get_running_loop()
        if not call_in_loop(home, lambda: call_in_loop(here, reached.set)):
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await reached.wait()
        except TimeoutError:
            return False
        return True

    def is_running_here(self) -> bool:
        """Whether calls are made on the running event loop. Binds it, unless the loop bound before still runs."""
        running = asyncio.get_running_loop()
        return self._loop is running or self.bind() is running

    async def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call on this loop, and return its result on the running one."""
        home = self.bind()
        if home is asyncio.get_running_loop():
            return await call
        if not self._outlives_callers:
            home = self._loop = get_background_loop()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, home))


def settle_future(future: asyncio.Future[None], error: BaseException | None = None) -> bool:
    """Let a future of any thread's event loop return, or raise the error. False if its loop has ended."""

    def settle() -> None:
        if future.done():  # it was cancelled meanwhile
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return call_in_loop(future.get_loop(), settle)


def call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Call now if this is the loop that is running, otherwise soon, in its thread. False if it has ended."""
    if is_in_loop() and asyncio.get_running_loop() is loop:
        call()
        return True
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True


def get_background_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own, for synchronous code outside of event loops. Starts at the first use."""
    return _start_background_loop(os.getpid())


@cache
def _start_background_loop(process: int) -> asyncio.AbstractEventLoop:  # noqa: ARG001 - a forked process needs its own
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="promptiter-background", daemon=True).start()
    return loop


def is_cancelled(error: BaseException) -> bool:
    """Whether an error is a cancellation of the current task, not a CancelledError that user code raised."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def is_in_loop() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
