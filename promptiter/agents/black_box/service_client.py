"""Requests to an HTTP service, with limits on time and size. The only module of agents that imports httpx."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from promptiter.agents.black_box.output import show_tail
from promptiter.errors import ModelUnavailableError, ServiceError


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
) -> ServiceReply:
    """Send a request. ServiceError if its answer cannot be used; ModelUnavailableError if the service is unreachable.

    Redirects are not followed: they could lead to another host with the headers of the request.
    """
    import httpx

    name = name_service(url)
    received = bytearray()
    encoded = [(each.encode(), value.encode()) for each, value in (headers or {}).items()]  # httpx takes ASCII only
    try:
        async with (
            asyncio.timeout(timeout_s),  # that of httpx is for each read alone
            httpx.AsyncClient(verify=_make_ssl_context(), timeout=timeout_s) as client,
            client.stream(method, url, headers=encoded, content=body) as answer,
        ):
            async for chunk in answer.aiter_bytes():
                received += chunk
                if len(received) > max_bytes:
                    raise ServiceError(f"{name} answered with more than {max_bytes:,} bytes; raise max_output_bytes")
            encoding, status = answer.charset_encoding or "utf-8", answer.status_code
    except (httpx.TimeoutException, TimeoutError) as error:
        raise ServiceError(f"{name} did not answer in {timeout_s:g} s") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
        raise ServiceError(f"{name} cannot be called: {error}") from error
    except httpx.DecodingError as error:
        raise ServiceError(f"{name} answered with what cannot be decompressed: {error}") from error
    except httpx.TransportError as error:
        raise ModelUnavailableError(f"{name} cannot be reached: {str(error) or type(error).__name__}") from error
    try:
        return ServiceReply(status, bytes(received).decode(encoding))
    except (UnicodeDecodeError, LookupError) as error:
        raise ServiceError(f"{name} answered with what is not {encoding}: {error}") from error


def name_service(url: str) -> str:
    """A service in messages: its host, without path and query, which may hold a key."""
    return f"the service {urlsplit(url).netloc.rpartition('@')[2]!r}"


def describe_status(url: str, reply: ServiceReply) -> str:
    """`the service 'localhost:80' answered with status 500: ...`, with the end of what it wrote."""
    return f"{name_service(url)} answered with status {reply.status}{show_tail(reply.text)}"


@cache
def _make_ssl_context() -> ssl.SSLContext:
    """Made once: it reads all certificates of the machine."""
    return ssl.create_default_context()
