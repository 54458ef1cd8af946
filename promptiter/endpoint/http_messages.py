"""HTTP requests and answers of the endpoint: plain data, whichever server reads and writes them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import orjson

from traces.model import Json

JSON_TYPE = "application/json"
EVENTS_TYPE = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """The head of a request. `path` is as it was sent; the names of `headers` are in lower case.

    `repeated` are the names of headers that it has several times; `headers` has the last value of each.
    `read_body` is called at most once. It raises RefusedRequestError if the body is too large or too slow.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    repeated: frozenset[str] = frozenset()
    read_body: Callable[[], Awaitable[bytes]] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer. `chunks` are written one after the other."""

    status: int = 200
    content_type: str = JSON_TYPE
    headers: Mapping[str, str] = field(default_factory=dict)
    chunks: Iterable[bytes] = field(default=(), repr=False)

    @classmethod
    def of_json(cls, document: Json, *, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpAnswer:
        return cls(status=status, headers=headers or {}, chunks=(orjson.dumps(document),))

    @classmethod
    def of_events(cls, events: Iterable[bytes]) -> HttpAnswer:
        return cls(content_type=EVENTS_TYPE, headers={"Cache-Control": "no-cache"}, chunks=events)


Handle: TypeAlias = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Answers a request. Cancelled if the client disconnects."""


class RefusedRequestError(Exception):
    """A request that the endpoint does not pass on. `kind` is the type of the error in the protocol."""

    def __init__(self, status: int, message: str, *, kind: str = "invalid_request_error", param: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
