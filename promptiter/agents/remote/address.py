"""The addresses of remote agents."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from promptiter.endpoint.sessions import LOOPBACK
from promptiter.errors import SetupError
from promptiter.wording import shorten


def check_address(url: str) -> None:
    """Raise SetupError if this is not the address of an agent."""
    _split(url)


def is_loopback(url: str) -> bool:
    """Whether an address is one of this machine."""
    return _split(url).hostname in LOOPBACK


def _split(url: str) -> SplitResult:
    problem = f"the address of a remote agent is {shorten(url)}; give one such as http://localhost:8080"
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if it is not a number
    except ValueError as error:
        raise SetupError(problem) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SetupError(problem)
    if "@" in parts.netloc:
        raise SetupError("the address of a remote agent contains a login; give it as a header, with ${VAR}")
    if parts.query or parts.fragment:
        raise SetupError(f"{problem}, without a query: /structure and /runs are added to it")
    return parts
