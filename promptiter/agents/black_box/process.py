"""Runs a command: an argument list that no shell reads, in a process group of its own that is ended as a whole.

Output is bounded in memory. A command that takes too long or writes too much is ended: SIGTERM for its group, and
SIGKILL after a grace period. The same happens on cancellation, to children that it leaves behind, and by the
ProcessGuard if this process is killed. A command starts only once the guard knows it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptiter.agents.argument_checks import check_above_zero
from promptiter.agents.black_box.output import show_tail
from promptiter.agents.black_box.process_guard import guard
from promptiter.concurrency import finish_before_cancel
from promptiter.errors import CommandError, SetupError
from promptiter.wording import shorten

_POLL_S = 0.02

_START = 'IFS= read -r promptiter_start || exit 1; unset promptiter_start{others}; exec "$@"'
"""Waits for a line on standard input, then becomes the command. If this process is killed before, none comes."""
_SET_BY_SHELLS = ("PWD", "OLDPWD", "SHLVL", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """How long a command may take, how long it has to end after SIGTERM, and how much it may write to each stream."""

    timeout_s: float = 300.0
    grace_s: float = 2.0
    max_output_bytes: int = 10_000_000

    def __post_init__(self) -> None:
        check_above_zero("timeout_s", self.timeout_s)
        check_above_zero("grace_s", self.grace_s)
        check_above_zero("max_output_bytes", self.max_output_bytes, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedProcess:
    """What a command wrote, and its exit code; a negative one is the signal that ended it."""

    code: int
    stdout: bytes
    stderr: bytes


async def run_process(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    cwd: Path | None = None,
    stdin: bytes = b"",
    limits: ProcessLimits | None = None,
) -> FinishedProcess:
    """Run a command to its end. Raises CommandError if it is ended, SetupError if it cannot be started."""
    limits = limits or ProcessLimits()
    if problem := find_start_problem(command, environment=environment, cwd=cwd):
        raise SetupError(problem)
    loop = asyncio.get_running_loop()
    watcher = _Watcher(loop, limits.max_output_bytes)
    others = "".join(f" {name}" for name in _SET_BY_SHELLS if name not in environment)
    waiting = ("/bin/sh", "-c", _START.format(others=others), "sh", *command)
    start = loop.subprocess_exec(lambda: watcher, *waiting, env=dict(environment), cwd=cwd, start_new_session=True)
    starting = asyncio.ensure_future(start)
    try:
        transport, _ = await asyncio.shield(starting)
    except asyncio.CancelledError:
        transport, _ = await finish_before_cancel(starting)
        await _end(transport, watcher, limits.grace_s)
        raise
    except (OSError, ValueError) as error:
        raise explain_start(command, error) from error
    try:
        pipe = transport.get_pipe_transport(0)
        if isinstance(pipe, asyncio.WriteTransport):
            pipe.write(b"\n" + stdin)
            pipe.close()
        try:
            async with asyncio.timeout(limits.timeout_s):
                await watcher.exited
        except TimeoutError:
            raise CommandError(describe_timeout(command, limits, watcher.stderr)) from None
        await asyncio.wait([watcher.closed], timeout=limits.grace_s)  # a child that was left behind keeps pipes open
    finally:
        await _end(transport, watcher, limits.grace_s)
    if watcher.exceeded:
        raise CommandError(describe_excess(command, watcher.exceeded, limits))
    return FinishedProcess(
        code=transport.get_returncode() or 0, stdout=bytes(watcher.stdout), stderr=bytes(watcher.stderr)
    )


def find_start_problem(command: Sequence[str], *, environment: Mapping[str, str], cwd: Path | None) -> str | None:
    """Why a command cannot be started, and what to do; None if its program is there."""
    if cwd is not None and not cwd.is_dir():
        return f"{name_command(command)} cannot be started: the folder {str(cwd)!r} does not exist; correct cwd"
    program, what = command[0], f"the command {shorten(command[0])} cannot be started"
    if "/" not in program:
        places = environment.get("PATH", os.defpath)
        return None if shutil.which(program, path=places) else f"{what}: it is not in PATH; {_INSTALL}"
    file = (cwd or Path()) / program
    if not file.is_file():
        return f"{what}: {'it is a folder' if file.is_dir() else 'the file does not exist'}; {_INSTALL}"
    if not os.access(file, os.X_OK):
        return f"{what}: it is not executable; run `chmod +x` on it, or name its interpreter first"
    problem = _find_script_problem(file)
    return None if problem is None else f"{what}: {problem}"


_INSTALL = "install it, or name it with its path"


def _find_script_problem(file: Path) -> str | None:
    """Why a file cannot be started if it is a script; None if it can, is a binary, or cannot be read."""
    try:
        with file.open("rb") as opened:
            start = opened.read(256)
    except OSError:
        return None
    if not start.startswith(b"#!"):
        no_interpreter = "it is a text; begin it with a line such as #!/bin/sh, or name its interpreter first"
        return None if b"\0" in start else no_interpreter
    words = start[2:].split(b"\n")[0].split()
    if words and Path(os.fsdecode(words[0])).exists():
        return None
    return "its first line names an interpreter that does not exist"


def describe_exit(command: Sequence[str], finished: FinishedProcess) -> str:
    """`'bot' ended with exit code 2: ...`, with the end of what it wrote to standard error."""
    if finished.code < 0:
        how = f"was ended by {_name_signal(-finished.code)}"
    else:
        how = f"ended with exit code {finished.code}"
    return f"{name_command(command)} {how}{show_tail(_decode(finished.stderr))}"


def describe_timeout(command: Sequence[str], limits: ProcessLimits, stderr: bytes | bytearray) -> str:
    """`'bot' did not end in ...`, with the end of what it wrote to standard error."""
    return f"{name_command(command)} did not end in {limits.timeout_s:g} s{show_tail(_decode(stderr))}"


def explain_start(command: Sequence[str], error: OSError | ValueError) -> SetupError | CommandError:
    """The error to raise for a command that could not be started."""
    if isinstance(error, UnicodeEncodeError):
        found = ascii(error.object[error.start])
        return CommandError(
            f"{name_command(command)} cannot be started: an argument or a variable contains {found}, half of a "
            "surrogate pair, which is not a character"
        )
    if isinstance(error, ValueError):  # an embedded null byte
        return CommandError(
            f"{name_command(command)} cannot be started: an argument or a variable contains a NUL character, which "
            "only standard input or a file can hold"
        )
    if error.errno == errno.E2BIG:
        return CommandError(
            f"{name_command(command)} cannot be started: its arguments and variables are too long; pass long texts "
            "as files, {file:NAME}, or on standard input"
        )
    return SetupError(f"the command {shorten(command[0])} cannot be started: {error.strerror or error}")


def describe_excess(command: Sequence[str], stream: str, limits: ProcessLimits) -> str:
    """`'bot' wrote more than ...`, for the stream that exceeded its limit."""
    return (
        f"{name_command(command)} wrote more than {limits.max_output_bytes:,} bytes to {stream}; it was ended: raise "
        "max_output_bytes if that is expected"
    )


def name_command(command: Sequence[str]) -> str:
    """A command in messages: its program, without arguments, which may hold a prompt or a case."""
    return f"the command {Path(command[0]).name!r}"


def select_environment(names: Sequence[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of this process with these names; `*` stands for all."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if "*" in names or name in names}


class _Watcher(asyncio.SubprocessProtocol):
    """Collects what a process writes, up to the limit of each stream."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self.stdout, self.stderr = bytearray(), bytearray()
        self.exceeded = ""
        self.exited: asyncio.Future[None] = loop.create_future()
        self.reaped: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self._limit = limit

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.SubprocessTransport)
        guard.add(transport.get_pid())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        stream, name = (self.stdout, "standard output") if fd == 1 else (self.stderr, "standard error")
        room = self._limit - len(stream)
        stream += data[:room]
        if len(data) > room:
            self.exceeded = self.exceeded or name
            _settle(self.exited)

    def process_exited(self) -> None:
        _settle(self.exited)
        _settle(self.reaped)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        _settle(self.exited)
        _settle(self.closed)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _end(transport: asyncio.SubprocessTransport, watcher: _Watcher, grace_s: float) -> None:
    """End what is left of a command."""
    group = transport.get_pid()
    await finish_before_cancel(_end_group(group, grace_s))
    guard.remove(group)
    await asyncio.wait([watcher.reaped], timeout=grace_s)
    transport.close()


async def _end_group(pid: int, grace_s: float) -> None:
    """End what is left of a process group."""
    if not _signal_group(pid, signal.SIGTERM):
        return
    end = asyncio.get_running_loop().time() + grace_s
    while _signal_group(pid, 0):
        if asyncio.get_running_loop().time() > end:
            _signal_group(pid, signal.SIGKILL)
            return
        await asyncio.sleep(_POLL_S)


def _signal_group(pid: int, number: int) -> bool:
    """Send a signal to a process group. False if nothing is left of it."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _decode(stderr: bytes | bytearray) -> str:
    return bytes(stderr).decode(errors="replace")


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
