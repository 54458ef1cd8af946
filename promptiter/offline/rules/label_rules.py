"""Predicates about short answers: one of some labels, a bare value, letter case, language, and citations."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from promptiter.offline.rules.examples import (
    MIN_SHARE,
    Predicate,
    Sample,
    SampleSet,
    Verdict,
    is_safe_literal,
    text_predicate,
)
from promptiter.offline.rules.phrase_rules import count_texts_by_word
from promptiter.offline.text.matching import contains_words, normalize, read_object
from promptiter.small_words import guess_language

MAX_LABELS = 12
MAX_LABEL_WORDS = 3
MAX_VALUE_WORDS = 6


def detect_enumeration(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is one of the few labels that the references are."""
    labels = _find_labels(evidence)
    if not labels:
        return
    known = set(map(strip_answer, labels))
    yield text_predicate(
        "enumeration",
        labels,
        test=lambda text, _: strip_answer(text) in known,
        fault=f"are not one of {', '.join(labels)}",
        virtue="are one",
    )


def detect_label_cues(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is a label where the input has a word that only inputs with that label have.

    Best is a word that the prompt has already, probably for another label, then the name of a field.
    """
    labels = _find_labels(evidence)
    known = count_texts_by_word([evidence.prompt])
    named = {word for sample in evidence.samples for name in sample.fields for word in name.split()}
    inputs = {
        label: [sample.input for sample, text in evidence.referenced if strip_answer(text) == strip_answer(label)]
        for label in labels
    }
    for label, texts in inputs.items():
        others = count_texts_by_word(text for other, more in inputs.items() if other != label for text in more)
        left = list(texts)
        while left:
            counts = count_texts_by_word(left)
            cues = [word for word, count in counts.items() if count >= evidence.min_cases and not others[word]]
            if not cues:
                break
            place = normalize(left[0]).find
            cue = min(cues, key=lambda word: (-counts[word], not known[word], word not in named, place(word), word))
            yield _label_cue_predicate(label, cue)
            left = [text for text in left if not contains_words(text, cue)]


def detect_value_only(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is the bare value, without a sentence around it."""
    if evidence.is_whole:
        fault = "have other text around the answer"
        yield text_predicate("value_only", test=_is_value_only, fault=fault, virtue="have none")


def detect_upper_case(evidence: SampleSet) -> Iterator[Predicate]:
    """All words are in upper case, as in references that differ from input or output in that."""
    if evidence.compared != "number":
        yield text_predicate("upper_case", test=_is_upper_case, fault="are not in upper case", virtue="are")


def detect_language(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is in the language of the references."""
    counts = Counter(name for sample, text in evidence.referenced if (name := _detect_own_language(text, sample)))
    if evidence.compared == "number" or not counts:
        return
    best = min(counts, key=lambda name: (-counts[name], name))
    yield text_predicate(
        "language",
        (best,),
        test=lambda text, sample: None if (found := _detect_own_language(text, sample)) is None else found == best,
        fault=f"are not in {best}",
        virtue="are",
    )


def detect_citation(evidence: SampleSet) -> Iterator[Predicate]:
    """The output cites its source in square brackets, by the id that the input gives it."""
    if evidence.compared not in ("number", "json"):
        fault = "cite no source in square brackets"
        yield text_predicate("cite", test=_cites_source, fault=fault, virtue="cite one")


def strip_answer(text: str) -> str:
    """A short answer in a form that can be compared: lower case, without punctuation around it."""
    return normalize(text).strip(" .!\"'`*")


def _find_labels(evidence: SampleSet) -> tuple[str, ...]:
    """The labels, if the references are a few short texts, each of them that of several cases.

    The references of a router are its outputs in passing runs: any output may lead to the branch that is the default.
    """
    if not evidence.is_whole:
        return ()
    spellings: dict[str, Counter[str]] = {}
    cases: dict[str, set[str]] = {}
    for sample, text in evidence.referenced:
        spellings.setdefault(strip_answer(text), Counter())[text.strip(" .!\"'`*\n")] += 1
        cases.setdefault(strip_answer(text), set()).add(sample.case_id)
    shared = {label for label, case_ids in cases.items() if len(case_ids) >= evidence.min_cases - 1}
    covered = sum(len(cases[label]) for label in shared)
    are_most = evidence.is_of_router or covered >= MIN_SHARE * sum(map(len, cases.values()))
    is_closed = 2 <= len(shared) <= MAX_LABELS and are_most
    is_short = all(0 < len(label.split()) <= MAX_LABEL_WORDS for label in shared)
    is_numeric = any(re.fullmatch(r"[\d.,%]+", label) for label in shared)
    if not is_closed or not is_short or is_numeric or max(map(len, cases.values())) < evidence.min_cases:
        return ()
    labels = tuple(min(spellings[label], key=lambda text: (-spellings[label][text], text)) for label in sorted(shared))
    if len({label.partition(":")[0] for label in labels}) == 1:  # `Team: red`, `Team: blue`: the heading is a rule
        return ()
    return labels if all("," not in label and is_safe_literal(label) for label in labels) else ()


def _label_cue_predicate(label: str, cue: str) -> Predicate:
    def wants(sample: Sample) -> Verdict:
        is_label = sample.reference is not None and strip_answer(sample.reference) == strip_answer(label)
        return True if is_label and contains_words(sample.input, cue) else None

    return Predicate(
        family="label_cue",
        parameters=(label, cue),
        wants=wants,
        has=lambda sample: strip_answer(sample.output) == strip_answer(label) if wants(sample) else None,
        fault=f'are not {label} where the input mentions "{cue}"',
        virtue="are",
        subject=f"{label} {cue}",
        is_conditional=True,
    )


def _is_value_only(text: str, sample: Sample) -> Verdict:
    reference = sample.reference or ""
    length = len(reference.split())
    if text == reference:
        is_sentence = length > 2 and reference.rstrip().endswith((".", "!", "?"))
        return 0 < length <= MAX_VALUE_WORDS and not is_sentence
    if strip_answer(text) == strip_answer(reference):
        return True
    is_longer = len(text.split()) > 2 * length + 3
    return False if is_longer or contains_words(text, strip_answer(reference)) else None


def _is_upper_case(text: str, sample: Sample) -> Verdict:
    """None unless the reference shows a case: it writes words differently from the input or the output."""
    reference = sample.reference or ""
    written = set(_list_words(reference))
    elsewhere = {*_list_words(sample.input), *(_list_words(sample.output) if sample.output != reference else ())}
    folded = {word.casefold() for word in elsewhere - written}
    words = _list_words(text)
    if not words or not any(word.casefold() in folded for word in written - elsewhere):
        return None
    return all(map(str.isupper, words))


def _list_words(text: str) -> list[str]:
    """The words of a text; those of the values if it is a JSON object."""
    record = read_object(text)
    texts = (text,) if record is None else (value for value in record.values() if isinstance(value, str))
    return re.findall(r"[^\W\d_]{2,}", " ".join(texts))


def _detect_own_language(text: str, sample: Sample) -> str | None:
    """The language of the words that do not come from the input."""
    given = {word.casefold() for word in _list_words(sample.input)}
    own = " ".join(word for word in re.findall(r"[^\W\d_]+", text) if word.casefold() not in given)
    return guess_language(own) or guess_language(text)


def _cites_source(text: str, sample: Sample) -> bool:
    marks = re.findall(r"\[([\w.:/-]{1,40})\]", text)
    return any(contains_words(sample.input, f"[{mark}]" if mark.isdecimal() else mark) for mark in marks)
