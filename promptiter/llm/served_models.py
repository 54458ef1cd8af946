"""Asks a server with the OpenAI protocol whether it serves a model, before a run starts. Nothing is paid.

Most servers list their models, and a name on the list is served. A name that is not may be served too: some servers
take any name, others have aliases. So it is tried with one token, and only a refusal that names the model counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import orjson

from promptiter.errors import nearest
from promptiter.wording import join_names

TIMEOUT_S = 5.0
MAX_LISTED = 5
"""The most names of a list in a message."""


def find_unserved_model(name: str, *, api_base: str, headers: Mapping[str, str], place: str) -> str | None:
    """One line if the server certainly does not serve the model; None if it does, or that is unknown.

    `place` is the address in the message.
    """
    listed = _list_models(api_base, headers)
    if not listed or name in listed or not _is_refused(name, api_base, headers):
        return None
    return f"{place} does not serve {name!r}{nearest(name, listed)}; it has {join_names(listed, limit=MAX_LISTED)}"


def _list_models(api_base: str, headers: Mapping[str, str]) -> list[str]:
    """The models that a server lists; empty if it does not."""
    try:
        _, found = _send(f"{api_base.rstrip('/')}/models", headers)
        return sorted(str(each["id"]) for each in found["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _is_refused(name: str, api_base: str, headers: Mapping[str, str]) -> bool:
    """Whether the server refuses to answer with this model, and says so."""
    question = {"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
    try:
        status, answer = _send(f"{api_base.rstrip('/')}/chat/completions", headers, question)
    except (OSError, ValueError):
        return False
    return status in (400, 404, 422) and name in orjson.dumps(answer).decode()


def _send(url: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    data = None if body is None else orjson.dumps(body)
    request = Request(url, data=data, headers={"Content-Type": "application/json", **headers})
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:
            return response.status, orjson.loads(response.read())
    except HTTPError as error:
        return error.code, orjson.loads(error.read())
