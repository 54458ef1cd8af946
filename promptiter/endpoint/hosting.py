"""One endpoint for all sessions of a process: a server in a daemon thread with an event loop of its own.

It starts with the first session, and stops a moment after the last one, or when the process ends.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass

from promptiter.concurrency import run_in_thread
from promptiter.endpoint.http_messages import Handle
from promptiter.endpoint.http_server import HttpServer

LINGER_S = 1.0
"""How long the server stays after the last session: the next one often follows at once."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that runs in a thread. `loop` is the event loop of that thread."""

    address: str
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread
    server: HttpServer


class EndpointHost:
    """Starts the server when it is needed, and stops it when it is not. May be used by several threads."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._lock = threading.Lock()
        self._running: RunningServer | None = None
        self._users = 0
        self._is_registered = False

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[RunningServer]:
        """The server for the time of a block, started if need be."""
        held: list[RunningServer] = []
        try:
            await run_in_thread(lambda: held.append(self.acquire()))  # is finished even if this is cancelled
            yield held[0]
        finally:
            if held:
                self.release()

    def acquire(self) -> RunningServer:
        """The server, started if need be; blocking. Each call is paired with one of `release`."""
        with self._lock:
            if self._running is None:
                self._running = self._start()
            self._users += 1
            return self._running

    def release(self) -> None:
        """Let the server stop in a moment, unless another session needs it."""
        with self._lock:
            self._users -= 1
            running = self._running
            if self._users or running is None:
                return
            loop = running.loop
            loop.call_soon_threadsafe(lambda: loop.call_later(LINGER_S, self._stop_if_idle, running))

    def stop(self) -> None:
        """Stop the server now, and wait for its end."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.loop.call_soon_threadsafe(running.loop.stop)
            running.thread.join(timeout=5.0)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._running = None
        self._users = 0

    def _stop_if_idle(self, running: RunningServer) -> None:
        with self._lock:
            if self._users or self._running is not running:
                return
            self._running = None
        running.loop.stop()

    def _start(self) -> RunningServer:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self.stop)
            os.register_at_fork(after_in_child=self._forget)  # a forked process has neither the thread nor its sessions
        started: Future[RunningServer] = Future()
        thread = threading.Thread(target=self._run, args=(started,), name="promptiter-endpoint", daemon=True)
        thread.start()
        return started.result()

    def _run(self, started: Future[RunningServer]) -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        server = HttpServer(self._handle)
        try:
            try:
                port = loop.run_until_complete(server.start())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the server
                started.set_exception(error)
                return
            started.set_result(RunningServer(f"http://127.0.0.1:{port}", loop, threading.current_thread(), server))
            loop.run_forever()
            loop.run_until_complete(server.close())
            loop.run_until_complete(_cancel_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            loop.close()


async def _cancel_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
