"""Rules of form that an answer breaks: JSON, a first word, a length, the way a date is written, nothing around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from promptiter.backprop.step_text import json_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.fault_localization import (
    Shape,
    json_shape,
    length_shape,
    pattern_shape,
    prefix_shape,
    shape_of,
    suffix_shape,
)
from promptiter.offline.attribution.references import References
from promptiter.offline.attribution.value_search import FoldedText, Value, fold, parts_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A rule of form that the answer breaks, in words. `shape` tells the texts that keep it, if anything can.

    `writing` is a value that was written in the wrong way. An `is_own` form is made by whoever writes the answer, even
    if the content never reached it: JSON, a first word, the format of a date.
    """

    rule: str
    finding: Finding
    shape: Shape | None = None
    writing: Value | None = None
    is_own: bool = False


def json_form(finding: Finding) -> Form:
    return Form(rule="the answer must be JSON", finding=finding, shape=json_shape(), is_own=True)


def violated_form(finding: Finding) -> Form | None:
    """The form of a violated predicate; None if it is not one of form."""
    wanted = finding.expected
    match finding.predicate:
        case "valid_json":
            return json_form(finding)
        case "regex" if isinstance(wanted, str):
            return Form(rule=f"the answer must match the pattern {wanted!r}", finding=finding, shape=_matching(wanted))
        case "max_length" if isinstance(wanted, int):
            rule = f"the answer must have at most {wanted} characters"
            return Form(rule=rule, finding=finding, shape=length_shape(at_most=wanted))
        case "min_length" if isinstance(wanted, int):
            rule = f"the answer must have at least {wanted} characters"
            return Form(rule=rule, finding=finding, shape=length_shape(at_least=wanted))
        case "only_number":
            return Form(rule="the answer must hold one number only", finding=finding)
        case "json_schema":
            return Form(rule=f"the JSON must have {json_text(wanted)} at {finding.where}", finding=finding)
        case _:
            return None


def shared_forms(finding: Finding, came: FoldedText, *, references: References) -> Iterator[Form]:
    """What all references begin and end with, and the answer does not."""
    shapes = []
    if references.prefix:
        shapes.append((f"the answer must begin with {references.prefix!r}", prefix_shape(references.prefix)))
    if references.suffix:
        shapes.append((f"the answer must end with {references.suffix!r}", suffix_shape(references.suffix)))
    for rule, shape in shapes:
        if not shape.shows(came.raw):
            yield Form(rule=rule, finding=finding, shape=shape, is_own=True)


def written_otherwise(finding: Finding, came: FoldedText, *, expected: str) -> Iterator[Form]:
    """Dates and numbers that the answer has, in another writing than the reference."""
    written = {value.key: value for value in parts_of(came.raw)}
    for value in {value.key: value for value in parts_of(expected)}.values():
        if value.kind in ("date", "number") and came.shows(value) and not came.writes(value):
            other = written.get(value.key)
            instead = f", not {other.text!r}" if other else ""
            yield writing_form(finding, value, rule=f"{value.text!r} must be written so{instead}", other=other)


def writing_form(finding: Finding, value: Value, *, rule: str, other: Value | None) -> Form:
    """The form of a value for which the answer has another; if both mean the same, only the writing is wrong."""
    means_the_same = other is not None and other.key == value.key and value.kind in ("date", "number")
    shape = shape_of(value) if means_the_same else None
    return Form(rule=rule, finding=finding, shape=shape, writing=other, is_own=means_the_same)


def other_wording(finding: Finding, came: FoldedText, *, expected: str) -> Form:
    """The form of an answer that lacks nothing and yet is not the expected one."""
    if fold(expected) == came.folded:
        rule = f"letter case and spaces must be as in {expected[:120]!r}"
    elif fold(expected) in came.folded:
        rule = "the answer must be given alone, without anything around it"
    else:
        rule = f"the wording must be as in {expected[:120]!r}"
    return Form(rule=rule, finding=finding)


def _matching(pattern: str) -> Shape | None:
    """The texts that match a pattern; None if a user's own metric calls something a pattern that is none."""
    try:
        return pattern_shape(f"the pattern {pattern!r}", pattern)
    except re.error:
        return None
