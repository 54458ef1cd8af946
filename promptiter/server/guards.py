"""What happens to every request before its route: it is counted, and pages of other sites are kept out.

A server without tokens trusts every program on its machine, but not the web pages in a browser there. They can send
requests to it, which their `Origin` shows, and a name that a site controls may lead to it, which the `Host` shows.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from promptiter.server.measures import Measures

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class CountRequests:
    """Counts requests, and the time until their answers begin."""

    def __init__(self, app: ASGIApp, measures: Measures) -> None:
        self._app = app
        self._measures = measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        has_begun = False

        def count(status: int) -> None:
            nonlocal has_begun
            has_begun = True
            method = scope["method"] if scope["method"] in METHODS else "other"  # anyone can invent methods
            self._measures.count(method, _name_route(scope), status, time.perf_counter() - began)

        async def send_counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_counted)
        finally:
            if not has_begun:
                count(500)


class RefuseTwoLengths:
    """Refuses requests with both a length and an encoding, and closes their connection.

    A proxy may go by the other one, and take what follows for a request that it has checked.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope.get("headers", ())}
        if {b"content-length", b"transfer-encoding"} <= names:
            problem = "the request has both Content-Length and Transfer-Encoding; send one of them"
            await JSONResponse({"error": problem}, 400, headers={"Connection": "close"})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


class RefuseOtherSites:
    """Refuses requests of web pages, except for those of the server itself and of the allowed origins.

    `hosts` are the names under which the server may be reached; None allows all.
    """

    def __init__(self, app: ASGIApp, origins: Collection[str], hosts: Collection[str] | None) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._find_problem(Headers(scope=scope)) if scope["type"] == "http" else None
        if problem is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"error": problem}, 403)(scope, receive, send)

    def _find_problem(self, headers: Headers) -> str | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._hosts is not None and _get_name(f"//{host}") not in self._hosts:
            return "without tokens, the server answers under its loopback address only"
        if origin is not None and origin not in {*self._origins, f"http://{host}", f"https://{host}"}:
            return "requests of other sites are refused; allow their origin with --cors"
        return None


def _get_name(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


def _name_route(scope: dict[str, Any] | Scope) -> str:
    """The route as a template, so that there are only a few of them."""
    application = scope.get("app")
    if scope["path"] == getattr(application, "openapi_url", None):  # it has a path, but no route of FastAPI
        return str(scope["path"])
    path: str = getattr(scope.get("route"), "path", "unknown")
    return path
