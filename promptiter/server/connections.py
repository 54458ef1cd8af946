"""The connections of a server. The only module that imports uvicorn.

h11 reads the requests, in Python: it refuses what is ambiguous. uvicorn has no time limit for headers, and none for
clients that do not read their answers, so the limits are here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

REQUEST_TIMEOUT_S = 10.0
"""How long a client may take for the line and the headers of a request, or for a body that nobody reads."""
STALL_TIMEOUT_S = 60.0
"""How long a client may leave an answer unread that is waiting for it."""
KEEP_ALIVE_S = 15
MAX_CONNECTIONS = 2000


def build_server(application: ASGIApp) -> uvicorn.Server:
    """A server of an application. Its sockets are given when it starts."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            http=LimitedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # anyone can send them, and rates are counted by address
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
            limit_concurrency=MAX_CONNECTIONS,
        )
    )


class LimitedProtocol(H11Protocol):
    """A connection that is closed if the client takes too long."""

    request_timeout_s = REQUEST_TIMEOUT_S
    stall_timeout_s = STALL_TIMEOUT_S

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _watch_request(self) -> None:
        """While a request is incomplete and nobody reads it, a timer runs. Further bytes do not extend it."""
        cycle: RequestResponseCycle | None = self.cycle
        is_answered = cycle is None or cycle.response_complete
        is_incomplete = is_answered and self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if not is_incomplete and self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None
        elif is_incomplete and self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_timeout_s, self.transport.abort)

    def _stop_timers(self) -> None:
        for timer in (self._request_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._request_timer = self._stall_timer = None
