"""Limits of requests: size and depth of bodies, the time to send one, and how often a client may ask."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
from starlette.requests import ClientDisconnect, Request

from promptiter.concurrency import run_in_thread
from promptiter.server.errors import HttpError
from promptiter.wording import shorten
from traces.model import Json

JSON = "application/json"
JSON_SPACE = b" \t\r\n"
"""White space in JSON. Python knows more."""
MAX_CLIENTS = 10_000
"""The most clients whose rate is remembered."""
MAX_IGNORED_BYTES = 32_000_000
"""How much of a body that is too large is read and thrown away. A client that is cut off does not see the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server accepts. `requests_per_minute` is for each token, or for each address without tokens."""

    max_body_bytes: int = 4_000_000
    max_depth: int = 32
    max_items: int = 10_000
    max_containers: int = 200_000
    body_timeout_s: float = 10.0
    run_timeout_s: float = 3600.0
    requests_per_minute: int = 6000
    max_streams: int = 1000


async def read_json(request: Request, limits: Limits) -> Json:
    """The body of a request. HttpError if it is too large, too deep, too slow, or not JSON."""
    length = request.headers.get("content-length", "0")
    is_too_large = not re.fullmatch("[0-9]{1,15}", length) or int(length) > limits.max_body_bytes
    if is_too_large and "expect" in request.headers:  # it waits for a word before it sends the body
        raise _too_large(limits)
    kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            async for chunk in request.stream():
                size += len(chunk)
                is_too_large |= size > limits.max_body_bytes
                if not is_too_large:
                    chunks.append(chunk)
                elif size > limits.max_body_bytes + MAX_IGNORED_BYTES:
                    break
    except TimeoutError as error:
        if not is_too_large:
            raise HttpError(408, f"the body did not arrive within {limits.body_timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise HttpError(400, "the client left before the body was complete") from error
    if is_too_large:
        raise _too_large(limits)
    raw = b"".join(chunks)
    if not raw.strip(JSON_SPACE):
        return {}
    if kind != JSON:
        raise HttpError(415, f"the body is {shorten(kind)}; send `Content-Type: {JSON}`")
    return await run_in_thread(lambda: _parse(raw, limits))


def _too_large(limits: Limits) -> HttpError:
    return HttpError(413, f"the body is larger than {limits.max_body_bytes:,} bytes", closes=True)


def _parse(raw: bytes, limits: Limits) -> Json:
    if _count_containers(raw, limits.max_containers) > limits.max_containers:
        raise HttpError(400, f"the body has more than {limits.max_containers:,} lists and objects")
    try:
        body: Json = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise HttpError(400, f"the body is not JSON: {error}") from error
    _check_shape(body, limits)
    return body


def _count_containers(raw: bytes, enough: int) -> int:
    """The lists and objects of a body, before it is parsed: orjson parses them slowly, and nothing else runs then."""
    count = raw.count(b"[") + raw.count(b"{")
    if count <= enough:
        return count
    return sum(map(len, re.findall(rb'"(?:[^"\\]|\\.)*+"?|([\[{]+)', raw, re.DOTALL)))  # those in texts do not count


def _check_shape(value: Json, limits: Limits) -> None:
    """Refuse bodies with too many levels or items. orjson has refused those beyond 1,024 levels already."""
    level = [value]
    for _ in range(limits.max_depth + 1):
        inner = [each for each in level if isinstance(each, dict | list)]
        if any(len(each) > limits.max_items for each in inner):
            raise HttpError(400, f"a list or object of the body has more than {limits.max_items:,} items")
        level = [part for each in inner for part in (each.values() if isinstance(each, dict) else each)]
        if not level:
            return
    raise HttpError(400, f"the body is nested more than {limits.max_depth} levels deep")


@dataclass(eq=False)
class Rates:
    """How often each client has asked lately: a bucket that fills up again over a minute."""

    per_minute: int
    now: Callable[[], float] = time.monotonic
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, client: str) -> None:
        """Count a request. HttpError if the client has none left."""
        now = self.now()
        left, since = self._left.pop(client, (float(self.per_minute), now))
        left = min(float(self.per_minute), left + (now - since) * self.per_minute / 60)
        allowed = left >= 1
        self._left[client] = (left - 1 if allowed else left, now)
        while len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        if not allowed:
            wait = math.ceil((1 - left) * 60 / self.per_minute)
            headers = {"Retry-After": str(wait)}
            raise HttpError(429, f"more than {self.per_minute} requests per minute", headers=headers)
