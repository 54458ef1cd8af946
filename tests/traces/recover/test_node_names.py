"""Names of model calls without one, by their prompts."""

from __future__ import annotations

import pytest

from traces.otel.recover.node_names import name_prompt

TEMPLATE = "You are a support clerk.\nToday is {date}. The customer is {customer}, order {order}. Be brief."


def fill(date: str, customer: str, order: str) -> str:
    return name_prompt(TEMPLATE.format(date=date, customer=customer, order=order))


@pytest.mark.parametrize(
    ("date", "customer", "order"),
    [
        ("2026-11-17", "bo@b.example", "C-77"),
        ("2025-01-02T10:00:00Z", "'Bo O'", "9b1deb4d"),
        ("11/17/2026", '"Ann Lee"', "1,000.50"),
    ],
)
def test_values_that_were_filled_in_do_not_change_the_name(date: str, customer: str, order: str) -> None:
    assert fill(date, customer, order) == fill("2026-11-16", "ann.lee@a.example", "17")


def test_months_beside_numbers_are_values() -> None:
    assert name_prompt("Today is 17 November 2026.") == name_prompt("Today is 3 May 2025.")
    assert name_prompt("Today is November 17.") == name_prompt("Today is May 3.")
    assert name_prompt("You may go.") != name_prompt("You march go.")


def test_prompts_that_differ_after_their_first_words_have_different_names() -> None:
    start = "You are a support clerk of a shop. Answer"
    assert name_prompt(f"{start} in French.") != name_prompt(f"{start} in German.")


def test_the_slug_has_neither_the_opening_nor_punctuation() -> None:
    assert name_prompt("You are the planner: plan, then act!").startswith("planner-plan-then-act-")
    assert name_prompt('"!"') != ""


def test_an_apostrophe_is_not_a_quote() -> None:
    assert name_prompt("Don't say what's red.") != name_prompt("Don't do what's red.")


def test_of_a_long_prompt_only_the_start_counts() -> None:
    start = "You are the planner. " + "Plan with care. " * 2_000
    assert name_prompt(start) == name_prompt(f"{start} Documents: red.")
