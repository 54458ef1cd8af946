"""Predicates about what an answer rests on: sources that it cites, sentences that it quotes, sums that it works out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from promptiter.offline.rules.examples import Evidence, Predicate, Sample, Verdict, has_text, text_predicate
from promptiter.offline.rules.structure_rules import json_keys_of
from promptiter.offline.text.numbers import numbers_of

_MARK = re.compile(r"\[([\w.:/-]{1,40})\]")
_QUOTE = re.compile(r"[\"“„»]([^\"“”„«»\n]{8,400})[\"”“«]")
_SUM = re.compile(r"(?<![\d,.])\d[\d,.]{0,20}\s?%?\s?(?:[-+*/x×÷−]\s?\d[\d,.]{0,20}\s?){1,20}=\s?-?\d")


def citation(evidence: Evidence) -> Iterator[Predicate]:
    """The output cites its source in square brackets: by the id that the input gives it, or by number."""
    if evidence.compared in ("number", "json"):
        return
    for family, test in (("cite", _cites_id), ("cite_number", _cites_number)):
        yield text_predicate(family, test=test, fault="cite no source in square brackets", virtue="cite one")


def quotation(evidence: Evidence) -> Iterator[Predicate]:
    """The output quotes words of the input, between quotation marks."""
    if not evidence.is_whole:
        return
    yield text_predicate("quote", test=_quotes, fault="quote nothing of their input", virtue="quote it")


def calculation_shown(evidence: Evidence) -> Iterator[Predicate]:
    """The output shows the sum behind its result."""
    if not evidence.is_whole:
        return
    yield text_predicate(
        "calculation_shown",
        test=lambda text, _: _SUM.search(text) is not None,
        fault="do not show the calculation behind their result",
        virtue="show it",
    )


def calculation(evidence: Evidence) -> Iterator[Predicate]:
    """The number that comes out is right, where it has to be worked out from numbers of the input."""
    if evidence.compared == "json":
        return
    yield text_predicate(
        "calculation",
        test=_is_worked_out,
        fault="give a wrong result of their calculation",
        virtue="give the right one",
    )


def _cites_id(text: str, sample: Sample) -> bool:
    marks = _MARK.findall(text)
    return any(has_text(sample.input, f"[{mark}]" if mark.isdecimal() else mark) for mark in marks)


def _cites_number(text: str, sample: Sample) -> bool:
    """A number that the input does not use itself: it counts the documents."""
    return any(mark.isdecimal() and f"[{mark}]" not in sample.input for mark in _MARK.findall(text))


def _quotes(text: str, sample: Sample) -> Verdict:
    if json_keys_of(text) is not None:
        return None
    return any(has_text(sample.input, quoted.strip(" .")) for quoted in _QUOTE.findall(text))


def _is_worked_out(text: str, sample: Sample) -> Verdict:
    wanted = numbers_of(sample.reference or "")
    given = {number.value for number in numbers_of(sample.input)}
    if not wanted or wanted[-1].value in given or len(given) < 2:
        return None
    found = numbers_of(text)
    return found[-1].value == wanted[-1].value if found else None
