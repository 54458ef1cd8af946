"""Predicates about the answer itself: one of some labels, yes or no, a bare value, or that nothing is known."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    TextTest,
    Verdict,
    has_text,
    is_safe_literal,
    plain,
    text_predicate,
)
from promptiter.offline.rules.phrase_rules import words_shared

MOST_LABELS = 12
LONGEST_LABEL_WORDS = 3
LONGEST_VALUE_WORDS = 6
MOST_SHARE = 0.9


def enumeration(evidence: Evidence) -> Iterator[Predicate]:
    """The output is one of the few labels that the references are."""
    labels = _labels(evidence)
    if not labels:
        return
    known = set(map(bare, labels))
    yield text_predicate(
        "enumeration",
        labels,
        test=lambda text, _: bare(text) in known,
        fault=f"are none of {', '.join(labels)}",
        virtue="are one",
    )


def label_cues(evidence: Evidence) -> Iterator[Predicate]:
    """A label is given where the input has a word that only inputs of that label have."""
    labels = _labels(evidence)
    inputs = {
        label: [sample.input for sample, text in evidence.referenced if bare(text) == bare(label)] for label in labels
    }
    for label, texts in inputs.items():
        others = words_shared(text for other, more in inputs.items() if other != label for text in more)
        left = list(texts)
        while left:
            counts = words_shared(left)
            cues = [word for word, count in counts.items() if count >= evidence.fewest and not others[word]]
            if not cues:
                break
            cue = min(cues, key=lambda word: (-counts[word], plain(left[0]).find(word) % 100_000, word))
            yield _label_cue(label, cue)
            left = [text for text in left if not has_text(text, cue)]


def yes_no(evidence: Evidence) -> Iterator[Predicate]:
    """The output is yes or no."""
    if not evidence.is_whole:
        return
    yield text_predicate(
        "yes_no",
        test=lambda text, _: bare(text) in ("yes", "no"),
        fault="are neither yes nor no",
        virtue="are one of both",
    )


def value_only(evidence: Evidence) -> Iterator[Predicate]:
    """The output is the bare value, with no sentence around it."""
    if not evidence.is_whole:
        return
    yield text_predicate(
        "value_only", test=_is_value_only, fault="have other text around the answer", virtue="have none"
    )


def field_only(evidence: Evidence) -> Iterator[Predicate]:
    """The output is the value of one field of the input, and nothing else."""
    if not evidence.is_whole:
        return
    counts = Counter(
        name
        for sample, text in evidence.referenced
        for name, values in sample.fields.items()
        if len(values) == 1 and bare(values[0]) == bare(text)
    )
    best = min(counts, key=lambda name: (-counts[name], name), default="")
    if counts[best] < 2 or not is_safe_literal(best):
        return
    yield text_predicate(
        "field_only",
        (best,),
        test=lambda text, sample: bare(text) in map(bare, sample.fields.get(best, ())),
        fault=f"are not the {best} of their input alone",
        virtue="are",
        subject=best,
    )


def unknown(evidence: Evidence) -> Iterator[Predicate]:
    """The output admits it where the references say that nothing is known."""
    refusals = Counter(text.strip().rstrip(".!") for _, text in evidence.referenced if is_refusal(text))
    if not refusals or refusals.total() == len(evidence.referenced):
        return
    said = min(refusals, key=lambda text: (-refusals[text], text))
    if refusals[said] >= max(evidence.fewest, MOST_SHARE * refusals.total()) and is_safe_literal(said):
        yield _unknown("unknown_text", (said,), test=partial(_says, literal=said))
    yield _unknown("unknown", (), test=lambda text, _: is_refusal(text))


def bare(text: str) -> str:
    """A short answer as it is compared: small letters, no marks around it."""
    return plain(text).strip(" .!\"'`*")


def is_refusal(text: str) -> bool:
    """Whether a text says that its author does not know."""
    return _REFUSAL.match(bare(text)) is not None


_REFUSAL = re.compile(
    r"(?:unknown|n/?a|none|no (?:idea|answer|information|data|result)s?\b|"
    r"not (?:known|found|available|given|stated|mentioned|specified|enough)|"
    r"(?:i|we) (?:do not|don't|cannot|can't|could not|couldn't) (?:know|tell|say|answer|find)|"
    r"(?:it |this |that )?(?:is not|isn't|cannot be|can't be) (?:known|determined|answered|said)|"
    r"(?:it |this |that |the answer )?is unknown|insufficient (?:information|data)|undetermined|sorry)"
)


def _labels(evidence: Evidence) -> tuple[str, ...]:
    """The labels, if the references are a few short texts, each of them that of several cases."""
    if not evidence.is_whole:
        return ()
    spelled: dict[str, Counter[str]] = {}
    cases: dict[str, set[str]] = {}
    for sample, text in evidence.referenced:
        spelled.setdefault(bare(text), Counter())[text.strip(" .!\"'`*\n")] += 1
        cases.setdefault(bare(text), set()).add(sample.case_id)
    shared = {label for label, case_ids in cases.items() if len(case_ids) >= evidence.fewest - 1}
    covered = sum(len(cases[label]) for label in shared)
    is_closed = 2 <= len(shared) <= MOST_LABELS and covered >= MOST_SHARE * sum(map(len, cases.values()))
    is_short = all(0 < len(label.split()) <= LONGEST_LABEL_WORDS for label in shared)
    is_numeric = any(re.fullmatch(r"[\d.,%]+", label) for label in shared)
    if not is_closed or not is_short or is_numeric or max(map(len, cases.values())) < evidence.fewest:
        return ()
    labels = tuple(min(spelled[label], key=lambda text: (-spelled[label][text], text)) for label in sorted(shared))
    if len({label.partition(":")[0] for label in labels}) == 1:  # `Team: red`, `Team: blue`: the heading is a rule
        return ()
    return labels if all("," not in label and is_safe_literal(label) for label in labels) else ()


def _label_cue(label: str, cue: str) -> Predicate:
    def is_meant(sample: Sample) -> Verdict:
        is_label = sample.reference is not None and bare(sample.reference) == bare(label)
        return True if is_label and has_text(sample.input, cue) else None

    return Predicate(
        family="label_cue",
        parameters=(label, cue),
        wants=is_meant,
        has=lambda sample: bare(sample.output) == bare(label) if is_meant(sample) else None,
        fault=f'are not {label} where the input mentions "{cue}"',
        virtue="are",
        subject=f"{label} {cue}",
        is_conditional=True,
    )


def _unknown(family: str, parameters: tuple[str, ...], *, test: TextTest) -> Predicate:
    def wants(sample: Sample) -> Verdict:
        return (sample.reference is not None and is_refusal(sample.reference)) or None

    return Predicate(
        family=family,
        parameters=parameters,
        wants=wants,
        has=lambda sample: test(sample.output, sample) if wants(sample) else None,
        fault="make something up where nothing is known",
        virtue="admit it",
        is_conditional=True,
    )


def _says(text: str, sample: Sample, *, literal: str) -> bool:
    return has_text(text, literal) if sample.compared == "part" else bare(text) == bare(literal)


def _is_value_only(text: str, sample: Sample) -> Verdict:
    reference = sample.reference or ""
    length = len(reference.split())
    if text == reference:
        is_sentence = length > 2 and reference.rstrip().endswith((".", "!", "?"))
        return 0 < length <= LONGEST_VALUE_WORDS and not is_sentence
    if bare(text) == bare(reference):
        return True
    is_longer = len(text.split()) > 2 * length + 3
    return False if is_longer or has_text(text, bare(reference)) else None
