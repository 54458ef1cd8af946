"""Predicates about how values are written: dates, decimals, separators of thousands, currencies, units.

A value of the output is held against the same value of the reference: the same day, the same number. Where the output
does not hold it at all, it says nothing about how it would be written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

from promptiter.offline.rules.examples import (
    Evidence,
    Predicate,
    Sample,
    Verdict,
    has_text,
    is_safe_literal,
    one_by_case,
    text_predicate,
)
from promptiter.offline.text.dates import DATE_FORMATS, DateInText, dates_in
from promptiter.offline.text.numbers import CURRENCIES, WrittenNumber, numbers_of, same_number


def date_format(evidence: Evidence) -> Iterator[Predicate]:
    """All dates are written in the one format that the references use."""
    written = [_narrowed(day, sample) for sample, text in _written(evidence) for day in dates_in(text)]
    counts = {name: sum(day.is_written_as(name) for day in written) for name in DATE_FORMATS}
    best = max(DATE_FORMATS, key=lambda name: counts[name])
    if not counts[best]:
        return
    yield text_predicate(
        "date_format",
        (best,),
        test=lambda text, sample: _is_dated(text, sample, best),
        fault=f"write dates otherwise than as {best}",
        reference=as_wanted,
    )


def decimals(evidence: Evidence) -> Iterator[Predicate]:
    """Numbers have as many decimals as those of the references."""
    counts = Counter(
        number.decimals for sample, text in _written(evidence) for number in _with_decimals(numbers_of(text), sample)
    )
    if not counts:
        return
    places = min(counts, key=lambda count: (-counts[count], count))
    yield text_predicate(
        "decimals" if places else "whole_numbers",
        (str(places),) if places else (),
        test=_number_test(_with_decimals, lambda number, _: number.decimals == places),
        fault=f"write numbers with another count of decimals than {places}",
        reference=as_wanted,
    )


def thousands(evidence: Evidence) -> Iterator[Predicate]:
    """Large numbers have a separator of thousands, or have none."""
    large = [number for sample, text in _written(evidence) for number in _large(numbers_of(text), sample)]
    if not large:
        return
    is_separated = 2 * sum(number.is_separated for number in large) > len(large)
    yield text_predicate(
        "thousands" if is_separated else "no_thousands",
        test=_number_test(_large, lambda number, _: number.is_separated == is_separated),
        fault=f"write large numbers {'without' if is_separated else 'with'} a separator of thousands",
        reference=as_wanted,
    )


def currency(evidence: Evidence) -> Iterator[Predicate]:
    """Amounts bear the currency of the references, before or after the number as there."""
    cases: dict[tuple[str, bool], set[str]] = {}
    for sample, text in _written(evidence):
        for number in _with_mark(numbers_of(text), sample):
            cases.setdefault((number.mark, number.mark_is_first), set()).add(sample.case_id)
    if not cases:
        return
    mark, is_first = min(cases, key=lambda each: (-len(cases[each]), each))
    if len(cases[mark, is_first]) < evidence.fewest:
        return
    space = " " if mark.isalpha() else ""
    yield text_predicate(
        "currency",
        (mark, CURRENCIES[mark], f"{mark}{space}12" if is_first else f"12 {mark}"),
        test=_number_test(_with_mark, lambda number, _: (number.mark, number.mark_is_first) == (mark, is_first)),
        fault=f"write amounts without {mark} as the references do",
        reference=as_wanted,
    )


def unit(evidence: Evidence) -> Iterator[Predicate]:
    """Numbers bear their unit: the one that most references share, or whichever theirs is."""
    cases: dict[str, set[str]] = {}
    for sample, text in _written(evidence):
        for number in _with_unit(numbers_of(text), sample):
            cases.setdefault(number.unit, set()).add(sample.case_id)
    if not cases:
        return
    best = min(cases, key=lambda each: (-len(cases[each]), each))
    if len(cases[best]) >= evidence.fewest and is_safe_literal(best):
        yield text_predicate(
            "unit_named",
            (best,),
            test=_number_test(_with_unit, lambda number, _: number.unit == best),
            fault=f"write numbers without their unit {best}",
            reference=as_wanted,
        )
    yield text_predicate(
        "unit",
        test=_number_test(_with_unit, lambda number, wanted: number.unit == wanted.unit),
        fault="write numbers without their unit",
        reference=as_wanted,
    )


def as_wanted(sample: Sample) -> str | None:
    """How values are to be written: as in the reference; of an inner step, as what it lost, unless it was given so."""
    if sample.reference is not None or sample.passed:
        return sample.reference
    other = [text for text in sample.wanted if sample.findings and not has_text(sample.input, text)]
    return "\n".join(other) or None


def _written(evidence: Evidence) -> list[tuple[Sample, str]]:
    known = [sample for sample in evidence.samples if as_wanted(sample) is not None]
    return [(sample, as_wanted(sample) or "") for sample in one_by_case(known)]


_Pick = Callable[[tuple[WrittenNumber, ...], Sample], list[WrittenNumber]]
"""The numbers of a reference that a rule is about."""


def _number_test(
    pick: _Pick, is_right: Callable[[WrittenNumber, WrittenNumber], bool]
) -> Callable[[str, Sample], Verdict]:
    """A test of the numbers in a text that stand in the reference too: each is written as the rule says."""

    def test(text: str, sample: Sample) -> Verdict:
        verdicts = []
        for wanted in pick(numbers_of(as_wanted(sample) or ""), sample):
            number = wanted if text == as_wanted(sample) else same_number(wanted, numbers_of(text))
            if number is not None:
                verdicts.append(is_right(number, wanted))
        return all(verdicts) if verdicts else None

    return test


def _with_decimals(numbers: tuple[WrittenNumber, ...], sample: Sample) -> list[WrittenNumber]:
    """Numbers that could have decimals: they have, or did so in the input."""
    given = numbers_of(sample.input)
    return [
        number
        for number in numbers
        if number.decimals or ((source := same_number(number, given)) is not None and source.decimals)
    ]


def _large(numbers: tuple[WrittenNumber, ...], sample: Sample) -> list[WrittenNumber]:  # noqa: ARG001 - a _Pick
    return [number for number in numbers if abs(number.value) >= 1000 and not number.is_year]


def _with_mark(numbers: tuple[WrittenNumber, ...], sample: Sample) -> list[WrittenNumber]:  # noqa: ARG001 - a _Pick
    return [number for number in numbers if number.mark]


def _with_unit(numbers: tuple[WrittenNumber, ...], sample: Sample) -> list[WrittenNumber]:  # noqa: ARG001 - a _Pick
    return [number for number in numbers if number.unit and number.unit.lower() not in _NO_UNITS]


_NO_UNITS = frozenset(
    re.findall(
        r"\w+",
        "a and are as at but by for from has have if in is it not of on or per so than that the then this to was we "
        "were which will with you am pm st nd rd th x",
    )
)


def _is_dated(text: str, sample: Sample, format_name: str) -> Verdict:
    wanted = [day for found in dates_in(as_wanted(sample) or "") for day in found.days]
    found = [_narrowed(day, sample) for day in dates_in(text) if not day.days.isdisjoint(wanted)]
    return all(day.is_written_as(format_name) for day in found) if found else None


def _narrowed(day: DateInText, sample: Sample) -> DateInText:
    """A date that can be read in two ways, read as the dates around it say."""
    if len(day.days) < 2:
        return day
    certain = {
        next(iter(other.days))
        for other in dates_in(f"{sample.input}\n{sample.output}\n{sample.reference or ''}")
        if len(other.days) == 1
    }
    return DateInText(day.text, frozenset(day.days & certain) or day.days)
