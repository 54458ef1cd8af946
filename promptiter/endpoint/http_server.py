"""The HTTP server of the endpoint: limits for bodies and for slow clients, and nothing about models.

A request that is too large or too slow is refused; a client that reads too slowly is disconnected. Each holds up only
its own connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from promptiter.endpoint.error_bodies import render_error
from promptiter.endpoint.http_messages import Handle, HttpAnswer, HttpRequest, RefusedRequestError

if TYPE_CHECKING:
    from aiohttp import web

MAX_BODY = 32 * 1024 * 1024
BODY_TIMEOUT_S = 60.0
"""How long a client may take to send the body of a request."""
WRITE_TIMEOUT_S = 60.0
"""How long a client may take to read an answer."""
HEAD_TIMEOUT_S = 30.0
"""How long a client may take to send the head of its first request."""
IDLE_TIMEOUT_S = 75.0
"""How long a connection without requests stays open."""

logger = logging.getLogger(__name__)


def _drop_refusals(record: logging.LogRecord) -> bool:
    """Drop what aiohttp logs about requests that are not HTTP: they are answered, and their lines contain keys."""
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, HttpProcessingError)


_connections = logging.getLogger(f"{__name__}.connections")
_connections.addFilter(_drop_refusals)


class HttpServer:
    """Serves a handler on one address until it is closed. All methods run on the same event loop."""

    def __init__(
        self,
        handle: Handle,
        *,
        max_body: int = MAX_BODY,
        body_timeout_s: float = BODY_TIMEOUT_S,
        write_timeout_s: float = WRITE_TIMEOUT_S,
        head_timeout_s: float = HEAD_TIMEOUT_S,
    ) -> None:
        self._handle = handle
        self._max_body = max_body
        self._body_timeout_s = body_timeout_s
        self._write_timeout_s = write_timeout_s
        self._head_timeout_s = head_timeout_s
        self._unheard: dict[web.RequestHandler, asyncio.TimerHandle] = {}
        self._runner: web.ServerRunner | None = None
        self._others: dict[tuple[str, int], asyncio.Future[None]] = {}

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and return the port: a free one, if none is given."""
        from aiohttp import web

        watch = self._watch

        class Server(web.Server):
            def __call__(self) -> web.RequestHandler:
                return watch(super().__call__())

        server = Server(
            self._serve,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_TIMEOUT_S,
            lingering_time=2.0,
            logger=_connections,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, backlog=512).start()
        found: int = self._runner.addresses[0][1]
        return found

    async def listen(self, host: str, port: int) -> None:
        """Listen on another address as well, until the server is closed. OSError if it cannot be used."""
        from aiohttp import web

        if (host, port) not in self._others:
            assert self._runner is not None
            site = web.TCPSite(self._runner, host, port, backlog=512)
            self._others[host, port] = asyncio.ensure_future(site.start())
        try:
            await asyncio.shield(self._others[host, port])
        except OSError:
            self._others.pop((host, port), None)
            raise

    async def close(self) -> None:
        """Close all connections."""
        self._others.clear()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _watch(self, connection: web.RequestHandler) -> web.RequestHandler:
        """Close a new connection if no request arrives in time."""

        def close() -> None:
            del self._unheard[connection]
            if connection.transport is not None:
                connection.transport.abort()

        self._unheard[connection] = asyncio.get_running_loop().call_later(self._head_timeout_s, close)
        return connection

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        if (timer := self._unheard.pop(request.protocol, None)) is not None:
            timer.cancel()
        names = Counter(name.lower() for name, _ in request.headers.items())  # iterating it skips repeated names
        received = HttpRequest(
            method=request.method,
            path=request.rel_url.raw_path,
            headers={name.lower(): value for name, value in request.headers.items()},
            repeated=frozenset(name for name, count in names.items() if count > 1),
            read_body=lambda: self._read(request),
        )
        try:
            answer = await self._handle(received)
        except Exception as error:
            logger.exception("the endpoint failed to answer a request")
            answer = render_error(error, "openai")
        return await self._write(request, answer)

    async def _read(self, request: web.BaseRequest) -> bytes:
        from aiohttp.web_protocol import RequestPayloadError

        too_large = RefusedRequestError(
            413, f"the body has more than {self._max_body} bytes; send less", kind="request_too_large"
        )
        if (request.content_length or 0) > self._max_body:
            raise too_large
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._body_timeout_s):
                async for part in request.content.iter_any():
                    size += len(part)
                    if size > self._max_body:
                        raise too_large
                    parts.append(part)
        except RequestPayloadError as error:  # of its compression
            raise RefusedRequestError(400, f"the body cannot be read: {error}") from None
        except TimeoutError:
            raise RefusedRequestError(
                408, f"the body did not arrive in {self._body_timeout_s:g} s", kind="timeout_error"
            ) from None
        return b"".join(parts)

    async def _write(self, request: web.BaseRequest, answer: HttpAnswer) -> web.StreamResponse:
        from aiohttp import web

        response = web.StreamResponse(
            status=answer.status, headers={"Content-Type": answer.content_type, **answer.headers}
        )
        if isinstance(answer.chunks, tuple):
            response.content_length = sum(map(len, answer.chunks))
        try:
            async with asyncio.timeout(self._write_timeout_s):
                await response.prepare(request)
                for chunk in answer.chunks:
                    await response.write(chunk)
                await response.write_eof()
        except TimeoutError:
            logger.warning("a client did not read its answer in %g s and was disconnected", self._write_timeout_s)
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:
            logger.debug("a client disconnected before it had read its answer")
        return response
