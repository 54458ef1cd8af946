"""Texts compared regardless of letter case and spacing; small words; JSON documents in texts."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from traces.model import Json

SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        "a about above after all also am an and any are as at be because been before but by can could did do does "
        "false for from get give had has have he her here him his how i if in into is it its just let may me more "
        "most my no not now null of off on one only or other our out over own per please she should so some such "
        "tell than that the their them then there these they this those to too true two under up us use used "
        "using very was we were what when where which while who whom whose why will with would you your",
    )
)
"""Words without a meaning of their own, which may be in any text."""


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
