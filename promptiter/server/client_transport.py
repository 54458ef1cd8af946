"""ClientTransport: the requests of a client, and what it does while its server is away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import IO, TYPE_CHECKING

import orjson

from promptiter.server.client_errors import (
    JSON,
    OK,
    ServerError,
    check_kind,
    check_url,
    clean_token,
    read_error,
    unreachable,
)
from promptiter.server.patience import Patience, log_wait
from traces.model import Json

if TYPE_CHECKING:
    import httpx

_SILENCE_S = 60.0
"""How long a stream may be silent: the server sends comments more often."""


class ClientTransport:
    """Requests to one server. Those that change nothing are made again while it is away, see Patience."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None,
        timeout_s: float,
        patience_s: float,
        on_wait: Callable[[ServerError], None] | None,
        was_reached: bool,
        transport: httpx.AsyncBaseTransport | None,
    ) -> None:
        import httpx

        check_url(url)
        headers = {} if token is None else {"Authorization": f"Bearer {clean_token(token)}"}
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        self._patience_s = patience_s
        self._on_wait = on_wait or log_wait
        self._was_reached = was_reached

    async def send(
        self,
        method: str,
        place: str,
        *,
        params: Mapping[str, Json] | None = None,
        body: Json = None,
        kind: str | None = JSON,
    ) -> bytes:
        """The body of an answer, of this media type. None for an answer without a body.

        A request that changes something is made again only if nothing was sent.
        """
        import httpx

        content = None if body is None else orjson.dumps(body)
        patience = self.begin()
        while True:
            try:
                answer = await self._http.request(method, place, params=params, content=content)
                self._was_reached = True
                if answer.is_success:
                    check_kind(answer, kind)
                    return answer.content
                problem = read_error(answer)
                if method != "GET":
                    raise problem
            except httpx.TransportError as error:
                problem = unreachable(self._http.base_url, error)
                if method != "GET" and not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
                    raise problem from error
            await patience.wait(problem)

    async def load(self, place: str, file: IO[bytes], *, params: Mapping[str, Json], kind: str) -> None:
        """Load a large answer of a media type into a file."""
        patience = self.begin()
        while True:
            file.seek(0)
            file.truncate()
            try:
                async with self.open(place, params=params, kind=kind) as answer:
                    async for chunk in answer.aiter_bytes():
                        file.write(chunk)
            except ServerError as error:
                await patience.wait(error)
            else:
                return

    @asynccontextmanager
    async def open(self, place: str, *, params: Mapping[str, Json], kind: str) -> AsyncIterator[httpx.Response]:
        """An answer of a media type that is read piece by piece. ServerError also if it breaks off."""
        import httpx

        try:
            async with self._http.stream("GET", place, params=params, timeout=_SILENCE_S) as answer:
                self._was_reached = True
                if answer.status_code != OK:
                    await answer.aread()
                    raise read_error(answer)
                check_kind(answer, kind)
                yield answer
        except httpx.TransportError as error:
            raise unreachable(self._http.base_url, error) from error

    def begin(self) -> Patience:
        """The attempts of one request."""
        return Patience(self._patience_s, self._on_wait, was_reached=self._was_reached)

    async def close(self) -> None:
        await self._http.aclose()
