"""Requests to an HTTP service, with limits on time and size. The only module of agents that imports httpx."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.output import show_tail
from promptiter.errors import ModelUnavailableError, ServiceError, SetupError

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that a header cannot contain."""
_UNICODE = ("utf-8", "utf8", "utf-16", "us-ascii", "ascii")
_WESTERN = ("iso-8859-1", "latin-1", "windows-1252", "cp1252")
_EASTERN = ("gb18030", "gbk", "gb2312", "big5", "shift_jis", "euc-jp", "euc-kr")
CHARSETS = frozenset((*_UNICODE, *_WESTERN, *_EASTERN))
"""Encodings that a service may name. Others are read as UTF-8: some of Python's take minutes for a large answer."""
_OUTAGES = (
    HTTPStatus.TOO_MANY_REQUESTS,
    HTTPStatus.BAD_GATEWAY,
    HTTPStatus.SERVICE_UNAVAILABLE,
    HTTPStatus.GATEWAY_TIMEOUT,
)


@dataclass(frozen=True, slots=True)
class ServiceReply:
    """The answer of a service."""

    status: int
    text: str


async def send(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    timeout_s: float,
    max_bytes: int,
    hosts: AgentHosts | None = None,
) -> ServiceReply:
    """Send a request. ServiceError if its answer cannot be used; ModelUnavailableError if the service is unreachable.

    Redirects are not followed: they could lead to another host with the headers of the request. Only `hosts` are
    called, if they are given.
    """
    import httpx

    name = name_service(url)
    received = bytearray()
    encoded = [(each.encode(), value.encode()) for each, value in (headers or {}).items()]  # httpx takes ASCII only
    extensions = {} if hosts is None else {"trace": _PeerCheck(hosts)}
    try:
        if hosts is not None:
            hosts.check(str(httpx.URL(url)))  # as httpx reads it
        async with (
            asyncio.timeout(timeout_s),  # that of httpx is for each read alone
            httpx.AsyncClient(verify=_make_ssl_context(), timeout=timeout_s) as client,
            client.stream(method, url, headers=encoded, content=body, extensions=extensions) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                received += chunk
                if len(received) > max_bytes:
                    raise ServiceError(f"{name} answered with more than {max_bytes:,} bytes; raise max_output_bytes")
            charset, status = (answer.charset_encoding or "utf-8").lower(), answer.status_code
    except SetupError as error:
        raise ServiceError(str(error)) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise ServiceError(f"{name} did not answer in {timeout_s:g} s") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise ServiceError(f"{name} cannot be called: {error}") from error
    except httpx.DecodingError as error:
        raise ServiceError(f"{name} answered with what cannot be decompressed: {error}") from error
    except httpx.TransportError as error:
        raise ModelUnavailableError(f"{name} cannot be reached: {str(error) or type(error).__name__}") from error
    if charset not in CHARSETS:
        return ServiceReply(status, received.decode(errors="replace"))
    try:
        return ServiceReply(status, received.decode(charset))
    except UnicodeDecodeError as error:
        raise ServiceError(f"{name} answered with what is not {charset}: {error}") from error


@dataclass(frozen=True, slots=True)
class _PeerCheck:
    """Checks the address of each new connection before anything is sent: a name may have another one by now."""

    hosts: AgentHosts

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event != "connection.connect_tcp.complete":
            return
        stream = info["return_value"]
        host, port, *_ = stream.get_extra_info("server_addr")
        try:
            self.hosts.check_peer(host, port)
        except SetupError:
            await stream.aclose()
            raise


def name_service(url: str) -> str:
    """A service in messages: its host, without path and query, which may hold a key."""
    return f"the service {urlsplit(url).netloc.rpartition('@')[2]!r}"


def describe_status(url: str, reply: ServiceReply) -> str:
    """`the service 'localhost:80' answered with status 500: ...`, with the end of what it wrote."""
    return f"{name_service(url)} answered with status {reply.status}{show_tail(reply.text)}"


def check_status(url: str, reply: ServiceReply) -> None:
    """Raise ModelUnavailableError if the service is down or overloaded, ServiceError for any other status but 2xx."""
    if reply.status in _OUTAGES:
        raise ModelUnavailableError(describe_status(url, reply))
    if not HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
        raise ServiceError(describe_status(url, reply))


@cache
def _make_ssl_context() -> ssl.SSLContext:
    """Made once: it reads all certificates of the machine."""
    return ssl.create_default_context()
