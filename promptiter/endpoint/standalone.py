"""A gateway served on its own, outside of runs: one key for all callers, until it is stopped.

Its calls belong to no case, so equal requests are one call: the second one is answered from the cache.
"""

from __future__ import annotations

import asyncio
import errno
import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from promptiter.endpoint.hosting import RunningServer
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest
from promptiter.endpoint.http_server import HttpServer
from promptiter.endpoint.routes import answer_request
from promptiter.endpoint.sessions import LOOPBACK, EndpointSession, OnCall
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Role

_TOKEN = re.compile(r"[\w-]{16,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NoCase:
    """Calls that belong to no case."""

    case_id: str = ""
    repeat: int = 0
    turn: int = 0
    role: Role = "agent"


NO_CASE = NoCase()


@asynccontextmanager
async def serve_gateway(
    gateway: Gateway,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    on_call: OnCall | None = None,
) -> AsyncIterator[EndpointSession]:
    """Serve a gateway on an address, with this token as the key, or with a random one on loopback.

    `on_call` is called with each call that has ended. Calls in progress are finished at the end of the block.
    """
    check_address(host, token)
    sessions: dict[str, EndpointSession] = {}

    async def answer(request: HttpRequest) -> HttpAnswer:
        return await answer_request(request, sessions.get)

    server = HttpServer(answer)
    try:
        found = await server.start(host=host, port=port)
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise SetupError(
            f"port {port} of {host!r} cannot be used: {why}; give another port, or 0 for a free one"
        ) from error
    try:
        place = f"[{host}]" if ":" in host else host
        loop, thread = asyncio.get_running_loop(), threading.current_thread()
        running = RunningServer(f"http://{place}:{found}", loop, thread, server)
        with gateway.active():
            session = EndpointSession(NO_CASE, gateway, running, key=token, numbers_calls=False, on_call=on_call)
        gateway.redactor.learn([session.key])
        sessions[session.key] = session
        try:
            yield session
        finally:
            session.end()
            await session.finish()
    finally:
        await server.close()


def check_address(host: str, token: str | None) -> None:
    """Raise SetupError if other machines could call models without a token, or if the token cannot be in a URL."""
    if token is None and host not in LOOPBACK:
        raise SetupError(f"{host!r} can be reached from other machines; give a token that callers must know")
    if token is not None and not _TOKEN.fullmatch(token):
        raise SetupError("the token must have 16 to 128 letters, digits, hyphens or underscores")
