"""Format rules that an answer breaks: JSON, a first word, a length, how a date is written, no text around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from promptiter.backprop.step_text import json_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.fault_localization import (
    TextPattern,
    generalize_value,
    json_pattern,
    length_pattern,
    prefix_pattern,
    suffix_pattern,
)
from promptiter.offline.attribution.references import References
from promptiter.offline.attribution.value_search import SearchText, Value, split_values
from promptiter.offline.text.matching import contains_whole, normalize
from promptiter.patterns import PatternError, check_pattern, search_pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatRule:
    """A format rule that the answer breaks. `pattern` matches the texts that follow it, if that can be tested.

    `written` is the value that is written in the wrong way. The step that writes the answer can follow a rule that
    `needs_no_content` even if the content never arrived: JSON, a first word, the format of a date.
    """

    text: str
    finding: Finding
    pattern: TextPattern | None = None
    written: Value | None = None
    needs_no_content: bool = False

    def is_followed_by(self, text: str) -> bool:
        return self.pattern is not None and self.pattern.matches(text)


def json_rule(finding: Finding) -> FormatRule:
    return FormatRule(text="the answer must be JSON", finding=finding, pattern=json_pattern(), needs_no_content=True)


def rule_for_violation(finding: Finding) -> FormatRule | None:
    """The format rule behind a violated predicate; None if the predicate is not about format."""
    wanted = finding.expected
    match finding.predicate:
        case "valid_json":
            return json_rule(finding)
        case "regex" if isinstance(wanted, str):
            text = f"the answer must match the pattern {wanted!r}"
            return FormatRule(text=text, finding=finding, pattern=_compile_pattern(wanted))
        case "max_length" if isinstance(wanted, int):
            text = f"the answer must have at most {wanted} characters"
            return FormatRule(text=text, finding=finding, pattern=length_pattern(at_most=wanted))
        case "min_length" if isinstance(wanted, int):
            text = f"the answer must have at least {wanted} characters"
            return FormatRule(text=text, finding=finding, pattern=length_pattern(at_least=wanted))
        case "only_number":
            return FormatRule(text="the answer must contain only one number", finding=finding)
        case "json_schema":
            return FormatRule(text=f"the JSON must have {json_text(wanted)} at {finding.where}", finding=finding)
        case _:
            return None


def find_broken_common_rules(finding: Finding, actual: SearchText, *, references: References) -> Iterator[FormatRule]:
    """Rules for the start and the end that all references share and the answer does not."""
    rules = []
    if references.prefix:
        rules.append((f"the answer must begin with {references.prefix!r}", prefix_pattern(references.prefix)))
    if references.suffix:
        rules.append((f"the answer must end with {references.suffix!r}", suffix_pattern(references.suffix)))
    for text, pattern in rules:
        if not pattern.matches(actual.raw):
            yield FormatRule(text=text, finding=finding, pattern=pattern, needs_no_content=True)


def find_rewritten_values(finding: Finding, actual: SearchText, *, expected: str) -> Iterator[FormatRule]:
    """Rules for dates and numbers that the answer writes differently from the reference."""
    written = {value.key: value for value in split_values(actual.raw)}
    for value in {value.key: value for value in split_values(expected)}.values():
        if value.kind in ("date", "number") and actual.contains(value) and not actual.contains_verbatim(value):
            other = written.get(value.key)
            instead = f", not {other.text!r}" if other else ""
            yield rule_for_writing(finding, value, text=f"write {value.text!r}{instead}", other=other)


def rule_for_writing(finding: Finding, value: Value, *, text: str, other: Value | None) -> FormatRule:
    """The rule for a value in whose place the answer has another; if both mean the same, only the writing is wrong."""
    means_the_same = other is not None and other.key == value.key and value.kind in ("date", "number")
    pattern = generalize_value(value) if means_the_same else None
    return FormatRule(text=text, finding=finding, pattern=pattern, written=other, needs_no_content=means_the_same)


def rule_for_wording(finding: Finding, actual: SearchText, *, expected: str) -> FormatRule:
    """The rule for an answer that lacks nothing and still is not the expected one."""
    if normalize(expected) == actual.normalized:
        text = f"letter case and spaces must be as in {expected[:120]!r}"
    elif contains_whole(actual.normalized, normalize(expected)):
        text = "give only the answer, without any text around it"
    else:
        text = f"the wording must be as in {expected[:120]!r}"
    return FormatRule(text=text, finding=finding)


def _compile_pattern(regex: str) -> TextPattern | None:
    """The texts that match; None if a user's own metric reports something that is not a regular expression."""
    try:
        check_pattern(regex)
    except PatternError:
        return None
    return TextPattern(f"the pattern {regex!r}", _UserPattern(regex).matches)


@dataclass(slots=True)
class _UserPattern:
    """A pattern of a user. One that takes too long for a text is not tried again."""

    regex: str
    is_slow: bool = False

    def matches(self, text: str) -> bool:
        if self.is_slow:
            return False
        try:
            return search_pattern(self.regex, text, ignore_case=True)
        except PatternError:
            self.is_slow = True
            return False
