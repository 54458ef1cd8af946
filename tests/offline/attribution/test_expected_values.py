from __future__ import annotations

from typing import Any

import pytest

from promptiter.backprop.loss import category_of
from promptiter.evaluation.metrics.json_match import JsonCriterion, compare_json_text
from promptiter.evaluation.metrics.text_match import NumericCriterion, TextCriterion, compare_number, compare_text
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.expected_values import MOST_ATOMS, Atoms, take_apart
from promptiter.offline.attribution.references import NO_REFERENCES, References, references_of
from promptiter.stages.losses import Loss

SAID = "My order A-17 to Berlin"


def taken_apart(
    findings: tuple[Finding, ...], output: str, expected: str | None, references: References = NO_REFERENCES
) -> Atoms:
    loss = Loss(
        metric="m",
        step_id="s",
        severity="P0",
        category=category_of(findings),
        text="",
        expected=expected,
        findings=findings,
    )
    return take_apart(loss, references, output=output, request=SAID)


def exactly(output: str, expected: str, **more: Any) -> Atoms:
    return taken_apart(compare_text(output, expected, TextCriterion()), output, expected, **more)


def missing(atoms: Atoms, *, is_strong: bool | None = None) -> list[str]:
    return [atom.value.text for atom in atoms.of_kind("missing", is_strong=is_strong)]


def rules(atoms: Atoms) -> list[str]:
    return [form.rule for form in atoms.forms]


def test_an_inexact_answer_lacks_parts_and_has_others() -> None:
    atoms = exactly("order B-04, March 2, 2026", "order A-17, 2026-03-02")
    assert missing(atoms) == ["A-17"]
    assert [atom.value.text for atom in atoms.of_kind("unexpected")] == ["B-04"]
    assert rules(atoms) == ["'2026-03-02' must be written so, not 'March 2, 2026'"]
    assert atoms.of_kind("missing")[0].counterpart == atoms.of_kind("unexpected")[0].value


def test_names_of_the_request_are_strong_and_other_words_weak() -> None:
    atoms = exactly("nothing", "Berlin ships kettles for 72")
    assert missing(atoms, is_strong=True) == ["Berlin"]
    assert missing(atoms, is_strong=False) == ["ships", "kettles", "72"]


@pytest.mark.parametrize(
    ("output", "expected", "rule"),
    [
        ("It is A-17.", "A-17", "the answer must be given alone, without anything around it"),
        ("a-17 berlin", "A-17 Berlin", "letter case and spaces must be as in 'A-17 Berlin'"),
        ("Berlin A-17", "A-17 Berlin", "the wording must be as in 'A-17 Berlin'"),
        ("49.9", "49.90", "'49.90' must be written so, not '49.9'"),
        ("A-17", '{"id": "A-17"}', "the answer must be JSON"),
    ],
)
def test_an_answer_that_lacks_nothing_breaks_a_form(output: str, expected: str, rule: str) -> None:
    atoms = exactly(output, expected)
    assert missing(atoms) == []
    assert rules(atoms) == [rule]


def test_json_fields_keep_their_names() -> None:
    expected = '{"customer": {"city": "Berlin"}, "orderIds": ["A-17", "B-04"], "ok": true, "n": null}'
    atoms = taken_apart(compare_json_text("no", expected, JsonCriterion()), "no", expected)
    assert [(atom.field, atom.value.text) for atom in atoms.of_kind("missing")] == [
        ("city", "Berlin"),
        ("order id", "A-17"),
        ("order id", "B-04"),
        ("ok", "true"),
    ]
    assert rules(atoms) == ["the answer must be JSON"]


def test_a_json_value_that_stands_in_another_place_is_a_matter_of_form() -> None:
    expected, output = '{"from": "Oslo", "to": "Rome"}', '{"from": "Rome", "to": "Oslo"}'
    atoms = taken_apart(compare_json_text(output, expected, JsonCriterion()), output, expected)
    assert missing(atoms) == []
    assert rules(atoms) == ["$.from must be 'Oslo', not 'Rome'", "$.to must be 'Rome', not 'Oslo'"]


def test_a_wrong_json_value_has_its_counterpart() -> None:
    expected, output = '{"city": "Oslo"}', '{"city": "Rome", "mood": "bad"}'
    atoms = taken_apart(compare_json_text(output, expected, JsonCriterion()), output, expected)
    [atom] = atoms.of_kind("missing")
    assert atom.counterpart is not None
    assert (atom.field, atom.value.text, atom.counterpart.text) == ("city", "Oslo", "Rome")
    assert rules(atoms) == ["the answer must not have $.mood"]


def test_a_wrong_number_has_its_counterpart() -> None:
    atoms = taken_apart(compare_number("It is 74", "72", NumericCriterion()), "It is 74", "72")
    [atom] = atoms.of_kind("missing")
    assert atom.counterpart is not None
    assert (atom.value.text, atom.counterpart.text) == ("72", "74")


def test_a_pattern_gives_its_literal_parts() -> None:
    findings = compare_text("none", r"^order\s+A-17\b", TextCriterion(match="regex"))
    atoms = taken_apart(findings, "none", r"^order\s+A-17\b")
    assert missing(atoms) == ["order", "A-17"]
    assert len(atoms.forms) == 1


def test_what_the_references_share_is_not_missing() -> None:
    shared = references_of(f"Answer: order {number}" for number in ("A-17", "B-04", "C-33", "D-51"))
    atoms = exactly("B-99", "Answer: order A-17", references=shared)
    assert missing(atoms) == ["A-17"]
    assert rules(atoms) == ["the answer must begin with 'Answer: order'"]
    assert [value.text for value in atoms.needed] == ["A-17"]


def test_findings_about_tools_and_limits_are_kept_apart() -> None:
    tool = Finding(kind="missing", expected={"name": "search"}, where="expected tool call 0", predicate="tool_call")
    limit = Finding(kind="violated", expected=1.0, actual=2.0, predicate="max_duration_s")
    atoms = taken_apart((tool, limit), "x", None)
    assert (atoms.tools, atoms.limits, atoms.values, atoms.forms) == ([tool], [limit], [], [])


def test_a_loss_has_a_bounded_number_of_atoms() -> None:
    atoms = exactly("none", " ".join(f"X-{number}" for number in range(100, 200)))
    assert len(atoms.of_kind("missing")) == MOST_ATOMS


def test_an_error_has_no_atoms() -> None:
    loss = Loss(metric="", step_id="s", severity="P0", category="error", text="boom", expected="A-17")
    assert take_apart(loss, NO_REFERENCES, output="", request=SAID).values == []
