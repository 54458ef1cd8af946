"""Asks a server with the OpenAI protocol for its list of models, before a run starts. No model is called.

It finds a server that is down and a misspelled name. A name that is not on the list may still be served: some servers
take any name, others have aliases. So only a name that resembles a listed one is a problem.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

import orjson

from promptiter.wording import join_names

TIMEOUT_S = 5.0
MAX_LISTED = 5
"""The most names of a list in a message."""
MIN_SIMILARITY = 0.8
"""How similar an unlisted name is to a listed one if it is taken for a misspelling of it."""


def find_problem_of_server(name: str, *, api_base: str, headers: Mapping[str, str], place: str) -> str | None:
    """One line if the server refuses the connection, or if the name resembles one that it lists; None otherwise.

    Names such as `gpt-4o-mini` for `gpt-4o-mini-2024-07-18` are aliases. `place` is the address in the message.
    """
    try:
        listed = _list_models(api_base, headers)
    except ConnectionRefusedError:
        return f"{place} refuses connections; start the server of the model {name!r}, or correct its api_base"
    if any(name in each or each in name for each in listed):
        return None
    if not (similar := get_close_matches(name, listed, n=1, cutoff=MIN_SIMILARITY)):
        return None
    has = join_names(listed, limit=MAX_LISTED)
    return f"{place} does not list the model {name!r} (did you mean {similar[0]!r}?); it has {has}"


def _list_models(api_base: str, headers: Mapping[str, str]) -> list[str]:
    """The models that a server lists; empty if it does not. Raises ConnectionRefusedError if nothing listens there."""
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(f"{api_base.rstrip('/')}/models", headers=dict(headers)), timeout=TIMEOUT_S) as response:
            return sorted(str(each["id"]) for each in orjson.loads(response.read())["data"])
    except URLError as error:
        if isinstance(error.reason, ConnectionRefusedError):
            raise error.reason from None
        return []
    except (OSError, ValueError, KeyError, TypeError):
        return []
