"""Words without a meaning of their own, which may be in any text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

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
"""Those of English."""

SMALL_WORDS_BY_LANGUAGE: Mapping[str, frozenset[str]] = {
    language: frozenset(words.split())
    for language, words in {
        "English": "the of and is are was to in that it for with on this be by you i not or from have has an about "
        "your",
        "German": "der die das und ist sind war zu nicht ein eine einen mit auf für den dem des es um von ich sie wir "
        "auch als im bitte wird nach über bei",
        "French": "le la les des et est sont un une pour dans que qui ne pas avec sur du au il elle nous vous ce cette "
        "de s'agit par",
        "Spanish": "el los las y es son una para que no con por se del al su como está lo más este esta de la en un",
    }.items()
}
"""The most frequent ones, by which a language can be recognized."""


@lru_cache(maxsize=4096)
def guess_language(text: str) -> str | None:
    """The language of a text by its small words; None if they do not tell."""
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {name: sum(word in small for word in words) for name, small in SMALL_WORDS_BY_LANGUAGE.items()}
    best, second = sorted(counts.values(), reverse=True)[:2]
    if best < 1 or best == second or best * 12 < len(words):
        return None
    return next(name for name, count in counts.items() if count == best)
