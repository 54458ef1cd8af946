"""One command in the copy: its start without rights, its output up to a limit, and its end, with all it started."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from promptiter.sandbox.protocol import Message, read_message
from promptiter.sandbox.supervisor.attributes import AttributeChanges
from promptiter.sandbox.supervisor.processes import Processes, end_processes, reap
from promptiter.sandbox.supervisor.quota import Quota

_TICK_MS = 50
_PART = 1 << 16
_RESET = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP)


class CommandRequest(NamedTuple):
    """What to run, where, and for how long."""

    command: list[str]
    environment: dict[str, str]
    cwd: str
    stdin: bytes
    timeout_s: float
    grace_s: float
    max_output_bytes: int


class Restrictions(NamedTuple):
    """What is done in the new process before it becomes the command, and what is watched while it runs."""

    apply: Callable[[], int]
    processes: Processes
    max_processes: int
    quota: Quota
    changeable: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """How it ended: `exited`, or why it was ended. `code` is negative if it was a signal."""

    how: str
    code: int
    stdout: bytes
    stderr: bytes

    def to_json(self) -> Message:
        return {"how": self.how, "code": self.code, "stdout_size": len(self.stdout)}


def run_command(request: CommandRequest, restrictions: Restrictions, *, messages: int) -> Outcome:
    """Run a command to its end. EOFError if promptiter has ended meanwhile: then the caller ends everything."""
    streams = _Streams(request, restrictions.changeable)
    process = streams.start(lambda send: _become(request, restrictions, send))
    statuses: dict[int, int] = {}
    try:
        how, error = _wait(process, streams, statuses, request, restrictions, messages)
    except OSError:
        end_processes(restrictions.processes, grace_s=0.0)
        streams.close()
        raise
    if how == "exited":
        end = time.monotonic() + request.grace_s
        while streams.is_open() and not streams.exceeded and time.monotonic() < end:  # of children left behind
            streams.move(_TICK_MS)
            reap(statuses)
        how = streams.exceeded or ("quota" if restrictions.quota.is_exceeded(at_end=True) else how)
    end_processes(restrictions.processes, grace_s=request.grace_s if how not in {"processes", "quota"} else 0.0)
    while streams.is_open() and streams.move(0):
        pass
    streams.close()
    if error:
        return Outcome("not started", error, b"", b"")
    status = statuses.get(process, signal.SIGKILL)
    return Outcome(how, os.waitstatus_to_exitcode(status), bytes(streams.stdout), bytes(streams.stderr))


def _wait(
    process: int,
    streams: _Streams,
    statuses: dict[int, int],
    request: CommandRequest,
    restrictions: Restrictions,
    messages: int,
) -> tuple[str, int]:
    """Move data until the command ends or has to be ended. Returns why, and the error if it did not start."""
    end = time.monotonic() + request.timeout_s
    watched = select.poll()
    watched.register(messages, select.POLLIN)
    while True:
        left_s = end - time.monotonic()
        if left_s <= 0:
            return "timeout", 0
        streams.move(min(_TICK_MS, max(1, int(left_s * 1000))))
        reap(statuses)
        if process in statuses:
            return "exited", streams.read_start_error()
        if streams.exceeded:
            return streams.exceeded, 0
        if watched.poll(0):
            read_message(messages)  # the only one that can come now is that the task was cancelled
            return "cancelled", 0
        if restrictions.processes.exceeds(restrictions.max_processes):
            return "processes", 0
        if restrictions.quota.is_exceeded():
            return "quota", 0


def _become(request: CommandRequest, restrictions: Restrictions, send: Callable[[int], None]) -> NoReturn:
    """In the new process: give up all rights, and become the command."""
    os.setsid()
    for number in _RESET:
        signal.signal(number, signal.SIG_DFL)
    os.chdir(request.cwd)
    send(restrictions.apply())
    os.execvpe(request.command[0], request.command, request.environment)


class _Streams:
    """Standard input, output and error of a command, and one more pipe for an error at its start."""

    def __init__(self, request: CommandRequest, changeable: tuple[str, ...]) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.exceeded = ""
        self._limit = request.max_output_bytes
        self._input = memoryview(request.stdin)
        self._poll = select.poll()
        self._outputs: dict[int, bytearray] = {}
        self._writer = -1
        self._errors = -1
        self._wake, self._woken = os.pipe()
        self._changeable = changeable
        self._attributes: AttributeChanges | None = None

    def start(self, become: Callable[[Callable[[int], None]], NoReturn]) -> int:
        """Fork. The child never returns."""
        for_input, self._writer = os.pipe()
        of_output, output = os.pipe()
        of_error, error = os.pipe()
        self._errors, start_error = os.pipe()
        here, there = socket.socketpair()
        process = os.fork()
        if not process:
            try:
                for number, descriptor in enumerate((for_input, output, error)):
                    os.dup2(descriptor, number)
                become(lambda listener: _send_listener(there, listener))
            except BaseException as problem:  # noqa: BLE001 - the parent reports it
                number = problem.errno if isinstance(problem, OSError) and problem.errno else 255
                os.write(start_error, bytes((min(number, 255),)))
            os._exit(127)
        for descriptor in (for_input, output, error, start_error):
            os.close(descriptor)
        there.close()
        self._receive_listener(here)
        for descriptor in (self._writer, of_output, of_error, self._wake, self._woken):
            os.set_blocking(descriptor, False)
        self._outputs = {of_output: self.stdout, of_error: self.stderr}
        for descriptor in (of_output, of_error, self._wake):
            self._poll.register(descriptor, select.POLLIN)
        self._poll.register(self._writer, select.POLLOUT)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        return process

    def is_open(self) -> bool:
        """Whether some process can still write."""
        return bool(self._outputs)

    def move(self, timeout_ms: int) -> bool:
        """Wait for something to happen, and move data. False if nothing happened."""
        events = self._poll.poll(timeout_ms)
        for descriptor, event in events:
            if descriptor == self._wake:
                os.read(self._wake, _PART)
            elif descriptor == self._writer:
                self._write()
            elif self._attributes is not None and descriptor == self._attributes.listener:
                self._answer_call(self._attributes, event)
            else:
                self._read(descriptor)
        return bool(events)

    def read_start_error(self) -> int:
        """The error number of a command that could not be started; 0 if it was."""
        found = os.read(self._errors, 1)
        return found[0] if found else 0

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for descriptor in (*self._outputs, self._errors, self._wake, self._woken):
            os.close(descriptor)
        self._outputs = {}
        self._close_writer()
        if self._attributes is not None:
            self._attributes.close()

    def _receive_listener(self, here: socket.socket) -> None:
        """The child sends it once it has given up its rights; nothing, if it has failed before."""
        with here:
            _, listeners, _, _ = socket.recv_fds(here, 1, 1)
        if listeners:
            self._attributes = AttributeChanges(listeners[0], self._changeable)
            self._poll.register(listeners[0], select.POLLIN)

    def _answer_call(self, attributes: AttributeChanges, event: int) -> None:
        if event & select.POLLIN:
            attributes.answer()
        else:  # no process is left that could ask
            self._poll.unregister(attributes.listener)

    def _read(self, descriptor: int) -> None:
        collected = self._outputs[descriptor]
        try:
            part = os.read(descriptor, _PART)
        except BlockingIOError:
            return
        if not part:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._outputs[descriptor]
            return
        room = self._limit - len(collected)
        collected += part[:room]
        if len(part) > room:
            self.exceeded = self.exceeded or ("stdout" if collected is self.stdout else "stderr")

    def _write(self) -> None:
        try:
            if self._input:
                self._input = self._input[os.write(self._writer, self._input[:_PART]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._input = memoryview(b"")
        if not self._input:
            self._close_writer()

    def _close_writer(self) -> None:
        if self._writer >= 0:
            self._poll.unregister(self._writer)
            os.close(self._writer)
            self._writer = -1


def _send_listener(there: socket.socket, listener: int) -> None:
    if listener >= 0:
        socket.send_fds(there, [b"l"], [listener])
    there.close()


def install_child_handler() -> None:
    """Let the end of a child end a wait at once."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
