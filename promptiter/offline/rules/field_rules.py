"""Predicates about what an output must carry over from its input: fields, all of them, their exact wording.

They name the field, never its value. For a terminal step, the reference shows which fields are wanted. For an inner
step, the case does: a field is wanted if its value is in the case's reference, or in what was lost here.
"""

from __future__ import annotations

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
from promptiter.offline.text.dates import find_dates
from promptiter.offline.text.matching import contains_words, find_whole, normalize
from promptiter.offline.text.numbers import find_same_number, read_amount, read_numbers

MAX_WANTED_CHARACTERS = 200
"""A longer reference is not searched for inside a field."""


def detect_fields_carried(evidence: SampleSet) -> Iterator[Predicate]:
    """For each field of the inputs: the output has its value."""
    cases: dict[str, set[str]] = {}
    for sample in evidence.samples:
        for name in sample.fields:
            cases.setdefault(name, set()).add(sample.case_id)
    for name in sorted(cases, key=lambda name: (_find_place(name, evidence), name)):
        # The name of a field in a single case is not enough for a rule.
        if len(cases[name]) > 1 and is_safe_literal(name):
            yield _field_predicate(name)


def detect_field_only(evidence: SampleSet) -> Iterator[Predicate]:
    """The output is the value of one field of the input, and nothing else, as nearly all references are."""
    known = evidence.referenced
    counts = Counter(name for sample, text in known for name in sample.fields if _is_value(text, sample, name))
    name, count = min(counts.items(), key=lambda each: (-each[1], each[0]), default=("", 0))
    if not evidence.is_whole or count < max(evidence.min_cases, MIN_SHARE * len(known)) or not is_safe_literal(name):
        return
    yield text_predicate(
        "field_only",
        (name,),
        test=lambda text, sample: _is_value(text, sample, name) if name in sample.fields else None,
        fault=f"are not just the {name} of their input",
        virtue="are",
        subject=name,
    )


def detect_source(evidence: SampleSet) -> Iterator[Predicate]:
    """The output field has the value of one field of the input, however it is written, as nearly all references do."""
    known = evidence.referenced
    counts: Counter[str] = Counter()
    exact: Counter[str] = Counter()
    for sample, text in known:
        counts.update(name for name in sample.fields if _holds_value(text, sample, name))
        exact.update(name for name in sample.fields if _is_value(text, sample, name))
    shared = {name: len(set(name.split()) & set(evidence.field.split())) for name in counts}
    name = min(counts, key=lambda name: (-counts[name], -exact[name], -shared[name], name), default="")
    if counts[name] < max(evidence.min_cases, MIN_SHARE * len(known)) or not is_safe_literal(name):
        return
    yield text_predicate(
        "source",
        (name,),
        test=lambda text, sample: _holds_value(text, sample, name) if name in sample.fields else None,
        fault=f"do not have the {name} of their input",
        virtue="have it",
        subject=name,
    )


def detect_all_fields_carried(evidence: SampleSet) -> Iterator[Predicate]:
    """The output has every value of the input that is wanted, whatever its field is called."""
    if not any(len(sample.fields) > 1 for sample in evidence.failing):
        return
    yield Predicate(
        family="all_fields_carried",
        wants=_wants_all,
        has=_has_all,
        fault="lack a field of their input",
        virtue="have all of them",
    )


def detect_verbatim(evidence: SampleSet) -> Iterator[Predicate]:
    """The output writes values as the input does."""
    if evidence.compared == "number":
        return
    yield Predicate(
        family="verbatim",
        wants=_wants_verbatim,
        has=lambda sample: _is_verbatim(sample.output, sample),
        fault="write a value of their input differently",
        virtue="copy values exactly",
    )


def is_carried(value: str, text: str) -> bool:
    """Whether a text contains a value: as it is written, as the same number, or as the same day."""
    if contains_words(text, value):
        return True
    days = find_dates(value)
    if len(days) == 1 and days[0].text == value:
        return any(days[0].days & other.days for other in find_dates(text))
    amount = read_amount(value)
    return amount is not None and find_same_number(amount, read_numbers(text)) is not None


def _is_value(text: str, sample: Sample, name: str) -> bool:
    return normalize(text) in map(normalize, sample.fields[name])


def _holds_value(text: str, sample: Sample, name: str) -> bool:
    """Whether a text is a value of a field and nothing else, as it is written, as the same number or the same day."""
    values = sample.fields[name]
    return any(is_carried(value, text) and is_carried(text, value) for value in (*values, ", ".join(values)))


def _field_predicate(name: str) -> Predicate:
    return Predicate(
        family="field_carried",
        parameters=(name,),
        wants=lambda sample: _wants_field(sample, name),
        has=lambda sample: _has_field(sample, name),
        fault=f"lack the {name} of their input",
        virtue="have it",
        subject=name,
    )


def _find_place(name: str, evidence: SampleSet) -> float:
    """The average place of the field in the references, or else in the inputs: rules name fields in that order."""
    found = (find_whole(text, value) for sample, text in evidence.referenced for value in sample.fields.get(name, ()))
    places = [place for place in found if place is not None]
    orders = [list(sample.fields).index(name) for sample in evidence.samples if name in sample.fields]
    return sum(places) / len(places) if places else 1_000_000 + sum(orders) / len(orders)


def _wants_field(sample: Sample, name: str) -> Verdict:
    values = sample.fields.get(name)
    if values is None:
        return None
    if _list_wanted(sample, name):
        return True
    return False if _is_exhaustive(sample) else None


def _has_field(sample: Sample, name: str) -> Verdict:
    wanted = _list_wanted(sample, name)
    return all(is_carried(value, sample.output) for value in wanted) if wanted else None


def _list_wanted(sample: Sample, name: str) -> tuple[str, ...]:
    """The values of a field that are in the reference, or the short reference that is in the field."""
    values = sample.fields.get(name, ())
    sources = (sample.reference,) if sample.is_terminal and sample.reference is not None else sample.wanted
    held = tuple(value for value in values if any(is_carried(value, source) for source in sources))
    if held or sample.is_terminal:
        return held
    short = [source for source in sources if len(normalize(source)) <= MAX_WANTED_CHARACTERS]
    return tuple(source for source in short if any(contains_words(value, source) for value in values))


def _is_exhaustive(sample: Sample) -> bool:
    """Whether the reference is a whole output, so that what it lacks is not wanted."""
    return sample.is_terminal and sample.compared in ("whole", "json")


def _wants_all(sample: Sample) -> Verdict:
    names = [name for name in sample.fields if _list_wanted(sample, name)]
    if not names:
        return None
    if _is_exhaustive(sample):
        return len(names) == len(sample.fields)
    return True


def _has_all(sample: Sample) -> Verdict:
    verdicts = [_has_field(sample, name) for name in sample.fields]
    return None if not any(verdict is not None for verdict in verdicts) else False not in verdicts


def _wants_verbatim(sample: Sample) -> Verdict:
    """Whether the reference, or what an inner step lost, writes the input's values as the input does."""
    if sample.reference is not None:
        verdict = _is_verbatim(sample.reference, sample)
        return None if verdict is False and sample.compared == "part" else verdict
    verdicts = [verdict for text in sample.wanted if (verdict := _is_verbatim(text, sample)) is not None]
    return all(verdicts) if verdicts else None


def _is_verbatim(text: str, sample: Sample) -> Verdict:
    """Whether the text writes the input's values as the input does; None if it has none of them."""
    values = [value for values in sample.fields.values() for value in values if _has_forms(value)]
    exact = [contains_words(text, value) for value in values if is_carried(value, text)]
    return all(exact) if exact else None


def _has_forms(value: str) -> bool:
    """Whether a value can be written in more than one way."""
    return bool(find_dates(value) or read_numbers(value))
