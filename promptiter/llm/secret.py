"""Secrets: texts that are never shown, and how to find them in headers, addresses and settings."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from promptiter.llm.redaction import MASK, map_texts
from traces.model import Json

SHORTEST_IN_HEADERS = 8
"""Shorter values of headers are ordinary words and numbers."""


class Secret(str):
    """A text that must not be shown: as a string it is `***`, or the `${VAR}` that it came from.

    Only `reveal()` returns the value. Copies and pickles carry it. `parts` are the values of the variables that it
    contains.
    """

    _value: str
    parts: tuple[str, ...]

    def __new__(cls, value: str, *, source: str = MASK, parts: tuple[str, ...] = ()) -> Secret:
        secret = super().__new__(cls, source)
        secret._value = value
        secret.parts = parts
        return secret

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return repr(MASK)

    def __getnewargs_ex__(self) -> tuple[tuple[str], dict[str, Json]]:
        return (self._value,), {"source": str(self), "parts": self.parts}


def reveal(value: Json) -> Json:
    """A copy of a JSON value with every Secret in it revealed, for the call that needs them."""
    return map_texts(value, lambda text: text.reveal() if isinstance(text, Secret) else text)


def secrets_in(value: object) -> tuple[str, ...]:
    """The values of all Secrets in mappings, lists and dataclasses, at any depth."""
    found: set[str] = set()
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, Secret):
            found.update((item.reveal(), *item.parts))
        elif isinstance(item, Mapping):
            waiting.extend(item.values())
        elif isinstance(item, list | tuple):
            waiting.extend(item)
        elif is_dataclass(item) and not isinstance(item, type):
            waiting.extend(getattr(item, field.name) for field in fields(item))
    return tuple(sorted(found))


def is_secret_name(name: str) -> bool:
    """Whether the value of a configuration key with this name is a secret."""
    return _SECRET_NAME.search(name) is not None


def is_harmless_header(name: str) -> bool:
    """Whether a header is one of the few that never hold a secret."""
    lowered = name.lower()
    return lowered in _HARMLESS_HEADERS or lowered.endswith(("version", "-beta"))


def secrets_of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """The secret parts of headers, such as `abc` of `Bearer abc`."""
    for name, value in headers.items():
        secret = _SCHEME.sub("", str(value))
        if not is_harmless_header(name) and (len(secret) >= SHORTEST_IN_HEADERS or is_secret_name(name)):
            yield secret


def secrets_of_address(address: str) -> Iterator[str]:
    """The secret parts of an address: `user:password@`, keys in its query, and long opaque parts of its path."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return
    login, at, _ = parts.netloc.rpartition("@")
    if at:
        user, _, password = login.partition(":")
        yield from {password or user, unquote(password or user)}
        yield b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        if is_secret_name(name) or _SECRET_PARAMETER.fullmatch(name) or _OPAQUE.fullmatch(value):
            yield from {value, unquote_plus(value)}
    yield from (part for part in parts.path.split("/") if _OPAQUE.fullmatch(part))


def hide_by_name(value: Json) -> Json:
    """A copy of a JSON value in which headers, and texts under a secret's name, are Secrets."""

    def hide(text: str, names: tuple[str, ...]) -> str:
        return Secret(text) if holds_secret(names) and not isinstance(text, Secret) else text

    return map_texts_by_name(value, hide)


def holds_secret(names: tuple[str, ...]) -> bool:
    """Whether a text below these keys, outermost first, is a secret because of their names."""
    if any(name.lower().endswith("headers") for name in names[:-1]):
        return not is_harmless_header(names[-1])
    return any(map(is_secret_name, names))


def map_texts_by_name(value: Json, change: Callable[[str, tuple[str, ...]], str]) -> Json:
    """A copy of a JSON value, of any depth, with every text changed. `change` also gets the keys above the text."""
    top: list[Json] = [value]
    waiting: list[tuple[Any, Any, tuple[str, ...]]] = [(top, 0, ())]
    while waiting:
        holder, key, names = waiting.pop()
        item = holder[key]
        if isinstance(item, Mapping):
            holder[key] = copy = dict(item)
            waiting.extend((copy, name, (*names, str(name))) for name in copy)
        elif isinstance(item, list | tuple):
            holder[key] = items = list(item)
            waiting.extend((items, index, names) for index in range(len(items)))
        elif isinstance(item, str):
            holder[key] = change(item, names)
    return top[0]


_SECRET_NAME = re.compile(
    r"(?:api|access|private|subscription)[_-]?key|authorization|passw(?:or)?d|passphrase|secret|credential|cookie|token$",
    re.IGNORECASE,
)
_SECRET_PARAMETER = re.compile(r"key|auth|code|pass|sig|signature|apikey", re.IGNORECASE)
_SCHEME = re.compile(r"^(?:bearer|basic|token|apikey|key)\s+", re.IGNORECASE)
_OPAQUE = re.compile(r"(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{20,}")
_HARMLESS_HEADERS = frozenset(
    (
        *("accept", "accept-charset", "accept-encoding", "accept-language", "cache-control", "connection"),
        *("content-encoding", "content-language", "content-length", "content-type", "date", "host", "http-referer"),
        *("origin", "pragma", "referer", "user-agent", "x-title"),
    )
)
