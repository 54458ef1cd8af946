from __future__ import annotations

import pytest

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.format_rules import FormatRule, rule_for_violation


def read_rule(pattern: str) -> FormatRule:
    rule = rule_for_violation(Finding(kind="violated", expected=pattern, actual="x", predicate="regex"))
    assert rule is not None
    return rule


def test_a_pattern_that_is_violated_is_a_rule() -> None:
    rule = read_rule(r"^total: \d+$")
    assert rule.pattern is not None
    assert rule.pattern.matches("Total: 42")
    assert not rule.pattern.matches("42")
    assert read_rule("(").pattern is None


def test_a_pattern_that_never_ends_matches_nothing_and_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)
    pattern = read_rule("(a+)+b").pattern
    assert pattern is not None
    assert not pattern.matches("a" * 60)
    monkeypatch.setattr("promptiter.patterns._processes", None)
    assert not pattern.matches("aab")
