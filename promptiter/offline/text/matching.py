"""Texts compared regardless of letter case and spacing; JSON documents in texts."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.text.tokens import tokenize
from traces.model import Json


@lru_cache(maxsize=8192)
def normalize(text: str) -> str:
    """A text without differences of letter case, white space and typographic variants."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def contains_words(text: str, words: str) -> bool:
    """Whether a text contains these words or this value as a whole, whatever their letter case; see contains_whole."""
    return contains_whole(normalize(text), normalize(words))


def contains_whole(text: str, part: str) -> bool:
    """Whether a text contains a part as a whole value; see find_whole."""
    return find_whole(text, part) is not None


def find_whole(text: str, part: str) -> int | None:
    """The first place where a text contains a part as a whole value: neither end is inside a token of the text.

    `12` is not in `120`, `12.5`, `1,012`, `A-12`, `12:30` or `2026-12-01`, nor `A-1` in `A-17` or `A-1-B`.
    """
    place = text.find(part) if part else -1
    while place >= 0:
        end = place + len(part)
        if (not place or text[place - 1].isspace()) and (end == len(text) or text[end].isspace()):
            return place  # the usual case, for which the tokens need not be known
        tokens = tokenize(text)
        token_end = tokens.find_end_inside(place)
        if token_end is None and tokens.find_end_inside(end) is None:
            return place
        place = text.find(part, token_end or place + 1)
    return None


def read_document(text: str) -> dict[str, Json] | list[Json] | None:
    """The JSON object or list that a text is, also inside a code fence; None if it is neither."""
    try:
        value = parse_json(text)
    except NotJsonError:
        return None
    return value if isinstance(value, dict | list) else None


def read_object(text: str) -> dict[str, Json] | None:
    """The JSON object that a text is, also inside a code fence; None if it is not one."""
    document = read_document(text)
    return document if isinstance(document, dict) else None
