"""What goes wrong between a client and a server: wrong URLs, servers that cannot be reached, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import orjson

from promptiter.errors import PromptiterError, SetupError
from promptiter.wording import shorten

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")

BASE_PATH = "/promptiter/v1/apps"
JSON, PAGE, STREAM, ARCHIVE = "application/json", "text/html", "text/event-stream", "application/zip"
"""The media types of answers."""
OK, NOT_FOUND = 200, 404


class ServerError(PromptiterError):
    """A server refused a request, or cannot be reached: then `status` is 0. `problems` are those of an invalid run.

    With status 200, something else than a promptiter server answered. `retry_after_s` says when the server wants to be
    asked again.
    """

    def __init__(
        self, message: str, *, status: int = 0, problems: tuple[str, ...] = (), retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.problems = problems
        self.retry_after_s = retry_after_s


def check_url(url: str) -> None:
    """Raise SetupError unless this is the URL of a server: `http://host:port` or `https://host`."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
        has_more = bool(parts.query or parts.fragment or parts.username or parts.password)
        _ = parts.port
    except ValueError:
        is_url, has_more = False, False
    shown = shorten(url if "@" not in url else f"…@{url.rpartition('@')[2]}")
    if not is_url:
        hint = f"; did you mean http://{url}?" if _HOST_AND_PORT.fullmatch(url) else ""
        raise SetupError(f"{shown} is not the URL of a server, such as http://127.0.0.1:8788{hint}")
    if has_more:
        raise SetupError(f"{shown} has more than a host, a port and a path; a token is given separately")
    if "/promptiter/v1" in parts.path:
        raise SetupError(f"{shown} is the URL of a route; give only that of the server, without {parts.path!r}")


def clean_token(token: str) -> str:
    """A token without the white space around it, as from a file. SetupError, which does not show it, if it is none."""
    cleaned = token.strip()
    if not cleaned or not cleaned.isascii() or not cleaned.isprintable() or " " in cleaned:
        what = "it is empty" if not cleaned else "it must be one line of letters, digits, '-' and '_'"
        raise SetupError(f"the token for the server cannot be sent: {what}")
    return cleaned


_HOST_AND_PORT = re.compile(r"[\w.-]+(:\d+)?/?")
_NOT_OURS = "it is not a promptiter server"


def read_error(answer: httpx.Response) -> ServerError:
    """The error that a server answered with."""
    try:
        body = answer.json()
        message, problems = str(body["error"]), tuple(body.get("problems", ()))
    except (ValueError, KeyError, TypeError):
        message, problems = shorten(answer.text), ()
        if answer.status_code == NOT_FOUND:
            message = f"{_NOT_OURS}, whose answers are JSON: {message}"
        elif answer.has_redirect_location:
            message = f"it leads to {shorten(answer.headers['location'])}; give the URL of the server itself"
    retry_after = answer.headers.get("retry-after", "")
    return ServerError(
        f"the server answered {answer.status_code}: {message}",
        status=answer.status_code,
        problems=problems,
        retry_after_s=float(retry_after) if re.fullmatch("[0-9]{1,9}", retry_after) else None,
    )


def check_kind(answer: httpx.Response, kind: str | None) -> None:
    """Raise ServerError if a successful answer has another media type; with None, if it has any."""
    found = answer.headers.get("content-type", kind or "").partition(";")[0].strip().lower()
    if found != (kind or ""):
        wanted = f" instead of {kind}" if kind else ""
        raise _foreign(f"{shorten(found)}{wanted}", f"{_NOT_OURS}, or a proxy answers for it")


def read_body(raw: bytes, read: Callable[[dict[str, Any]], T]) -> T:
    """Return what the JSON of a successful answer says. ServerError if it says something else."""
    try:
        return read(orjson.loads(raw))
    except (ValueError, KeyError, TypeError) as error:
        found = shorten(raw.decode(errors="replace"))
        raise _foreign(f"the unexpected JSON {found}", f"{_NOT_OURS}, or one of another version") from error


def _foreign(what: str, why: str) -> ServerError:
    return ServerError(f"the server answered with {what}: {why}", status=OK)


def unreachable(url: object, error: Exception) -> ServerError:
    """The error of a server that did not answer."""
    return ServerError(f"the server {url} cannot be reached: {str(error) or type(error).__name__}; is it running?")
