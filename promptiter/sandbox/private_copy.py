"""A private copy that is open: commands run in it, files are read from it, and it says what changed."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from promptiter.agents.black_box.process import (
    FinishedProcess,
    ProcessLimits,
    describe_excess,
    describe_timeout,
    explain_start,
    name_command,
)
from promptiter.errors import CommandError
from promptiter.sandbox.plan import Changes, CopyPlan, check_relative
from promptiter.sandbox.protocol import Message
from promptiter.sandbox.supervision import RefusedError, Supervisor

_STREAMS = {"stdout": "standard output", "stderr": "standard error"}


class PrivateCopy:
    """A copy of a folder. One command runs in it at a time. `root` is where commands see it."""

    def __init__(self, supervisor: Supervisor, plan: CopyPlan, *, root: Path) -> None:
        self.root = root
        self._plan = plan
        self._supervisor = supervisor

    async def run(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: str = ".",
        stdin: bytes = b"",
        limits: ProcessLimits | None = None,
    ) -> FinishedProcess:
        """Run a command to its end. All processes that it started are gone afterwards.

        Raises CommandError if it cannot be started, or had to be ended.
        """
        limits = limits or ProcessLimits()
        if cwd != ".":
            check_relative("cwd", cwd)
        _check_texts(command, environment)
        request = {
            "what": "run",
            "command": list(command),
            "environment": dict(environment),
            "cwd": cwd,
            "timeout_s": limits.timeout_s,
            "grace_s": limits.grace_s,
            "max_output_bytes": limits.max_output_bytes,
        }
        ending_s = 2 * limits.grace_s
        answer, data = await self._ask(request, stdin, what=name_command(command), ending_s=ending_s)
        stdout, stderr = data[: answer["stdout_size"]], data[answer["stdout_size"] :]
        if problem := self._describe_end(command, answer, limits, stderr):
            raise CommandError(problem)
        return FinishedProcess(code=answer["code"], stdout=stdout, stderr=stderr)

    async def list_changes(self) -> Changes:
        """What commands wrote and deleted since the copy was opened. Files of the plan count if they were changed."""
        answer, _ = await self._ask({"what": "changes"}, what="the changes of a private copy")
        return Changes(**{kind: tuple(paths) for kind, paths in answer["changes"].items()})

    async def read(self, path: str, *, max_bytes: int) -> bytes | None:
        """The content of a file; None if there is none. CommandError if it is a link, too large, or not a file."""
        check_relative("path", path)
        answer, content = await self._ask({"what": "read", "path": path, "max_bytes": max_bytes}, what=f"{path!r}")
        return content if answer["exists"] else None

    async def reveal(self) -> None:
        """Let commands see the hidden paths from now on."""
        await self._ask({"what": "reveal"}, what="hidden paths")

    async def find_tampering(self) -> tuple[str, ...]:
        """Protected paths that a command changed, as far as it could."""
        answer, _ = await self._ask({"what": "tampering"}, what="protected paths")
        return tuple(answer["paths"])

    async def find_outside_changes(self) -> tuple[str, ...]:
        """Relative paths of the original folder that changed since the copy was opened, whatever changed them.

        Always empty with namespaces, where commands cannot reach it.
        """
        answer, _ = await self._ask({"what": "outside"}, what="the original folder")
        return tuple(answer["paths"])

    async def _ask(
        self, message: Message, data: bytes = b"", *, what: str, ending_s: float = 0.0
    ) -> tuple[Message, bytes]:
        try:
            return await self._supervisor.ask(message, data, ending_s=ending_s)
        except RefusedError as error:
            raise CommandError(f"{what} cannot be used in the private copy: {error}") from error

    def _describe_end(
        self, command: Sequence[str], answer: Message, limits: ProcessLimits, stderr: bytes
    ) -> str | None:
        """Why a command was ended; None if it ended by itself."""
        how = answer["how"]
        if how == "exited":
            return None
        if how == "timeout":
            return describe_timeout(command, limits, stderr)
        if how in _STREAMS:
            return describe_excess(command, _STREAMS[how], limits)
        name = name_command(command)
        if how == "processes":
            return f"{name} started more than {self._plan.processes} processes; it was ended"
        if how == "quota":
            return (
                f"{name} wrote more than {self._plan.disk_bytes:,} bytes to its copy, or made a folder that cannot be "
                "measured; it was ended"
            )
        return _describe_start(command, answer["code"])


def _describe_start(command: Sequence[str], number: int) -> str:
    if number == errno.ENOENT:
        return (
            f"{name_command(command)} cannot be started: neither the program nor its interpreter, or the folder it is "
            "to run in, exists in the private copy"
        )
    if number == errno.ENOEXEC:
        return f"{name_command(command)} cannot be started: begin it with a line such as #!/bin/sh"
    return str(explain_start(command, OSError(number, os.strerror(number))))


def _check_texts(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raise CommandError if an argument or a variable cannot be passed to a process."""
    texts = (*command, *environment, *environment.values())
    try:
        has_null = any(b"\0" in os.fsencode(text) for text in texts)
    except UnicodeEncodeError as error:
        raise explain_start(command, error) from error
    if has_null:
        raise explain_start(command, ValueError("embedded null byte"))
