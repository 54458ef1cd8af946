"""Texts compared regardless of letter case and spacing; small words; JSON documents in texts."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from traces.model import Json

LETTER = r"[^\W\u3040-\u9fff]"
"""A character of a word. Chinese and Japanese put no spaces between words, so their characters end one."""

WORD_START, WORD_END = rf"(?<!{LETTER})", rf"(?!{LETTER})"

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
    """Whether a text contains these words or this value as a whole, whatever their letter case; see contains_whole."""
    return contains_whole(normalize(text), normalize(words))


def contains_whole(text: str, part: str) -> bool:
    """Whether a text contains a part with boundaries around it: not inside a longer word, number, date or id.

    `12` is not in `120`, `12.5`, `1,012`, `A-12`, `12:30` or `2026-12-01`, nor `A-1` in `A-17` or `A-1-B`.
    """
    return find_whole(text, part) is not None


def find_whole(text: str, part: str) -> re.Match[str] | None:
    """The first place where a text contains a part as a whole."""
    return _whole_pattern(part).search(text) if part and part in text else None


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


@lru_cache(maxsize=8192)
def _whole_pattern(part: str) -> re.Pattern[str]:
    has_digit = any(character.isdigit() for character in part)
    before = WORD_START if re.match(LETTER, part[0]) else ""
    after = WORD_END if re.match(LETTER, part[-1]) else ""
    if before and has_digit:
        before += r"(?<![^\W_]-)"  # A-12, 2026-12
    if before and part[0].isdigit():
        before += r"(?<!\d[/:.–])(?<![-−])"  # 10:12, 5.12, -12
    if before and re.match(r"\d{3}(?!\d)", part):
        before += r"(?<!\d,)"  # 1,012
    if after and has_digit:
        after += rf"(?![-.]{LETTER})"  # A-12-B, 12.5
    if after and part[-1].isdigit():
        after += r"(?![/:–]\d|,\d{3}(?!\d))"  # 12:30, 12,000
    return re.compile(before + re.escape(part) + after)
