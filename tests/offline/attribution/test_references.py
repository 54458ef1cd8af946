from __future__ import annotations

from promptiter.offline.attribution.references import NO_REFERENCES, find_common_traits
from promptiter.offline.attribution.value_search import read_value


def test_few_references_have_no_common_traits() -> None:
    assert find_common_traits(["Answer: 1", "Answer: 2", "Answer: 3", None, " "]) == NO_REFERENCES


def test_common_starts_and_ends_are_whole_words() -> None:
    found = find_common_traits(f"The order A-1{number} is late. Kind regards" for number in range(4))
    assert found.prefix == "The order"
    assert found.suffix == "is late. Kind regards"
    assert found.is_common("", read_value("late"))
    assert not found.is_common("", read_value("A-11"))


def test_equal_references_have_no_common_start_or_end() -> None:
    found = find_common_traits(["yes"] * 5)
    assert (found.prefix, found.suffix) == ("", "")


def test_json_has_common_values_by_field_and_no_common_start() -> None:
    found = find_common_traits(f'{{"status": "open", "id": "A-1{number}"}}' for number in range(4))
    assert (found.prefix, found.suffix) == ("", "")
    assert found.is_common("status", read_value("open"))
    assert not found.is_common("", read_value("open"))
    assert not found.is_common("id", read_value("A-11"))


def test_a_field_that_takes_few_values_has_labels() -> None:
    words = ["refund", "delivery", "refund", "other", "delivery", "refund"]
    assert find_common_traits(words).labels_for("", "Refund") == {"refund", "delivery", "other"}
    assert find_common_traits(words).labels_for("", "exchange") == frozenset()
    by_field = find_common_traits(f'{{"label": "{word}", "id": "A-{at}"}}' for at, word in enumerate(words))
    assert by_field.labels_for("label", "other") == {"refund", "delivery", "other"}
    assert by_field.labels_for("id", "A-1") == frozenset()
