"""Predicates about how values are written: the format of dates, and the number of decimals.

A value of the output is compared with the same value of the reference: the same day, the same number. An output
without the value does not show how it would be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from promptiter.offline.rules.examples import (
    Predicate,
    Sample,
    SampleSet,
    Verdict,
    take_one_per_case,
    text_predicate,
)
from promptiter.offline.text.dates import DATE_FORMATS, DateInText, find_dates
from promptiter.offline.text.matching import contains_words
from promptiter.offline.text.numbers import WrittenNumber, find_same_number, read_numbers


def detect_date_format(evidence: SampleSet) -> Iterator[Predicate]:
    """All dates are written in the one format that the references use."""
    written = [_narrow(day, sample) for sample, text in _list_wanted(evidence) for day in find_dates(text)]
    counts = {name: sum(day.is_written_as(name) for day in written) for name in DATE_FORMATS}
    best = max(DATE_FORMATS, key=lambda name: counts[name])
    if counts[best]:
        yield text_predicate(
            "date_format",
            (best,),
            test=lambda text, sample: _has_date_format(text, sample, best),
            fault=f"write dates in another format than {best}",
            reference=find_wanted_text,
        )


def detect_decimals(evidence: SampleSet) -> Iterator[Predicate]:
    """Numbers have as many decimals as those of the references."""
    wanted = _list_wanted(evidence)
    counts = Counter(number.decimals for sample, text in wanted for number in _list_fractions(text, sample))
    if not counts:
        return
    places = min(counts, key=lambda count: (-counts[count], count))
    yield text_predicate(
        "decimals" if places else "whole_numbers",
        (str(places),) if places else (),
        test=lambda text, sample: _has_decimals(text, sample, places),
        fault=f"write numbers with more or fewer than {places} decimals" if places else "write numbers with decimals",
        reference=find_wanted_text,
    )


def find_wanted_text(sample: Sample) -> str | None:
    """A text that shows how values should be written: the reference, or what an inner step lost and never received."""
    if sample.reference is not None or sample.passed:
        return sample.reference
    other = [text for text in sample.wanted if sample.findings and not contains_words(sample.input, text)]
    return "\n".join(other) or None


def _list_wanted(evidence: SampleSet) -> list[tuple[Sample, str]]:
    known = [sample for sample in evidence.samples if find_wanted_text(sample) is not None]
    return [(sample, find_wanted_text(sample) or "") for sample in take_one_per_case(known)]


def _list_fractions(text: str, sample: Sample) -> list[WrittenNumber]:
    """The numbers that could have decimals: they have some, or have some in the input."""
    given = read_numbers(sample.input)
    return [
        number
        for number in read_numbers(text)
        if number.decimals or ((source := find_same_number(number, given)) is not None and source.decimals)
    ]


def _has_decimals(text: str, sample: Sample, places: int) -> Verdict:
    wanted = find_wanted_text(sample) or ""
    numbers = _list_fractions(wanted, sample)
    if text != wanted:
        same = (find_same_number(number, read_numbers(text)) for number in numbers)
        numbers = [number for number in same if number is not None]
    return all(number.decimals == places for number in numbers) if numbers else None


def _has_date_format(text: str, sample: Sample, format_name: str) -> Verdict:
    wanted = [day for found in find_dates(find_wanted_text(sample) or "") for day in found.days]
    found = [_narrow(day, sample) for day in find_dates(text) if not day.days.isdisjoint(wanted)]
    return all(day.is_written_as(format_name) for day in found) if found else None


def _narrow(day: DateInText, sample: Sample) -> DateInText:
    """A date with two readings, reduced to the one that other dates of the sample confirm."""
    if len(day.days) < 2:
        return day
    certain = {
        next(iter(other.days))
        for other in find_dates(f"{sample.input}\n{sample.output}\n{sample.reference or ''}")
        if len(other.days) == 1
    }
    return DateInText(day.text, frozenset(day.days & certain) or day.days)
