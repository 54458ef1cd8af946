from __future__ import annotations

from typing import Any

import pytest

from promptiter.backprop.loss import category_of
from promptiter.evaluation.metrics.json_match import JsonCriterion, compare_json_text
from promptiter.evaluation.metrics.text_match import NumericCriterion, TextCriterion, compare_number, compare_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.expected_values import MAX_MISMATCHES, LossAnalysis, analyze_loss
from promptiter.offline.attribution.references import NO_REFERENCES, References, find_common_traits
from promptiter.stages.losses import Loss

SAID = "My order A-17 to Berlin"


def analyze(
    findings: tuple[Finding, ...],
    output: str,
    expected: str | None,
    references: References = NO_REFERENCES,
    *,
    said: str = SAID,
) -> LossAnalysis:
    loss = Loss(
        metric="m",
        step_id="s",
        severity="P0",
        category=category_of(findings),
        text="",
        expected=expected,
        findings=findings,
    )
    return analyze_loss(loss, references, output=output, user_input=said)


def exactly(output: str, expected: str, **more: Any) -> LossAnalysis:
    return analyze(compare_text(output, expected, TextCriterion()), output, expected, **more)


def missing(analysis: LossAnalysis, *, is_strong: bool | None = None) -> list[str]:
    return [mismatch.value.text for mismatch in analysis.of_kind("missing", is_strong=is_strong)]


def rules(analysis: LossAnalysis) -> list[str]:
    return [rule.text for rule in analysis.format_rules]


def test_an_inexact_answer_lacks_values_and_has_others() -> None:
    analysis = exactly("order B-04, March 2, 2026", "order A-17, 2026-03-02")
    assert missing(analysis) == ["A-17"]
    assert [mismatch.value.text for mismatch in analysis.of_kind("unexpected")] == ["B-04"]
    assert rules(analysis) == ["write '2026-03-02', not 'March 2, 2026'"]
    assert analysis.of_kind("missing")[0].counterpart == analysis.of_kind("unexpected")[0].value


def test_names_from_the_input_are_strong_and_other_words_weak() -> None:
    analysis = exactly("nothing", "Berlin ships kettles for 72")
    assert missing(analysis, is_strong=True) == ["Berlin"]
    assert missing(analysis, is_strong=False) == ["ships", "kettles", "72"]


@pytest.mark.parametrize(
    ("output", "expected", "rule"),
    [
        ("It is A-17.", "A-17", "give only the answer, without any text around it"),
        ("a-17 berlin", "A-17 Berlin", "letter case and spaces must be as in 'A-17 Berlin'"),
        ("Berlin A-17", "A-17 Berlin", "the wording must be as in 'A-17 Berlin'"),
        ("49.9", "49.90", "write '49.90', not '49.9'"),
        ("A-17", '{"id": "A-17"}', "the answer must be JSON"),
    ],
)
def test_an_answer_that_lacks_nothing_breaks_a_format_rule(output: str, expected: str, rule: str) -> None:
    analysis = exactly(output, expected)
    assert missing(analysis) == []
    assert rules(analysis) == [rule]


def test_json_fields_keep_their_names() -> None:
    expected = '{"customer": {"city": "Berlin"}, "orderIds": ["A-17", "B-04"], "ok": true, "n": null}'
    analysis = analyze(compare_json_text("no", expected, JsonCriterion()), "no", expected)
    assert [(mismatch.field, mismatch.value.text) for mismatch in analysis.of_kind("missing")] == [
        ("city", "Berlin"),
        ("order id", "A-17"),
        ("order id", "B-04"),
        ("ok", "true"),
    ]
    assert rules(analysis) == ["the answer must be JSON"]


def test_a_json_value_in_the_wrong_place_is_a_format_error() -> None:
    expected, output = '{"from": "Oslo", "to": "Rome"}', '{"from": "Rome", "to": "Oslo"}'
    analysis = analyze(compare_json_text(output, expected, JsonCriterion()), output, expected)
    assert missing(analysis) == []
    assert rules(analysis) == ["$.from must be 'Oslo', not 'Rome'", "$.to must be 'Rome', not 'Oslo'"]


def test_a_wrong_json_value_has_its_counterpart() -> None:
    expected, output = '{"city": "Oslo"}', '{"city": "Rome", "mood": "bad"}'
    analysis = analyze(compare_json_text(output, expected, JsonCriterion()), output, expected)
    [mismatch] = analysis.of_kind("missing")
    assert mismatch.counterpart is not None
    assert (mismatch.field, mismatch.value.text, mismatch.counterpart.text) == ("city", "Oslo", "Rome")
    assert rules(analysis) == ["the answer must not have $.mood"]


def test_a_wrong_number_has_its_counterpart() -> None:
    analysis = analyze(compare_number("It is 74", "72", NumericCriterion()), "It is 74", "72")
    [mismatch] = analysis.of_kind("missing")
    assert mismatch.counterpart is not None
    assert (mismatch.value.text, mismatch.counterpart.text) == ("72", "74")


def test_a_pattern_gives_its_literal_parts() -> None:
    findings = compare_text("none", r"^order\s+A-17\b", TextCriterion(match="regex"))
    analysis = analyze(findings, "none", r"^order\s+A-17\b")
    assert missing(analysis) == ["order", "A-17"]
    assert len(analysis.format_rules) == 1


def test_what_the_references_share_is_not_missing() -> None:
    shared = find_common_traits(f"Answer: order {number}" for number in ("A-17", "B-04", "C-33", "D-51"))
    analysis = exactly("B-99", "Answer: order A-17", references=shared)
    assert missing(analysis) == ["A-17"]
    assert rules(analysis) == ["the answer must begin with 'Answer: order'"]
    assert [value.text for value in analysis.needed] == ["A-17"]


@pytest.mark.parametrize(
    ("said", "found"),
    [("order: A-17\ncurrency: EUR", ["EUR"]), ("order: A-17\nEUR is our currency", []), ("order: EUR", [])],
)
def test_a_field_that_all_references_share_is_missing_if_the_input_gives_it(said: str, found: list[str]) -> None:
    shared = find_common_traits(f'{{"order": "{each}", "currency": "EUR"}}' for each in ("A-17", "B-04", "C-33", "D-5"))
    expected, output = '{"order": "A-17", "currency": "EUR"}', '{"order": "A-17"}'
    findings = compare_json_text(output, expected, JsonCriterion())
    assert missing(analyze(findings, output, expected, shared, said=said)) == found


def test_findings_about_tools_and_limits_are_kept_separate() -> None:
    tool = Finding(kind="missing", expected={"name": "search"}, where="expected tool call 0", predicate="tool_call")
    limit = Finding(kind="violated", expected=1.0, actual=2.0, predicate="max_duration_s")
    analysis = analyze((tool, limit), "x", None)
    assert (analysis.tool_findings, analysis.limit_findings, analysis.mismatches, analysis.format_rules) == (
        [tool],
        [limit],
        [],
        [],
    )


def test_a_loss_has_a_bounded_number_of_mismatches() -> None:
    analysis = exactly("none", " ".join(f"X-{number}" for number in range(100, 200)))
    assert len(analysis.of_kind("missing")) == MAX_MISMATCHES


def test_an_error_has_no_mismatches() -> None:
    loss = Loss(metric="", step_id="s", severity="P0", category="error", text="boom", expected="A-17")
    assert analyze_loss(loss, NO_REFERENCES, output="", user_input=SAID).mismatches == []
