"""Clients of OpenAI and Anthropic in this process, whose calls go through the gateway.

    client = promptiter.instrument(openai.AsyncOpenAI())

The copy that `instrument` returns has a transport of its own, which looks at each call where it is made: in a run of a
case, it is a call of that case; with an active gateway, one of that gateway; otherwise it is sent as before. The case
is found by a context variable, so it is the right one also in parallel, in tasks and in threads that asyncio starts.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar, overload

from promptiter.concurrency import get_background_loop, is_in_loop
from promptiter.endpoint.error_bodies import render_error
from promptiter.endpoint.http_messages import HttpAnswer, RefusedRequestError
from promptiter.endpoint.sessions import EndpointSession, find_session, open_session
from promptiter.endpoint.shared_session import share_session
from promptiter.endpoint.standalone import NO_CASE
from promptiter.errors import SetupError
from promptiter.llm.gateway import find_active_gateway
from promptiter.llm.pool import is_calling_model
from promptiter.wording import shorten

Client = TypeVar("Client")

_HTTP_LIBRARIES = ("httpx", "httpx2")
_DROPPED_HEADERS = frozenset(("host", "authorization", "x-api-key", "api-key", "content-length", "transfer-encoding"))
_BLOCKED = (
    "a synchronous client was called in an event loop, which the gateway needs to answer it; use the async client "
    "(AsyncOpenAI, AsyncAnthropic), or make the function that calls it a plain `def`"
)


@overload
def instrument() -> None: ...


@overload
def instrument(client: Client) -> Client: ...


def instrument(client: Client | None = None) -> Client | None:
    """A copy of a client of the openai or anthropic package whose calls go through the gateway.

    litellm takes one, too: `litellm.acompletion(..., client=instrument(AsyncOpenAI()))`.

    Without a client, sets the environment variables by which openai, anthropic and litellm find the address of a
    service, for clients that are created later. These cannot say which case they run in, so only one case may run at a
    time. A model that is a function of yours, and calls such a client, must give it the address of its service.
    """
    if client is None:
        share_session()
        return None
    given: Any = client
    original: Any = getattr(given, "_client", None)
    http = _find_library(original)
    if http is None or not callable(getattr(given, "copy", None)) or not hasattr(given, "base_url"):
        raise SetupError(f"{shorten(client)} cannot be instrumented; give a client of openai or anthropic")
    if isinstance(original, http.AsyncClient):
        transport = _make_async_transport(_Router(http, given), original)
        wrapped = http.AsyncClient(transport=transport, timeout=original.timeout)
    else:
        transport = _make_transport(_Router(http, given), original)
        wrapped = http.Client(transport=transport, timeout=original.timeout)
    copied: Client = given.copy(http_client=wrapped)
    return copied


class _Router:
    """Requests of a client as requests to a session."""

    def __init__(self, http: ModuleType, client: Any) -> None:
        self.http = http
        self._base_path = client.base_url.path.rstrip("/")
        self._is_of_openai = type(client).__module__.partition(".")[0] == "openai"

    def rewrite(self, request: Any, content: bytes, session: EndpointSession) -> Any:
        """The request, sent to a session with its key."""
        root = session.base_url if self._is_of_openai else session.base_url.removesuffix("/v1")
        path = request.url.raw_path.decode().removeprefix(self._base_path)
        headers = [(name, value) for name, value in request.headers.multi_items() if name not in _DROPPED_HEADERS]
        headers.append(("authorization", f"Bearer {session.key}"))
        url = f"{root}/{path.lstrip('/')}"
        return self.http.Request(request.method, url, headers=headers, content=content, extensions=request.extensions)

    def copy_response(self, response: Any, content: bytes, request: Any) -> Any:
        headers = [(name, value) for name, value in response.headers.multi_items() if name not in _DROPPED_HEADERS]
        return self.http.Response(response.status_code, headers=headers, content=content, request=request)

    def build_response(self, answer: HttpAnswer, request: Any) -> Any:
        headers = {"content-type": answer.content_type, **answer.headers}
        return self.http.Response(answer.status, headers=headers, content=b"".join(answer.chunks), request=request)


def _make_transport(router: _Router, original: Any) -> Any:
    http = router.http

    def send(session: EndpointSession, request: Any) -> Any:
        content = request.read()
        with http.HTTPTransport(verify=False) as transport:  # loopback, without TLS
            response = transport.handle_request(router.rewrite(request, content, session))
            return router.copy_response(response, response.read(), request)

    async def send_once(request: Any) -> Any:
        async with open_session(NO_CASE) as session:
            response = await asyncio.to_thread(send, session, request)
            session.fatal = None  # the client gets it as an error
            return response

    class Transport(http.BaseTransport):  # type: ignore[name-defined, misc]
        def handle_request(self, request: Any) -> Any:
            session = find_session()
            if not _is_call_of_agent():
                return original.send(request, stream=True)
            if is_in_loop():
                if session is not None:
                    session.fatal = session.fatal or SetupError(_BLOCKED)
                return router.build_response(render_error(RefusedRequestError(400, _BLOCKED), "openai"), request)
            if session is not None:
                return send(session, request)
            return asyncio.run_coroutine_threadsafe(send_once(request), get_background_loop()).result()

        def close(self) -> None:
            original.close()

    return Transport()


def _make_async_transport(router: _Router, original: Any) -> Any:
    http = router.http

    async def send(session: EndpointSession, request: Any) -> Any:
        content = await request.aread()
        async with http.AsyncHTTPTransport(verify=False) as transport:  # loopback, without TLS
            response = await transport.handle_async_request(router.rewrite(request, content, session))
            return router.copy_response(response, await response.aread(), request)

    class AsyncTransport(http.AsyncBaseTransport):  # type: ignore[name-defined, misc]
        async def handle_async_request(self, request: Any) -> Any:
            if not _is_call_of_agent():
                return await original.send(request, stream=True)
            if (session := find_session()) is not None:
                return await send(session, request)
            async with open_session(NO_CASE) as session:
                response = await send(session, request)
                session.fatal = None  # the client gets it as an error
                return response

        async def aclose(self) -> None:
            await original.aclose()

    return AsyncTransport()


def _is_call_of_agent() -> bool:
    """Whether a call goes through the gateway. A model that is made of such a client would call itself."""
    return not is_calling_model() and (find_session() is not None or find_active_gateway() is not None)


def _find_library(http_client: Any) -> ModuleType | None:
    """The library of an HTTP client: httpx, or its successor."""
    roots = (each.__module__.partition(".")[0] for each in type(http_client).__mro__)
    name = next((root for root in roots if root in _HTTP_LIBRARIES), None)
    return None if name is None else import_module(name)
