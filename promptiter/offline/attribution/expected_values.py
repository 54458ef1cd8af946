"""What separates an answer from the expected one: single values that can be searched for, and broken format rules.

An answer that is wrong as a whole is seldom wrong in all its parts. A value of the expected answer that the actual one
lacks is missing; a value that only the actual one has is unexpected. Values that differ only in formatting, and what
all expected answers share (a first word, JSON), are format errors, not lost values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from promptiter.backprop.step_text import json_leaves
from promptiter.evaluation.score import RUN_LIMITS, Finding
from promptiter.offline.attribution.format_rules import (
    FormatRule,
    find_broken_common_rules,
    find_rewritten_values,
    json_rule,
    rule_for_violation,
    rule_for_wording,
    rule_for_writing,
)
from promptiter.offline.attribution.references import References
from promptiter.offline.attribution.replaced_pairs import find_replaced_pairs, put_back
from promptiter.offline.attribution.value_search import (
    SearchText,
    Value,
    find_field_name,
    normalize_name,
    read_value,
    split_values,
)
from promptiter.offline.text.fields import read_fields
from promptiter.offline.text.matching import contains_whole, normalize, read_document
from promptiter.small_words import SMALL_WORDS
from promptiter.stages.losses import Loss
from traces.model import Json

MAX_MISMATCHES = 20
"""Maximum number of mismatches of one loss that are followed."""

MAX_SWAPPED = 3
"""If the answer lacks at most this many words and has as many others, each of those may replace one that it lacks."""

MismatchKind: TypeAlias = Literal["missing", "unexpected", "replaced"]
"""Replaced is the value of a name (`status: open`) that the answer has elsewhere, or that all references share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A value that the answer lacks, or has and should not have.

    A weak one (a small number, a common word) may be in any text by chance, so it counts only if there is no strong
    one. `counterpart` is the value that the answer has in its place; `labels` are the alternatives to it.
    """

    kind: MismatchKind
    value: Value
    finding: Finding
    field: str = ""
    is_strong: bool = True
    counterpart: Value | None = None
    labels: frozenset[str] = frozenset()

    def split(self) -> list[Mismatch]:
        """The parts of a longer text, all of them weak."""
        values = [value for value in _drop_duplicates(split_values(self.value.text)) if not _is_noise(value)]
        return [
            replace(self, value=value, finding=replace(self.finding, expected=value.text), is_strong=False)
            for value in values[:MAX_MISMATCHES]
        ]


@dataclass(slots=True)
class LossAnalysis:
    """What a loss consists of. `needed` is everything that the answer should contain, missing or not."""

    loss: Loss
    mismatches: list[Mismatch] = field(default_factory=list)
    needed: list[Value] = field(default_factory=list)
    format_rules: list[FormatRule] = field(default_factory=list)
    tool_findings: list[Finding] = field(default_factory=list)
    limit_findings: list[Finding] = field(default_factory=list)

    def of_kind(self, kind: MismatchKind, *, is_strong: bool | None = None) -> list[Mismatch]:
        """The mismatches to follow, each value once."""
        known: dict[tuple[str, str], Mismatch] = {}
        for mismatch in self.mismatches:
            if mismatch.kind == kind and is_strong in (None, mismatch.is_strong):
                known.setdefault(mismatch.value.key, mismatch)
        return list(known.values())[:MAX_MISMATCHES]


def analyze_loss(loss: Loss, references: References, *, output: str, user_input: str) -> LossAnalysis:
    """What a loss on a step with this output consists of."""
    reader = _LossReader(loss, references, output=output, user_input=user_input)
    for finding in loss.findings:
        reader.read(finding)
    if not loss.findings and loss.category != "error":
        reader.compare_loosely(Finding(kind="wrong"))
    reader.find_replaced()
    return reader.analysis


def named_leaves(value: Json, name: str) -> Iterator[tuple[str, Json]]:
    """The single values of a JSON value in order, each with the name of its field."""
    for keys, leaf in json_leaves(value):
        if leaf is not None:
            yield normalize_name(keys[-1]) if keys else name, leaf


class _LossReader:
    """Reads the findings of a loss one by one."""

    def __init__(self, loss: Loss, references: References, *, output: str, user_input: str) -> None:
        self.output = output
        self.references = references
        self.user_input = user_input
        self._shared: list[Mismatch] = []
        wanted = [(name, read_value(leaf)) for name, leaf in _list_values(loss.expected or "")]
        self.analysis = LossAnalysis(loss, needed=[value for name, value in wanted if self._is_content(name, value)])

    def read(self, finding: Finding) -> None:
        predicate = finding.predicate
        if predicate.startswith("tool_") or finding.where.startswith("tool call"):
            self.analysis.tool_findings.append(finding)
        elif predicate in RUN_LIMITS:
            self.analysis.limit_findings.append(finding)
        elif finding.kind == "violated":
            self._read_violation(finding)
        elif predicate in ("json", "number"):
            self._read_value(finding)
        elif predicate in ("exact", "contains"):
            self._compare_strictly(finding, str(finding.expected))
        else:
            self.compare_loosely(finding)

    def find_replaced(self) -> None:
        """Add the values that the answer has others for: those of names, and those that all references share."""
        analysis = self.analysis
        known = {mismatch.value.key for mismatch in analysis.mismatches if mismatch.is_strong}
        replaced = [
            Mismatch(kind="replaced", value=wanted, finding=finding, counterpart=other)
            for wanted, other, finding in find_replaced_pairs(analysis.loss.expected or "", self.output)
            if read_value(finding.expected).key not in known
        ]
        named = {read_value(each.finding.expected).key for each in replaced}
        analysis.mismatches = [each for each in analysis.mismatches if each.is_strong or each.value.key not in named]
        replaced += (each for each in self._shared if each.counterpart is not None)
        repaired = self.output
        for each in replaced:
            repaired = put_back(repaired, each.value, each.counterpart)
        analysis.format_rules = [
            replace(rule, needs_no_content=rule.needs_no_content and not rule.is_followed_by(repaired))
            for rule in analysis.format_rules
        ]
        analysis.mismatches += replaced

    def compare_loosely(self, finding: Finding) -> None:
        """Compare with the reference where only the meaning counts, not the wording."""
        wanted = finding.expected if self.analysis.loss.expected is None else self.analysis.loss.expected
        if isinstance(wanted, list):  # words that ROUGE misses
            wanted = " ".join(map(str, wanted))
        if isinstance(wanted, str):
            self._compare(finding, wanted, SearchText(self.output))

    def _read_violation(self, finding: Finding) -> None:
        rule = rule_for_violation(finding)
        if rule is not None:
            self.analysis.format_rules.append(rule)
        reference = self.analysis.loss.expected
        if finding.predicate == "regex":
            pattern = str(finding.expected)
            wanted = _extract_literals(pattern) if reference in (None, pattern) else reference
            self._compare(finding, wanted or "", SearchText(self.output))
        elif rule is None or finding.predicate == "valid_json":
            self.compare_loosely(replace(finding, expected=None))

    def _read_value(self, finding: Finding) -> None:
        """A number, or a part of a JSON document."""
        if finding.kind == "unexpected":
            rule = FormatRule(text=f"the answer must not have {finding.where}", finding=finding)
            self.analysis.format_rules.append(rule)
            return
        whole = SearchText(self.output)
        leaves = list(named_leaves(finding.expected, _last_key(finding.where)))
        instead = [read_value(leaf) for _, leaf in named_leaves(finding.actual, "")]
        elsewhere = [(name, leaf) for name, leaf in leaves if whole.contains(read_value(leaf))]
        nowhere = [pair for pair in leaves if pair not in elsewhere]
        missed = self._find_missing(finding, nowhere, actual=whole, others=instead)
        if len(missed) == 1 and len(instead) == 1:
            self.analysis.mismatches.append(replace(missed[0], counterpart=instead[0]))
        else:
            self.analysis.mismatches += missed
        if not missed and elsewhere:
            place = finding.where or "the answer"
            text = f"{place} must be {finding.expected!r:.120}, not {finding.actual!r:.120}"
            other = instead[0] if len(instead) == 1 else None
            rule = rule_for_writing(finding, read_value(elsewhere[0][1]), text=text, other=other)
            self.analysis.format_rules.append(rule)

    def _compare_strictly(self, finding: Finding, expected: str) -> None:
        """Compare with a text of which every character counts, or that the answer must contain."""
        actual = SearchText(finding.actual if isinstance(finding.actual, str) else self.output)
        missed = self._compare(finding, expected, actual)
        rules: list[FormatRule] = []
        if read_document(expected) is not None and read_document(actual.raw) is None:
            rules.append(json_rule(finding))
        if finding.predicate == "exact":
            rules += find_broken_common_rules(finding, actual, references=self.references)
        rules += find_rewritten_values(finding, actual, expected=expected)
        if not missed and not rules:
            rules.append(rule_for_wording(finding, actual, expected=expected))
        self.analysis.format_rules += rules

    def _compare(self, finding: Finding, expected: str, actual: SearchText) -> list[Mismatch]:
        """Add a mismatch for each value that only one of two texts has; return those that are missing."""
        others: list[Value] = []
        if read_document(expected) is None:
            reference = SearchText(expected)
            others = [value for value in _drop_duplicates(split_values(actual.raw)) if not reference.contains(value)]
        missed = self._find_missing(finding, _list_values(expected), actual=actual, others=others)
        spare = [value for value in others if not _is_noise(value)]
        if len(missed) == len(spare) <= MAX_SWAPPED:
            pairs = zip(missed, spare, strict=True)
            missed = [replace(one, counterpart=other) if _are_alike(one, other) else one for one, other in pairs]
            spare = []
        if len(self._shared) == len(spare) <= MAX_SWAPPED:
            self._shared = [replace(one, counterpart=other) for one, other in zip(self._shared, spare, strict=True)]
        self.analysis.mismatches += missed
        for value in others:
            if value.kind not in ("word", "text"):
                unexpected = replace(finding, kind="unexpected", expected=None, actual=value.text)
                is_strong = self._is_strong(value, is_leaf=False)
                self.analysis.mismatches.append(
                    Mismatch(kind="unexpected", value=value, finding=unexpected, is_strong=is_strong)
                )
        return missed

    def _find_missing(
        self, finding: Finding, wanted: Iterable[tuple[str, Json]], *, actual: SearchText, others: Sequence[Value]
    ) -> list[Mismatch]:
        """The wanted values that are missing, each with what replaced it; what all references share is format."""
        missed = []
        for name, leaf in wanted:
            value = read_value(leaf)
            if actual.contains(value):
                continue
            if not self._is_content(name, value):
                if not _is_noise(value):
                    wrong = replace(finding, kind="missing", expected=leaf, actual=None)
                    self._shared.append(Mismatch(kind="replaced", value=value, finding=wrong, field=name))
                continue
            labels = self.references.labels_for(name, leaf)
            missed.append(
                Mismatch(
                    kind="missing",
                    value=value,
                    finding=replace(finding, kind="missing", expected=leaf, actual=None),
                    field=name,
                    is_strong=self._is_strong(value, is_leaf=bool(name) and not labels),
                    counterpart=next((other for other in others if _could_replace(other, value, labels)), None),
                    labels=labels,
                )
            )
        return missed

    def _is_content(self, name: str, value: Value) -> bool:
        """Whether a value is specific to the case: neither a common word nor what all references share.

        The value of a named field (`"country": "DE"`, `"paid": true`) is not a common word. Nor is it format if the
        input gives it under that name: then all cases happen to have it.
        """
        is_telling = bool(value.normalized) if name else not _is_noise(value)
        return is_telling and (not self.references.is_common(name, value) or self._is_given(name, value))

    def _is_given(self, name: str, value: Value) -> bool:
        given = ((normalize_name(each), values) for each, values in read_fields(self.user_input).items())
        return any(name == each and any(SearchText(text).contains(value) for text in values) for each, values in given)

    def _is_strong(self, value: Value, *, is_leaf: bool) -> bool:
        """Whether a value is unlikely to be in a text by chance; so is a word that is a field's or a name."""
        if value.kind == "number":
            return sum(character.isdigit() for character in value.text) >= (2 if is_leaf else 3)
        if value.kind == "word":
            is_name = value.text[0].isupper() and contains_whole(self.user_input, value.text)
            return len(value.text) > 2 and (is_leaf or is_name or bool(find_field_name(value, self.user_input)))
        return len(value.normalized) > 2


def _could_replace(other: Value, value: Value, labels: frozenset[str]) -> bool:
    return normalize(other.text) in labels or (other.kind == value.kind and value.kind != "word")


def _are_alike(mismatch: Mismatch, other: Value) -> bool:
    """Whether a word may replace another: a name replaces a name."""
    value = mismatch.value
    return value.kind == other.kind and value.text[:1].isupper() == other.text[:1].isupper()


def _last_key(path: str) -> str:
    """`city` of `$.addresses[2].city`."""
    keys = re.findall(r"\.(\w+)|\['([^']*)'\]", path)
    return normalize_name("".join(keys[-1])) if keys else ""


def _list_values(expected: str) -> list[tuple[str, Json]]:
    """The values of a reference by field name: the fields of JSON, or the unnamed parts of a text."""
    document = read_document(expected)
    if document is not None:
        return list(named_leaves(document, ""))
    return [("", value.text) for value in _drop_duplicates(split_values(expected))]


def _extract_literals(pattern: str) -> str:
    """The literal words of a regular expression."""
    plain = re.sub(r"\\([^A-Za-z0-9])", r"\1", re.sub(r"\\[A-Za-z]|\[[^\]]*\]|\(\?[:!=<]*", " ", pattern))
    return re.sub(r"[\^$*+?{}\[\]|()\\]", " ", plain)


def _drop_duplicates(values: Iterable[Value]) -> list[Value]:
    known: dict[tuple[str, str], Value] = {}
    for value in values:
        known.setdefault(value.key, value)
    return list(known.values())


def is_short_word(value: Value) -> bool:
    """Whether a value is a word that means something, but is so short that it may be part of any text: `mg`, `XL`."""
    is_meaningful = value.kind == "word" and value.normalized not in SMALL_WORDS
    return is_meaningful and len(value.text) < 3 and value.text.isascii()


def _is_noise(value: Value) -> bool:
    """Whether a value is a word that may be in any text, or empty."""
    if value.kind == "word":
        return value.normalized in SMALL_WORDS or is_short_word(value)
    return not value.normalized
