"""The supervisor of a copy, seen from promptiter: a process that answers one request at a time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import promptiter
from promptiter.agents.black_box.output import show_tail
from promptiter.concurrency import finish_before_cancel
from promptiter.errors import CommandError
from promptiter.sandbox.protocol import HEADER, Message, decode_text, encode_message

_IMPORT = "import sys; sys.path.append(sys.argv[1]); from promptiter.sandbox.supervisor.main import main; main()"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
_CLOSING_S = 10.0
"""A supervisor that takes longer to end everything is killed."""


def supervisor_command() -> list[str]:
    """The command line of a supervisor. It sees neither site-packages nor variables."""
    place = str(Path(promptiter.__file__).parents[1])
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _IMPORT, place]


class Supervisor:
    """A supervisor that runs. `close` ends it, with everything it started."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls) -> Supervisor:
        """Start the process. It does nothing until its first request."""
        pipe = asyncio.subprocess.PIPE
        spawn = asyncio.create_subprocess_exec(
            *supervisor_command(),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,
        )
        starting = asyncio.ensure_future(spawn)
        try:
            return cls(await asyncio.shield(starting))
        except asyncio.CancelledError:
            await cls(await finish_before_cancel(starting)).close()
            raise

    async def ask(
        self, message: Mapping[str, Any], data: bytes = b"", *, ending_s: float | None = 0.0
    ) -> tuple[Message, bytes]:
        """Send a request and wait for its answer. Raises RefusedError, or CommandError if the supervisor has ended.

        If the task is cancelled, the supervisor has `ending_s` seconds, and the time of a close, to end what it does.
        With None, it is killed.
        """
        async with self._turn:
            exchange = asyncio.ensure_future(self._exchange(message, data))
            try:
                answer, content = await asyncio.shield(exchange)
            except asyncio.CancelledError:
                await finish_before_cancel(self._cancel(exchange, ending_s))
                raise
        if "error" in answer:
            raise RefusedError(answer["error"], kind=answer["class"])
        return answer, content

    async def close(self) -> None:
        """End the supervisor and everything it started, also if the task is cancelled meanwhile."""
        await finish_before_cancel(self._close())

    async def _exchange(self, message: Mapping[str, Any], data: bytes) -> tuple[Message, bytes]:
        reader, writer = self._process.stdout, self._process.stdin
        assert reader is not None
        assert writer is not None
        try:
            writer.write(encode_message(message, data))
            await writer.drain()
            text_size, data_size = HEADER.unpack(await reader.readexactly(HEADER.size))
            text = await reader.readexactly(text_size)
            return decode_text(text), await reader.readexactly(data_size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise CommandError(
                f"the supervisor of a private copy ended unexpectedly{await self._read_errors()}"
            ) from error

    async def _cancel(self, exchange: asyncio.Future[tuple[Message, bytes]], ending_s: float | None) -> None:
        writer = self._process.stdin
        assert writer is not None
        if ending_s is not None:
            writer.write(encode_message({"what": "cancel"}))
            await asyncio.wait([exchange], timeout=ending_s + _CLOSING_S)
        if not exchange.done():
            self._process.kill()
        await asyncio.wait([exchange])
        exchange.exception()

    async def _close(self) -> None:
        writer = self._process.stdin
        assert writer is not None
        writer.close()
        try:
            async with asyncio.timeout(_CLOSING_S):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        for reader in (self._process.stdout, self._process.stderr):
            assert reader is not None
            await reader.read()

    async def _read_errors(self) -> str:
        assert self._process.stderr is not None
        return show_tail((await self._process.stderr.read()).decode(errors="replace"))


class RefusedError(Exception):
    """The supervisor could not do what it was asked; the message says why."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
