"""Predicates about the words of an output: how it begins and ends, words it must have, its length, and rubrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from promptiter.backprop.case_values import split_words
from promptiter.offline.rules.examples import (
    MIN_SHARE,
    Predicate,
    Sample,
    SampleSet,
    is_safe_literal,
    take_one_per_case,
    text_predicate,
)
from promptiter.offline.text.matching import contains_words, normalize, read_object
from promptiter.small_words import SMALL_WORDS

MAX_ENDING_WORDS = 12
MAX_KEYWORDS = 3
MIN_REQUIREMENT_WORDS = 3
CLEARLY = 1.5
"""A length is a rule only if failing outputs miss it by this factor; a word too many has other reasons."""


def detect_prefix(evidence: SampleSet) -> Iterator[Predicate]:
    """The output begins with the words that the references begin with."""
    words = _find_shared_start([text.split() for _, text in _list_prose(evidence)], min_cases=evidence.min_cases)
    text = " ".join(words)
    if not _is_wording(text) or (_is_copied(text, evidence) and not text.endswith(":")):
        return
    start = re.compile(rf"{re.escape(text)}(?!\w)")
    yield text_predicate(
        "prefix",
        (text,),
        test=lambda each, _: start.match(" ".join(each.split()[:MAX_ENDING_WORDS])) is not None,
        fault=f'do not begin with "{text}"',
        virtue="do",
    )


def detect_suffix(evidence: SampleSet) -> Iterator[Predicate]:
    """The output ends with the words that the references end with."""
    texts = [text for _, text in _list_prose(evidence)]
    words = _find_shared_start([text.split()[::-1] for text in texts], min_cases=evidence.min_cases)[::-1]
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


def detect_lengths(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is as long as the metric allows, or no longer and no shorter than the references."""
    for family, choose in (("max_length", min), ("min_length", max)):
        findings = (finding for sample in evidence.failing for finding in sample.findings)
        limits = {each.expected for each in findings if each.predicate == family and isinstance(each.expected, int)}
        if limits:  # a rule of the metric is for all outputs
            predicate = _length_predicate(family, choose(limits), "characters")
            yield replace(predicate, wants=lambda _: True, is_of_metric=True)
    for unit in ("sentences", "words") if evidence.is_whole else ():
        lengths = [_COUNTS[unit](text) for _, text in _list_prose(evidence)]
        shortest, longest = min(lengths, default=0), max(lengths, default=0)
        usual = median([_COUNTS[unit](sample.output) for sample in evidence.failing] or [0])
        if longest and usual >= CLEARLY * longest and (unit == "words" or longest <= 3):
            yield _length_predicate("max_length", -(-longest // _choose_step(longest)) * _choose_step(longest), unit)
        if shortest > 1 and CLEARLY * usual <= shortest and (unit == "words" or shortest <= 5):
            yield _length_predicate("min_length", shortest // _choose_step(shortest) * _choose_step(shortest), unit)


def detect_keywords(evidence: SampleSet) -> Iterator[Predicate]:
    """The output has a word that nearly all references share and failing outputs lack."""
    if evidence.compared in ("json", "number"):
        return
    texts = [text for _, text in _list_prose(evidence)]
    counts = Counter(" ".join(text.split()) for text in texts)
    same, count = min(counts.items(), key=lambda each: (-each[1], each[0]), default=("", 0))
    if count >= max(evidence.min_cases, MIN_SHARE * len(texts)) and _is_wording(same):
        yield _keyword_predicate(same)
        return
    outputs = [sample.output for sample in take_one_per_case(evidence.failing)]
    common = _find_shared_words(outputs, min_share=0.5, min_cases=evidence.min_cases)
    shared = _find_shared_words(texts, min_share=MIN_SHARE, min_cases=evidence.min_cases)
    yield from map(_keyword_predicate, [word for word in shared if word not in common][:MAX_KEYWORDS])


def detect_rubrics(evidence: SampleSet) -> Iterator[Predicate]:
    """The output meets a rubric of the judge that many failing outputs violate."""
    cases: dict[tuple[str, str], set[str]] = {}
    for sample in evidence.failing:
        for finding in sample.findings:
            if finding.predicate.startswith("rubric:") and isinstance(finding.expected, str):
                text = " ".join(finding.expected.split())
                cases.setdefault((finding.predicate, text), set()).add(sample.case_id)
    for (name, text), case_ids in sorted(cases.items()):
        if len(case_ids) >= evidence.min_cases and _is_requirement(text, evidence):
            yield _rubric_predicate(name, text)


def count_texts_by_word(texts: Iterable[str]) -> Counter[str]:
    """How many texts contain each word, small words excepted."""
    return Counter(word for text in texts for word in set(_list_words(text)))


def _keyword_predicate(text: str) -> Predicate:
    return text_predicate(
        "keyword",
        (text,),
        test=lambda each, _: contains_words(each, text),
        fault=f'do not say "{text}"',
        virtue="do",
        subject=text,
    )


def _rubric_predicate(name: str, text: str) -> Predicate:
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


def _list_prose(evidence: SampleSet) -> list[tuple[Sample, str]]:
    """The references that are words rather than data."""
    if not evidence.is_whole:
        return [(sample, text) for sample, text in evidence.referenced if evidence.compared == "part"]
    return [(sample, text) for sample, text in evidence.referenced if read_object(text) is None]


def _find_shared_start(texts: Sequence[list[str]], *, min_cases: int) -> list[str]:
    """The longest start that nearly all texts share, unless it is all of them."""
    best: list[str] = []
    for length in range(1, MAX_ENDING_WORDS + 1):
        counts = Counter(tuple(words[:length]) for words in texts if len(words) > length)
        start, count = min(counts.items(), key=lambda each: (-each[1], each[0]), default=((), 0))
        if count < max(min_cases, MIN_SHARE * len(texts)):
            break
        best = list(start)
    return best


def _find_shared_words(texts: Sequence[str], *, min_share: float, min_cases: int) -> list[str]:
    """The words in at least this share of the texts, in the order of the first text."""
    counts = count_texts_by_word(texts)
    needed = max(min_cases, min_share * len(texts))
    return [word for word in dict.fromkeys(_list_words(" ".join(texts[:1]))) if counts[word] >= needed]


def _list_words(text: str) -> list[str]:
    return [word for word in re.findall(r"[^\W\d_]{3,}", normalize(text)) if word not in SMALL_WORDS]


def _is_copied(text: str, evidence: SampleSet) -> bool:
    """Whether the words come from the inputs."""
    copies = [contains_words(sample.input, text) for sample, _ in evidence.referenced]
    return 2 * sum(copies) > len(copies)


def _is_requirement(text: str, evidence: SampleSet) -> bool:
    """Whether a rubric says what an output must be like. A word or an answer of a case is not a requirement."""
    if len(split_words(text)) < MIN_REQUIREMENT_WORDS or "{" in text:
        return False
    return all(not contains_words(answer, text) for _, answer in evidence.referenced)


def _is_set_off(words: Sequence[str], texts: Sequence[str]) -> bool:
    """Whether the words follow a stop, a comma or a line break: otherwise they are the end of a sentence."""
    starts = []
    for text in texts:
        before = text.rsplit(None, len(words))[0]
        gap = text[len(before) : len(text) - len(text[len(before) :].lstrip())]
        starts.append("\n" in gap or before.endswith((".", "!", "?", ",", ";", ":")))
    return sum(starts) >= MIN_SHARE * len(starts)


def _is_wording(text: str) -> bool:
    return (
        is_safe_literal(text) and bool(re.search(r"[^\W\d_]{2,}", text)) and not re.match(r"[-*•[{<`]|\d+[.)]\s", text)
    )


def _count_sentences(text: str) -> int:
    ends = re.findall(r"(?<![.!?])[.!?]++(?=\s|$)", text)
    return len(ends) + (bool(text.strip()) and not text.rstrip().endswith((".", "!", "?")))


_COUNTS: Mapping[str, Callable[[str], int]] = {
    "words": lambda text: len(text.split()),
    "sentences": _count_sentences,
    "characters": len,
}


def _choose_step(count: int) -> int:
    """The step to which a length is rounded."""
    return 1 if count <= 12 else 5 if count <= 50 else 10
