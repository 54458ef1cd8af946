"""ProcessExecutor: runs cases in processes of their own, for agents that block or keep the interpreter busy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial

from promptiter.concurrency import Slots
from promptiter.errors import SetupError
from promptiter.evaluation.case_runner import CaseJob, describe_timeout
from promptiter.evaluation.executor import FinishedJob, run_concurrently
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.workers.frames import FrameKind, encode_frame, read_frame
from promptiter.evaluation.workers.job_host import JobHost
from promptiter.evaluation.workers.job_messages import OverdueError, WorkerLostError
from promptiter.evaluation.workers.worker_process import is_worker_process
from promptiter.numbers import check_count
from traces import Failure

STOP_S = 2.0
"""A worker that is idle gets this long to end by itself."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from promptiter.evaluation.workers.worker_process import main; main()"
)


class ProcessExecutor:
    """Runs jobs in `workers` processes (default: one per CPU), each one job at a time.

    The processes are started when they are first needed, and shared by all evaluations, also those of other threads,
    until `close` is called or this process ends. Agents and metrics must be importable; see docs/evaluation.md. A case
    whose process dies runs once more in another one; if that dies too, the case has an error.
    """

    def __init__(self, *, workers: int | None = None) -> None:
        if workers is not None:
            check_count(workers, "workers")
        self.workers = workers or os.cpu_count() or 1
        self._idle: list[WorkerProcess] = []
        self._all: set[WorkerProcess] = set()
        self._slots = Slots(self.workers)
        self._lock = threading.Lock()
        weakref.finalize(self, _stop, self._all)  # also when this process ends

    def __enter__(self) -> ProcessExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes. An evaluation that is under way, or starts later, starts new ones."""
        self._idle.clear()
        _stop(self._all)

    async def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        if os.name == "nt":
            raise SetupError("ProcessExecutor does not work on Windows; use ThreadExecutor, or WSL")
        if is_worker_process():
            raise SetupError(
                "the module of the agent starts an evaluation when a worker imports it; start it under "
                "`if __name__ == '__main__':`"
            )
        run_job = partial(self._run_job, host)
        async with aclosing(run_concurrently(jobs, run_job, concurrency=self.workers)) as finished:
            async for each in finished:
                yield each

    async def _run_job(self, host: JobHost, job: CaseJob) -> CaseRow:
        packed = host.pack(job)
        for _ in range(2):
            try:
                async with self._borrow_worker() as worker:
                    result = await worker.run(packed, host)
            except OverdueError:
                return await host.fail(job, describe_timeout(host.runner.context.deadline_s))
            except WorkerLostError as error:
                lost = error
            else:
                return await host.receive(result)
        return await host.fail(job, Failure(type(lost).__name__, f"{lost}, twice"))

    @asynccontextmanager
    async def _borrow_worker(self) -> AsyncIterator[WorkerProcess]:
        async with self._slots:
            with self._lock:
                worker = self._find_worker()
            try:
                yield worker
            except BaseException:
                self._all.discard(worker)
                worker.kill()
                raise
            self._idle.append(worker)

    def _find_worker(self) -> WorkerProcess:
        path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - Path.absolute keeps `..`
        while self._idle:
            worker = self._idle.pop()
            if worker.is_usable(path):
                return worker
            self._all.discard(worker)
            worker.kill()
        worker = WorkerProcess(path)
        self._all.add(worker)
        return worker


class WorkerProcess:
    """A worker process as its host sees it. It belongs to no event loop, and outlives them."""

    def __init__(self, path: list[str]) -> None:
        self._path = path
        self._is_ready = False
        self._is_ended = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-c", _START, json.dumps(path)]
            # A session of its own: Ctrl-C goes to the host only, and the worker ends with all that it started.
            self._process = subprocess.Popen(command, stdin=theirs.fileno(), start_new_session=True)

    def is_usable(self, path: list[str]) -> bool:
        """Whether it runs and imports from the same folders."""
        return self._path == path and self._process.poll() is None

    async def run(self, packed: bytes, host: JobHost) -> bytes:
        """Run a job and answer its calls. Raises WorkerLostError if the process ends."""
        reader, writer = await asyncio.open_connection(sock=self._socket.dup())
        conversation = _Conversation(host, writer)
        try:
            writer.write(encode_frame(FrameKind.JOB, payload=packed))
            while True:
                kind, number, payload = await read_frame(reader)
                self._is_ready = True
                if kind is FrameKind.RESULT:
                    return payload
                if kind is FrameKind.OVERDUE:
                    raise OverdueError("the agent blocked its worker process beyond the deadline")
                conversation.take(kind, number, payload)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._explain_end() from error
        finally:
            await conversation.end()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    def kill(self) -> None:
        """End the process, and those that it started, at once."""
        self._socket.close()
        if not self._is_ended:  # afterwards, its number may be that of another process
            self._is_ended = True
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Let the process end by itself."""
        self._socket.close()

    def wait(self) -> None:
        """Wait for the process to end by itself, and kill it if it does not."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self.kill()

    async def _explain_end(self) -> Exception:
        await asyncio.to_thread(self.wait)
        code = self._process.returncode
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        if not self._is_ready and code >= 0:
            return SetupError(f"a worker process {how} before it was ready; its error output says why")
        return WorkerLostError(f"the worker process of this case {how}")


class _Conversation:
    """The calls of a worker during one job."""

    def __init__(self, host: JobHost, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._writer = writer
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._executing: dict[int, asyncio.Future[bytes]] = {}

    def take(self, kind: FrameKind, number: int, payload: bytes) -> None:
        if kind is FrameKind.CALL:
            self._calls[number] = asyncio.get_running_loop().create_task(self._answer(number, payload))
        elif kind is FrameKind.CANCEL and number in self._calls:
            self._calls[number].cancel()
        elif kind is FrameKind.EXECUTED and number in self._executing and not self._executing[number].done():
            self._executing[number].set_result(payload)

    async def end(self) -> None:
        """Cancel what is under way. Others that wait for a tool of this worker learn that it was lost."""
        for waiting in self._executing.values():
            if not waiting.done():
                waiting.set_exception(WorkerLostError("the worker process of this tool call ended"))
                waiting.exception()  # retrieved, even if no other call waits for it
        for call in self._calls.values():
            call.cancel()
        await asyncio.gather(*self._calls.values(), return_exceptions=True)

    async def _answer(self, number: int, call: bytes) -> None:
        try:
            answer = await self._host.answer(call, partial(self._execute, number))
            self._writer.write(encode_frame(FrameKind.ANSWER, number, answer))
        finally:
            del self._calls[number]

    async def _execute(self, number: int) -> bytes:
        self._executing[number] = asyncio.get_running_loop().create_future()
        self._writer.write(encode_frame(FrameKind.EXECUTE, number))
        try:
            return await self._executing[number]
        except asyncio.CancelledError:
            self._writer.write(encode_frame(FrameKind.CANCEL, number))
            raise
        finally:
            del self._executing[number]


def _stop(workers: set[WorkerProcess]) -> None:
    ending = list(workers)
    workers.clear()
    for worker in ending:
        worker.stop()
    for worker in ending:
        worker.wait()
