"""The process of a worker: it reads jobs from the socket that is its standard input, and ends when the host does.

What user code prints goes to the output of the host, since standard output and error are inherited.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from typing import NoReturn

from promptiter.errors import SetupError
from promptiter.evaluation.workers.frames import Frame, FrameKind, encode_frame, receive_frame
from promptiter.evaluation.workers.job_messages import ExecuteTool
from promptiter.evaluation.workers.job_worker import JobWorker

EXIT_S = 5.0
"""An idle process that has not ended this long after its host did is killed."""

_is_worker = False


def is_worker_process() -> bool:
    """Whether this process is a worker."""
    return _is_worker


def main() -> None:
    """Serve the host until it closes the socket."""
    global _is_worker  # noqa: PLW0603 - a fact about the process
    _is_worker = True
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # user code that reads its input must not read frames
    os.close(nothing)
    try:
        with asyncio.Runner() as runner:
            _JobServer(connection, runner.get_loop()).serve(runner)
    except BaseException:  # noqa: BLE001 - at once, whatever threads are left: the host waits for this process
        traceback.print_exc()
        sys.stdout.flush()
        os._exit(1)


class _JobServer:
    """Runs one job at a time in the main thread; another one receives frames, also while user code blocks."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._loop = loop
        self._sending = threading.Lock()
        self._jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._worker = JobWorker(self, on_overdue=self._give_up)
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._tools: dict[int, ExecuteTool] = {}
        self._executing: dict[int, asyncio.Task[None]] = {}
        self._is_busy = False

    def serve(self, runner: asyncio.Runner) -> None:
        """Run jobs until the host closes the socket."""
        self._send(FrameKind.READY)
        threading.Thread(target=self._receive, name="promptiter-host", daemon=True).start()
        while (packed := self._jobs.get()) is not None:
            run = self._worker.prepare(packed)
            result = runner.run(run(), context=contextvars.copy_context())
            sys.stdout.flush()
            sys.stderr.flush()
            self._is_busy = False
            for waiting in self._answers.values():
                waiting.cancel()  # of tasks that the case has left behind
            self._send(FrameKind.RESULT, payload=result)

    def _receive(self) -> None:
        while (frame := receive_frame(self._connection)) is not None:
            if frame[0] is FrameKind.JOB:
                self._is_busy = True
                self._jobs.put(frame[2])
            else:
                self._loop.call_soon_threadsafe(self._take, frame)
        if self._is_busy:
            _end_process_group()
        self._jobs.put(None)
        time.sleep(EXIT_S)
        _end_process_group()

    async def call(self, call: bytes, execute: ExecuteTool) -> bytes:
        if not self._is_busy:
            raise SetupError("a call was made after its case had ended; await all tasks of a case before it ends")
        number = next(self._numbers)
        self._answers[number] = self._loop.create_future()
        self._tools[number] = execute
        self._send(FrameKind.CALL, number, call)
        try:
            return await self._answers[number]
        except asyncio.CancelledError:
            self._send(FrameKind.CANCEL, number)
            raise
        finally:
            del self._answers[number], self._tools[number]

    def _take(self, frame: Frame) -> None:
        kind, number, payload = frame
        if kind is FrameKind.ANSWER and (waiting := self._answers.get(number)) is not None and not waiting.done():
            waiting.set_result(payload)
        elif kind is FrameKind.EXECUTE and number in self._tools:
            self._executing[number] = self._loop.create_task(self._execute(number, self._tools[number]))
        elif kind is FrameKind.CANCEL and number in self._executing:
            self._executing[number].cancel()

    async def _execute(self, number: int, execute: ExecuteTool) -> None:
        try:
            self._send(FrameKind.EXECUTED, number, await execute())
        finally:
            del self._executing[number]

    def _send(self, kind: FrameKind, number: int = 0, payload: bytes = b"") -> None:
        with self._sending:
            self._connection.sendall(encode_frame(kind, number, payload))

    def _give_up(self) -> None:
        self._send(FrameKind.OVERDUE)
        _end_process_group()


def _end_process_group() -> NoReturn:
    """End this process and those that it started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)
