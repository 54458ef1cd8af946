"""Predicates about the words of an output: how it begins and ends, what it says or must not say, and how much."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    has_text,
    is_safe_literal,
    one_by_case,
    plain,
    text_predicate,
)
from promptiter.offline.rules.structure_rules import json_keys_of

MOST_SHARE = 0.9
LONGEST_ENDING = 12
MOST_KEYWORDS = 3
CLEARLY = 1.5
"""A length is a rule of its own only if failing outputs miss it by this factor; a word too many has other reasons."""


def prefix(evidence: Evidence) -> Iterator[Predicate]:
    """The output begins with the words that the references begin with."""
    words = _shared_start([text.split() for _, text in _prose(evidence)], fewest=evidence.fewest)
    text = " ".join(words)
    if not _is_wording(text) or (_is_copied(text, evidence) and not text.endswith(":")):
        return
    yield text_predicate(
        "prefix",
        (text,),
        test=lambda each, _: re.match(rf"{re.escape(text)}(?!\w)", " ".join(each.split()[:LONGEST_ENDING])) is not None,
        fault=f'do not begin with "{text}"',
        virtue="do",
    )


def suffix(evidence: Evidence) -> Iterator[Predicate]:
    """The output ends with the words that the references end with."""
    texts = [text for _, text in _prose(evidence)]
    words = _shared_start([text.split()[::-1] for text in texts], fewest=evidence.fewest)[::-1]
    text = " ".join(words)
    if not _is_wording(text) or _is_copied(text, evidence) or not _is_set_off(words, texts):
        return
    yield text_predicate(
        "suffix",
        (text,),
        test=lambda each, _: each.split()[-len(words) :] == words,
        fault=f'do not end with "{text}"',
        virtue="do",
    )


def max_length(evidence: Evidence) -> Iterator[Predicate]:
    """The output is no longer than the metric allows, or than the longest reference."""
    if limits := _violated(evidence, "max_length"):
        yield _told(_length_predicate("max_length", min(limits), "characters"))
    if not evidence.is_whole:
        return
    for unit in ("sentences", "words"):
        longest = max((_COUNTS[unit](text) for _, text in _prose(evidence)), default=0)
        is_passed = _usual(evidence, unit) >= CLEARLY * longest
        if longest and is_passed and (unit == "words" or longest <= 3):
            yield _length_predicate("max_length", _rounded_up(longest), unit)


def min_length(evidence: Evidence) -> Iterator[Predicate]:
    """The output is no shorter than the metric allows, or than the shortest reference."""
    if limits := _violated(evidence, "min_length"):
        yield _told(_length_predicate("min_length", max(limits), "characters"))
    if not evidence.is_whole:
        return
    for unit in ("sentences", "words"):
        shortest = min((_COUNTS[unit](text) for _, text in _prose(evidence)), default=0)
        is_missed = CLEARLY * _usual(evidence, unit) <= shortest
        if shortest > 1 and is_missed and (unit == "words" or shortest <= 5):
            yield _length_predicate("min_length", _rounded_down(shortest), unit)


def keywords(evidence: Evidence) -> Iterator[Predicate]:
    """The output holds a word that nearly all references share."""
    if evidence.compared in ("json", "number"):
        return
    texts = _prose(evidence)
    whole = Counter(" ".join(text.split()) for _, text in texts)
    same, count = min(whole.items(), key=lambda each: (-each[1], each[0]), default=("", 0))
    if count >= max(evidence.fewest, MOST_SHARE * len(texts)) and _is_wording(same):
        yield _keyword(same)
        return
    shared = _shared_words([text for _, text in texts], least=MOST_SHARE, fewest=evidence.fewest)
    common = set(
        _shared_words([sample.output for sample in one_by_case(evidence.failing)], least=0.5, fewest=evidence.fewest)
    )
    for word in [word for word in shared if word not in common][:MOST_KEYWORDS]:
        yield _keyword(word)


def forbidden(evidence: Evidence) -> Iterator[Predicate]:
    """The output does without a word that failing outputs share and no reference has."""
    if not evidence.is_whole or len(evidence.failing) < evidence.fewest:
        return
    shared = _shared_words(
        [sample.output for sample in one_by_case(evidence.failing)], least=0.8, fewest=evidence.fewest
    )
    fine = {word for _, text in evidence.referenced for word in _words(text)}
    given = {word for sample in evidence.failing for word in _words(sample.input)}
    for word in [word for word in shared if word not in fine | given][:MOST_KEYWORDS]:
        yield _forbidden(word)


def rubric(evidence: Evidence) -> Iterator[Predicate]:
    """The output meets a rubric of the judge that many failing outputs violate."""
    cases: dict[tuple[str, str], set[str]] = {}
    for sample in evidence.failing:
        for finding in sample.findings:
            if finding.predicate.startswith("rubric:") and isinstance(finding.expected, str):
                text = " ".join(finding.expected.split())
                cases.setdefault((finding.predicate, text), set()).add(sample.case_id)
    for (name, text), case_ids in sorted(cases.items()):
        if len(case_ids) < evidence.fewest or not text or "{" in text:
            continue
        yield _rubric(name, text)


def words_shared(texts: Iterable[str]) -> Counter[str]:
    """In how many texts each word with a meaning of its own stands."""
    return Counter(word for text in texts for word in set(_words(text)))


def _keyword(text: str) -> Predicate:
    return text_predicate(
        "keyword",
        (text,),
        test=lambda each, _: has_text(each, text),
        fault=f'do not say "{text}"',
        virtue="do",
        subject=text,
    )


def _forbidden(word: str) -> Predicate:
    return text_predicate(
        "forbidden", (word,), test=lambda text, _: not has_text(text, word), fault=f'say "{word}"', subject=word
    )


def _rubric(name: str, text: str) -> Predicate:
    return Predicate(
        family="rubric",
        parameters=(text if text.endswith((".", "!", "?")) else f"{text}.",),
        wants=lambda _: True,
        has=lambda sample: all(finding.predicate != name for finding in sample.findings),
        fault=f"violate {name}",
        virtue="meet it",
        subject=name,
        is_of_metric=True,
    )


def _length_predicate(family: str, limit: int, unit: str) -> Predicate:
    count = _COUNTS[unit]
    is_most = family == "max_length"
    return text_predicate(
        family,
        (str(limit), unit),
        test=lambda text, _: count(text) <= limit if is_most else count(text) >= limit,
        fault=f"have {'more' if is_most else 'fewer'} than {limit} {unit if limit > 1 else unit.removesuffix('s')}",
        subject=unit,
    )


def _told(predicate: Predicate) -> Predicate:
    """The same as a rule of the metric, for all outputs."""
    return replace(predicate, wants=lambda _: True, is_of_metric=True)


def _usual(evidence: Evidence, unit: str) -> float:
    """The length that failing outputs usually have."""
    return median([_COUNTS[unit](sample.output) for sample in evidence.failing] or [0])


def _violated(evidence: Evidence, predicate: str) -> list[int]:
    found = {
        finding.expected
        for sample in evidence.failing
        for finding in sample.findings
        if finding.predicate == predicate and isinstance(finding.expected, int)
    }
    return sorted(found)


def _prose(evidence: Evidence) -> list[tuple[Sample, str]]:
    """The references that are words rather than data."""
    if not evidence.is_whole:
        return [(sample, text) for sample, text in evidence.referenced if evidence.compared == "part"]
    return [(sample, text) for sample, text in evidence.referenced if json_keys_of(text) is None]


def _shared_start(texts: Sequence[list[str]], *, fewest: int) -> list[str]:
    """The longest start that nearly all share, unless it is all of them."""
    best: list[str] = []
    for length in range(1, LONGEST_ENDING + 1):
        counts = Counter(tuple(words[:length]) for words in texts if len(words) > length)
        start, count = min(counts.items(), key=lambda each: (-each[1], each[0]), default=((), 0))
        if count < max(fewest, MOST_SHARE * len(texts)):
            break
        best = list(start)
    return best


def _shared_words(texts: Sequence[str], *, least: float, fewest: int) -> list[str]:
    """Words in at least this share of the texts, in the order in which they come up."""
    counts = words_shared(texts)
    needed = max(fewest, least * len(texts))
    return [word for word in dict.fromkeys(_words(" ".join(texts[:1]))) if counts[word] >= needed]


def _words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]{3,}", plain(text)) if word not in _SMALL_WORDS]


def _is_copied(text: str, evidence: Evidence) -> bool:
    """Whether the words come out of the inputs."""
    copies = [has_text(sample.input, text) for sample, _ in evidence.referenced]
    return 2 * sum(copies) > len(copies)


def _is_set_off(words: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether the words begin anew after a stop, a comma or a line: otherwise they are the rest of a sentence."""
    begun = []
    for text in texts:
        before = text.rsplit(None, len(words))[0]
        gap = text[len(before) : len(text) - len(text[len(before) :].lstrip())]
        begun.append("\n" in gap or before.endswith((".", "!", "?", ",", ";", ":")))
    return sum(begun) >= MOST_SHARE * len(begun)


def _is_wording(text: str) -> bool:
    return (
        is_safe_literal(text) and bool(re.search(r"[^\W\d_]{2,}", text)) and not re.match(r"[-*•[{<`]|\d+[.)]\s", text)
    )


def _sentences(text: str) -> int:
    ends = re.findall(r"(?<![.!?])[.!?]++(?=\s|$)", text)
    return len(ends) + (bool(text.strip()) and not text.rstrip().endswith((".", "!", "?")))


_COUNTS: Mapping[str, Callable[[str], int]] = {
    "words": lambda text: len(text.split()),
    "sentences": _sentences,
    "characters": len,
}


def _rounded_up(count: int) -> int:
    step = 1 if count <= 12 else 5 if count <= 50 else 10
    return -(-count // step) * step


def _rounded_down(count: int) -> int:
    step = 1 if count <= 12 else 5 if count <= 50 else 10
    return count // step * step


_SMALL_WORDS = frozenset(
    re.findall(
        r"\w+",
        "about all also and any are because been but can could did does for from get had has have her his how into its "
        "just may more most not now off one only other our out over per please some such than that the their them "
        "then there these they this those too two under use very was were what when where which who why will with "
        "would you your",
    )
)
