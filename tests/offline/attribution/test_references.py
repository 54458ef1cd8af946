from __future__ import annotations

from promptiter.offline.attribution.references import NO_REFERENCES, references_of
from promptiter.offline.attribution.value_search import from_plain


def test_few_references_say_nothing() -> None:
    assert references_of(["Answer: 1", "Answer: 2", "Answer: 3", None, " "]) == NO_REFERENCES


def test_whole_words_at_both_ends_are_shared() -> None:
    found = references_of(f"The order A-1{number} is late. Kind regards" for number in range(4))
    assert found.prefix == "The order"
    assert found.suffix == "is late. Kind regards"
    assert found.is_common("", from_plain("late"))
    assert not found.is_common("", from_plain("A-11"))


def test_equal_references_share_neither_beginning_nor_end() -> None:
    found = references_of(["yes"] * 5)
    assert (found.prefix, found.suffix) == ("", "")


def test_json_has_common_values_by_field_and_no_beginning() -> None:
    found = references_of(f'{{"status": "open", "id": "A-1{number}"}}' for number in range(4))
    assert (found.prefix, found.suffix) == ("", "")
    assert found.is_common("status", from_plain("open"))
    assert not found.is_common("", from_plain("open"))
    assert not found.is_common("id", from_plain("A-11"))


def test_a_field_that_takes_few_values_has_labels() -> None:
    words = ["refund", "delivery", "refund", "other", "delivery", "refund"]
    assert references_of(words).labels_of("", "Refund") == {"refund", "delivery", "other"}
    assert references_of(words).labels_of("", "exchange") == frozenset()
    by_field = references_of(f'{{"label": "{word}", "id": "A-{at}"}}' for at, word in enumerate(words))
    assert by_field.labels_of("label", "other") == {"refund", "delivery", "other"}
    assert by_field.labels_of("id", "A-1") == frozenset()
