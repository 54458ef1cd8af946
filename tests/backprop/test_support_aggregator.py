from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.support_aggregator import SupportAggregator, merge, rank, support_of
from promptiter.evaluation.score import Finding
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SurfaceGradient
from promptiter.structure import Surface

SURFACE = Surface(node_id="planner", type="instruction", value="Plan.")


def gradient(case_id: str, text: str = "It lacks 'A-17'.", **more: Any) -> SurfaceGradient:
    return SurfaceGradient(surface_id=SURFACE.id, case_id=case_id, step_id="planner", text=text, **more)


async def signal(*gradients: SurfaceGradient, failed_cases: int = 0) -> AggregateResult:
    request = AggregateRequest(surface=SURFACE, gradients=gradients, failed_cases=failed_cases)
    return await SupportAggregator().aggregate(request)


def result(surface_id: str, support: float, **more: Any) -> AggregateResult:
    return AggregateResult(surface_id=surface_id, text="t", support=support, **more)


async def test_gradients_that_differ_in_their_literals_give_one_reason_with_its_count() -> None:
    made = await signal(
        gradient("c2", "It lacks 'B-04'.", category="response"),
        gradient("c1", "It lacks 'A-17'.", category="response"),
        gradient("c3", "The JSON is broken.", category="format"),
        failed_cases=12,
    )
    assert made.text == (
        "2 of 12 failed cases (response): It lacks 'A-17'.\n1 of 12 failed cases (format): The JSON is broken."
    )
    assert made.case_ids == ("c1", "c2", "c3")
    assert made.categories == {"response": 2, "format": 1}
    assert made.support == 3.0
    assert made.surface_id == "planner#instruction"
    assert made.error is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lacks 'A-17'", "lacks 'it\\'s B'"),
        ('lacks "A"', "lacks 'B'"),
        ("at characters 4-9", "at characters 12-19"),
        ("lacks 'A', 'B' and 'C'", "lacks 'D'"),
        ("Lacks   `x`", "lacks `y`"),
    ],
)
def test_literals_do_not_matter(one: str, other: str) -> None:
    assert len(merge([gradient("c1", one), gradient("c2", other)])) == 1


def test_other_words_or_other_findings_make_another_reason() -> None:
    missing = (Finding(kind="missing", expected="A", predicate="exact"),)
    too_long = (Finding(kind="violated", expected=5, predicate="max_length"),)
    given_ = [
        gradient("c1"),
        gradient("c1", "It is too long."),
        gradient("c1", category="format"),
        gradient("c1", findings=missing),
        gradient("c1", findings=too_long),
    ]
    assert len(merge(given_)) == 5


def test_support_counts_a_case_once_by_its_most_confident_gradient() -> None:
    assert (
        support_of([gradient("c1", confidence=0.2), gradient("c1", confidence=0.9), gradient("c2", confidence=0.5)])
        == 1.4
    )
    assert support_of([]) == 0.0


def test_the_best_supported_reason_comes_first_with_its_most_confident_text() -> None:
    reasons = merge(
        [
            gradient("c1", "It is vague.", confidence=0.9),
            gradient("c2", "It lacks 'a'.", confidence=0.5),
            gradient("c3", "It lacks 'b'.", confidence=0.6, severity="P0"),
        ]
    )
    assert [(reason.text, reason.support, reason.severity) for reason in reasons] == [
        ("It lacks 'b'.", 1.1, "P0"),
        ("It is vague.", 0.9, "P1"),
    ]
    assert reasons[0].case_ids == ("c2", "c3")


async def test_only_the_top_reasons_are_listed() -> None:
    words = ("one", "two", "three", "four", "five", "six", "seven")
    made = await signal(*(gradient("c1", word) for word in words))
    assert len(made.text.splitlines()) == 6
    assert made.text.endswith("And 2 more reasons with less support.")
    assert made.text.startswith("1 case (other): ")


async def test_a_signal_is_as_severe_as_its_worst_gradient() -> None:
    assert (await signal(gradient("c1", severity="P2"), gradient("c2", severity="P0"))).severity == "P0"


@given(st.permutations([gradient(f"c{number}", f"It lacks {number % 3 * 'x'}") for number in range(6)]))
def test_the_order_of_gradients_does_not_matter(gradients: list[SurfaceGradient]) -> None:
    assert merge(gradients) == merge(sorted(gradients, key=lambda each: each.case_id))


def test_signals_with_too_little_support_are_set_aside() -> None:
    strong, enough, weak = result("a#x", 8.0), result("b#x", 2.0), result("c#x", 1.9)
    assert rank([weak, enough, strong]) == ((strong, enough), (weak,))
    assert rank([weak, enough, strong], min_share=0.5) == ((strong,), (enough, weak))
    assert rank([]) == ((), ())


def test_the_worst_severity_comes_first_then_the_largest_support() -> None:
    mild, severe, more = result("a#x", 4.0, severity="P2"), result("b#x", 3.0, severity="P0"), result("c#x", 9.0)
    assert rank([mild, more, severe])[0] == (severe, more, mild)


def test_an_empty_signal_is_set_aside_and_one_with_an_error_may_stay() -> None:
    silent, fine = replace(result("a#x", 90.0), text=""), result("b#x", 2.0, error="ModelError: one batch failed")
    assert rank([silent, fine]) == ((fine,), (silent,))


def test_a_signal_also_needs_the_minimum_support() -> None:
    assert rank([result("a#x", 1.0)], least=1.5) == ((), (result("a#x", 1.0),))
