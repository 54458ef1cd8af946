from __future__ import annotations

import pytest

from promptiter.wording import dollars, join_names, join_sentences, plural, shorten


@pytest.mark.parametrize(
    ("count", "noun", "expected"),
    [(0, "case", "0 cases"), (1, "case", "1 case"), (2, "case", "2 cases"), (1200, "call", "1,200 calls")],
)
def test_a_noun_agrees_with_its_count(count: int, noun: str, expected: str) -> None:
    assert plural(count, noun) == expected


def test_an_irregular_plural_is_given() -> None:
    assert plural(2, "query", "queries") == "2 queries"
    assert plural(1, "query", "queries") == "1 query"


def test_names_beyond_the_limit_are_counted() -> None:
    assert join_names(["a", "b", "c"], limit=2) == "a, b and 1 more"
    assert join_names(["a", "b"], limit=2) == "a, b"
    assert join_names(["a", "b", "c"]) == "a, b, c"
    assert join_names([], limit=2) == ""


def test_dollars_have_the_digits_that_matter() -> None:
    amounts = {0: "$0", 0.00002: "under $0.0001", 0.03121: "$0.0312", 1.256: "$1.26", 1200: "$1200.00"}
    assert {amount: dollars(amount) for amount in amounts} == amounts


def test_a_long_value_is_shortened_to_its_beginning_and_its_length() -> None:
    assert shorten({"a": 1}) == "{'a': 1}"
    assert shorten("x" * 2000, limit=4) == "'xxx… (2,002 characters)"


def test_what_has_no_repr_of_its_own_is_described_without_an_address() -> None:
    class Plain: ...

    assert shorten(Plain) == "the class Plain"
    assert shorten(len) == "the function len"
    assert shorten(Plain()) == "an object of class Plain"


def test_sentences_are_joined_by_a_space_and_other_texts_by_a_semicolon() -> None:
    assert join_sentences(["They need it.", "It asks.", "It asks.", ""]) == "They need it. It asks."
    assert join_sentences(["more care", "less haste"]) == "more care; less haste"
