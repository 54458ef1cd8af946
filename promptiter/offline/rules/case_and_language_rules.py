"""Predicates about the letters of an output: upper, lower and title case, and the language it is written in."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.rules.examples import Evidence, Predicate, Sample, Verdict, text_predicate


def letter_case(evidence: Evidence) -> Iterator[Predicate]:
    """All words are in upper, lower or title case, as references write words that input or output write otherwise."""
    if evidence.compared == "number":
        return
    for family, is_so in _CASES.items():
        yield text_predicate(
            family,
            test=partial(_is_cased, is_so=is_so),
            fault=f"are not in {family.replace('_', ' ')}",
            virtue="are",
        )


def language(evidence: Evidence) -> Iterator[Predicate]:
    """The output is in the language of the references."""
    counts = Counter(name for sample, text in evidence.referenced if (name := _own_language(text, sample)))
    if evidence.compared == "number" or not counts:
        return
    best = min(counts, key=lambda name: (-counts[name], name))
    yield text_predicate(
        "language",
        (best,),
        test=lambda text, sample: None if (found := _own_language(text, sample)) is None else found == best,
        fault=f"are not in {best}",
        virtue="are",
    )


@lru_cache(maxsize=4096)
def language_of(text: str) -> str | None:
    """The language of a text by its script or its small words; None where they do not tell."""
    letters = [character for character in text if character.isalpha()]
    if len(letters) < 2:
        return None
    for name, pattern in _SCRIPTS.items():
        if len(pattern.findall(text)) * 4 > len(letters):
            return name
    words = re.findall(r"[^\W\d_]+", text.lower())
    counts = {name: sum(word in small for word in words) for name, small in _SMALL_WORDS.items()}
    best, second = sorted(counts.values(), reverse=True)[:2]
    if best < 1 or best == second or best * 12 < len(words):
        return None
    return next(name for name, count in counts.items() if count == best)


def _own_language(text: str, sample: Sample) -> str | None:
    """The language of the words that were not taken over from the input."""
    given = set(_words(sample.input.casefold()))
    own = " ".join(word for word in re.findall(r"[^\W\d_]+", text) if word.casefold() not in given)
    return language_of(own) or language_of(text)


def _is_cased(text: str, sample: Sample, *, is_so: Callable[[str], bool]) -> Verdict:
    """None unless the reference shows a case: it writes words otherwise than the input or the output does."""
    reference = sample.reference or ""
    if not _words(reference) or not _is_recased(reference, sample):
        return None
    words = _words(text)
    return all(map(is_so, words)) if words else None


def _is_recased(reference: str, sample: Sample) -> bool:
    written = set(_words(reference))
    elsewhere = {*_words(sample.input), *(_words(sample.output) if sample.output != reference else ())}
    folded = {word.casefold() for word in elsewhere - written}
    return any(word.casefold() in folded for word in written if word not in elsewhere)


def _words(text: str) -> list[str]:
    """The words of a text; of a JSON object those of its values."""
    return re.findall(r"[^\W\d_]{2,}", " ".join(_values(text)))


@lru_cache(maxsize=4096)
def _values(text: str) -> tuple[str, ...]:
    try:
        value = parse_json(text)
    except NotJsonError:
        return (text,)
    return tuple(each for each in value.values() if isinstance(each, str)) if isinstance(value, dict) else (text,)


_CASES: Mapping[str, Callable[[str], bool]] = {
    "upper_case": str.isupper,
    "lower_case": str.islower,
    "title_case": lambda word: word[0].isupper() and not word.isupper(),
}

_SCRIPTS: Mapping[str, re.Pattern[str]] = {
    "Japanese": re.compile(r"[\u3040-\u30ff]"),
    "Chinese": re.compile(r"[\u4e00-\u9fff]"),
    "Korean": re.compile(r"[\uac00-\ud7af]"),
    "Russian": re.compile(r"[\u0400-\u04ff]"),
    "Greek": re.compile(r"[\u0370-\u03ff]"),
    "Arabic": re.compile(r"[\u0600-\u06ff]"),
    "Hebrew": re.compile(r"[\u0590-\u05ff]"),
    "Hindi": re.compile(r"[\u0900-\u097f]"),
}


def _bag(words: str) -> frozenset[str]:
    return frozenset(words.split())


_SMALL_WORDS: Mapping[str, frozenset[str]] = {
    "English": _bag(
        "the of and is are was to in that it for with on this be by you i not or from have has an about your"
    ),
    "German": _bag(
        "der die das und ist sind war zu nicht ein eine einen mit auf für den dem des es um von ich sie wir auch als "
        "im bitte wird nach über bei"
    ),
    "French": _bag(
        "le la les des et est sont un une pour dans que qui ne pas avec sur du au il elle nous vous ce cette de "
        "s'agit par"
    ),
    "Spanish": _bag("el los las y es son una para que no con por se del al su como está lo más este esta de la en un"),
    "Italian": _bag("il gli e è sono una per che non con di del della nel al questo questa lo un si da"),
    "Portuguese": _bag("o os as e é são uma para que não com por do da em no na se este esta um"),
    "Dutch": _bag("de het een en is zijn van voor dat niet met op te in dit deze wij u er aan"),
}
