"""Predicates about what an output must take over from its input: fields, all of them, their exact wording.

They name the field, never its value. Of a terminal step the reference shows which fields are wanted; of an inner step
the case does: a field is wanted if its value stands in the case's reference, or in what blame says was lost here.
"""

from __future__ import annotations

from collections.abc import Iterator

from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    Verdict,
    has_text,
    is_safe_literal,
    plain,
)
from promptiter.offline.text.dates import dates_in
from promptiter.offline.text.fields import question_of
from promptiter.offline.text.numbers import numbers_of, same_number

LONGEST_WANTED = 200
"""A reference of more characters is a text of its own: it is not looked for inside a field."""


def fields_carried(evidence: Evidence) -> Iterator[Predicate]:
    """For each field of the inputs: its value stands in the output."""
    cases: dict[str, set[str]] = {}
    for sample in evidence.samples:
        for name in sample.fields:
            cases.setdefault(name, set()).add(sample.case_id)
    for name in sorted(cases, key=lambda name: (_place(name, evidence), name)):
        # What one case alone calls its field is no name for a rule.
        if len(cases[name]) > 1 and is_safe_literal(name):
            yield _field_carried(name)


def all_fields_carried(evidence: Evidence) -> Iterator[Predicate]:
    """Every value of the input that is wanted stands in the output, whatever its field is called."""
    if not any(len(sample.fields) > 1 for sample in evidence.failing):
        return
    yield Predicate(
        family="all_fields_carried",
        wants=_wants_all,
        has=_has_all,
        fault="lack a field that stands in their input",
        virtue="have all of them",
    )


def question_carried(evidence: Evidence) -> Iterator[Predicate]:
    """An inner step hands on the question that it was asked."""
    if any(sample.is_terminal for sample in evidence.failing) or len(evidence.passing) < 2:
        return
    yield Predicate(
        family="field_carried",
        parameters=("question",),
        wants=lambda sample: bool(question_of(sample.input)) or None,
        has=lambda sample: has_text(sample.output, question_of(sample.input)),
        fault="lack the question that stands in their input",
        virtue="have it",
        subject="question",
    )


def verbatim(evidence: Evidence) -> Iterator[Predicate]:
    """Values stand in the output as they are written in the input, not in another form."""
    if evidence.compared == "number":
        return
    yield Predicate(
        family="verbatim",
        wants=_wants_verbatim,
        has=lambda sample: _is_verbatim(sample.output, sample),
        fault="write a value of their input in another form",
        virtue="copy values as they are",
    )


def is_carried(value: str, text: str) -> bool:
    """Whether a text holds a value: as it is written, as the same number, or as the same day."""
    if has_text(text, value):
        return True
    return _is_carried_in_other_form(value, text)


def _is_carried_in_other_form(value: str, text: str) -> bool:
    days = dates_in(value)
    if len(days) == 1 and days[0].text == value:
        return any(days[0].days & other.days for other in dates_in(text))
    numbers = numbers_of(value)
    if len(numbers) == 1 and len(value) <= len(numbers[0].text) + 4:
        return same_number(numbers[0], numbers_of(text)) is not None
    return False


def _field_carried(name: str) -> Predicate:
    return Predicate(
        family="field_carried",
        parameters=(name,),
        wants=lambda sample: _wants_field(sample, name),
        has=lambda sample: _has_field(sample, name),
        fault=f"lack the {name} that stands in their input",
        virtue="have it",
        subject=name,
    )


def _place(name: str, evidence: Evidence) -> float:
    """Where the field stands in the references, on the average, or else in the inputs: rules name it in that order."""
    places = [
        text.find(value)
        for sample, text in evidence.referenced
        for value in sample.fields.get(name, ())
        if value in text
    ]
    orders = [list(sample.fields).index(name) for sample in evidence.samples if name in sample.fields]
    return sum(places) / len(places) if places else 1_000_000 + sum(orders) / len(orders)


def _wants_field(sample: Sample, name: str) -> Verdict:
    values = sample.fields.get(name)
    if values is None:
        return None
    if _literals(sample, name):
        return True
    return False if _must_hold_all(sample) else None


def _has_field(sample: Sample, name: str) -> Verdict:
    literals = _literals(sample, name)
    return all(is_carried(literal, sample.output) for literal in literals) if literals else None


def _literals(sample: Sample, name: str) -> tuple[str, ...]:
    """What of a field is wanted: its values that the reference holds, or the short reference that it holds itself."""
    values = sample.fields.get(name, ())
    sources = (sample.reference,) if sample.is_terminal and sample.reference is not None else sample.wanted
    held = tuple(value for value in values if any(is_carried(value, source) for source in sources))
    if held or sample.is_terminal:
        return held
    short = [source for source in sources if len(plain(source)) <= LONGEST_WANTED]
    return tuple(source for source in short if any(has_text(value, source) for value in values))


def _must_hold_all(sample: Sample) -> bool:
    """Whether the reference is a whole output, so that what it does not hold is not wanted."""
    return sample.is_terminal and sample.compared in ("whole", "json")


def _wants_all(sample: Sample) -> Verdict:
    names = [name for name in sample.fields if _literals(sample, name)]
    if not names:
        return None
    if _must_hold_all(sample):
        return len(names) == len(sample.fields)
    return True


def _has_all(sample: Sample) -> Verdict:
    verdicts = [_has_field(sample, name) for name in sample.fields]
    return None if not any(verdict is not None for verdict in verdicts) else False not in verdicts


def _wants_verbatim(sample: Sample) -> Verdict:
    """Whether the reference has the input's values as they are written; of an inner step, what was lost in it has."""
    if sample.reference is not None:
        verdict = _is_verbatim(sample.reference, sample)
        return None if verdict is False and sample.compared == "part" else verdict
    verdicts = [verdict for text in sample.wanted if (verdict := _is_verbatim(text, sample)) is not None]
    return all(verdicts) if verdicts else None


def _is_verbatim(text: str, sample: Sample) -> Verdict:
    """Of the input's values that the text holds, whether each has its form; None if it holds none."""
    values = [value for values in sample.fields.values() for value in values if _has_forms(value)]
    exact = [has_text(text, value) for value in values if is_carried(value, text)]
    return all(exact) if exact else None


def _has_forms(value: str) -> bool:
    """Whether a value can be written in more than one way."""
    return bool(dates_in(value) or numbers_of(value))
