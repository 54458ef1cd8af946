"""Reads the list of models of a server with the OpenAI protocol, to find a misspelled name before a run starts.

A name that is not on the list may still be served: some servers take any name, others have aliases. So only a name
that resembles a listed one is a problem. No model is called.
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


def find_misspelled_model(name: str, *, api_base: str, headers: Mapping[str, str], place: str) -> str | None:
    """One line if the name resembles one that the server lists; None if it is listed, or if that is unknown.

    Names such as `gpt-4o-mini` for `gpt-4o-mini-2024-07-18` are aliases. `place` is the address in the message.
    """
    listed = _list_models(api_base, headers)
    if any(name in each or each in name for each in listed):
        return None
    if not (similar := get_close_matches(name, listed, n=1, cutoff=MIN_SIMILARITY)):
        return None
    has = join_names(listed, limit=MAX_LISTED)
    return f"{place} does not list the model {name!r} (did you mean {similar[0]!r}?); it has {has}"


def _list_models(api_base: str, headers: Mapping[str, str]) -> list[str]:
    """The models that a server lists; empty if it does not."""
    from urllib.request import Request, urlopen

    try:
        with urlopen(Request(f"{api_base.rstrip('/')}/models", headers=dict(headers)), timeout=TIMEOUT_S) as response:
            return sorted(str(each["id"]) for each in orjson.loads(response.read())["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
