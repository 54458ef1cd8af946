"""Texts compared regardless of letter case and spacing, and JSON documents in texts."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from traces.model import Json


@lru_cache(maxsize=8192)
def normalize(text: str) -> str:
    """A text without differences of letter case, white space and typographic variants."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def contains_words(text: str, words: str) -> bool:
    """Whether a text contains these words, whatever their letter case, and not as parts of longer words."""
    needle, haystack = normalize(words), normalize(text)
    start = haystack.find(needle) if needle else -1
    while start != -1:
        if not _is_inside_word(haystack, start) and not _is_inside_word(haystack, start + len(needle)):
            return True
        start = haystack.find(needle, start + 1)
    return False


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


def _is_inside_word(text: str, place: int) -> bool:
    return 0 < place < len(text) and all(each.isalnum() or each == "_" for each in text[place - 1 : place + 1])
