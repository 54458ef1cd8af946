"""A server with one app, and a client of it without a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, TypeAlias

import httpx

from promptiter.engine.request import RunRequest
from promptiter.manager import EngineApp, Manager
from promptiter.manager.app import Overlay, PreparedRun
from promptiter.server.application import create_application
from promptiter.server.tokens import Scope, TokenEntry, Tokens, hash_token
from promptiter.testing.small_run import SmallRun

NOW = datetime(2026, 11, 18, tzinfo=UTC)
DESK = "/promptiter/v1/apps/desk"


class SmallApp(EngineApp):
    """An app whose runs are all alike, whatever is asked for."""

    def __init__(self, small: SmallRun, name: str = "desk") -> None:
        super().__init__(small.engine, name)
        self._request = small.request
        self.asked: list[object] = []

    def prepare(self, request: RunRequest | Overlay | None) -> PreparedRun:
        self.asked.append(request)
        return super().prepare(self._request)


Client: TypeAlias = httpx.AsyncClient


@asynccontextmanager
async def serving(manager: Manager, **options: Any) -> AsyncIterator[Client]:
    application = create_application(manager, **options)
    transport = httpx.ASGITransport(app=application, raise_app_exceptions=False)
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(transport=transport, base_url="http://testserver") as client,
    ):
        yield client


def make_tokens(**scopes: tuple[Scope, ...]) -> Tokens:
    """Tokens whose names are also their texts."""
    entries = tuple(
        TokenEntry(name=name, sha256=hash_token(name), scopes=frozenset(each)) for name, each in scopes.items()
    )
    return Tokens(entries, now=lambda: NOW)
