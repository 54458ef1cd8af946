from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.offline.attribution.value_search import (
    FoldedText,
    TraceTexts,
    Value,
    field_of,
    fold,
    from_plain,
    parts_of,
    plain_words,
)
from tests.offline.attribution.cases import step, trace
from traces import Snapshot, Step, ToolCall
from traces.model import Json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("A-17", "the order a-17."),
        ("A-17", "(order id: A-17; city: Berlin)"),
        ("A-17", "订单A-17已发货"),
        ("Ada Lovelace", "ADA\n  Lovelace was here"),
        ("ﬁne", "fine"),
        (1234.5, "it costs €1,234.50."),
        (12, "12"),
        (12, "共12件"),
        (-3, "it fell by −3 degrees"),
        (0.5, "0.50"),
        ("2026-03-02", "on March 2, 2026"),
        ("2026-03-02", "on 2 March 2026"),
        ("2026-03-02", "on 02.03.2026"),
        ("2026-03-02", "at 2026-03-02T10:00:00Z"),
        ("March 2, 2026", "2026-03-02"),
        ('say "hi"', json.dumps({"text": 'say "hi"'})),
        ("Zürich", json.dumps({"city": "Zürich"})),
        ("line one line two", json.dumps("line one\nline two")),
        ("ada@example.org", "write to Ada@example.org, please"),
    ],
)
def test_a_value_shows_in_any_writing(value: Json, text: str) -> None:
    assert FoldedText(text).shows(from_plain(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("A-17", "A-170"),
        ("A-17", "BA-17"),
        ("A-17", "A-17-B"),
        ("A-1", "A-17"),
        (12, "120"),
        (12, "12.5"),
        (12, "A-12"),
        (12, "2026-12-12"),
        (12, "at 12:30"),
        (234, "1,234"),
        ("cat", "concatenate"),
        ("2026-03-02", "2026-03-20"),
        ("2026-03-02", "March 2026"),
        ("", "anything"),
    ],
)
def test_words_and_numbers_have_borders(value: Json, text: str) -> None:
    assert not FoldedText(text).shows(from_plain(value))


def test_a_date_with_slashes_may_be_read_in_two_ways() -> None:
    assert FoldedText("03/04/2026").shows(from_plain("2026-03-04"))
    assert FoldedText("03/04/2026").shows(from_plain("2026-04-03"))


def test_writing_counts_letter_for_letter() -> None:
    text = FoldedText("Order a-17 of March 2, 2026: 49.9")
    assert text.shows(from_plain("A-17"))
    assert not text.writes(from_plain("A-17"))
    assert text.writes(from_plain("March 2, 2026"))
    assert not text.writes(from_plain("2026-03-02"))
    assert not text.writes(Value("49.90", "number"))


def test_a_text_is_taken_apart_into_values_by_kind() -> None:
    text = "Order A-17 (March 2, 2026) costs $1,234.50; write to ada@x.org or https://x.org/a. It's 5kg, v2."
    assert [(value.kind, value.text) for value in parts_of(text) if value.kind != "word"] == [
        ("id", "A-17"),
        ("date", "March 2, 2026"),
        ("number", "1,234.50"),
        ("address", "ada@x.org"),
        ("address", "https://x.org/a"),
        ("id", "5kg"),
        ("id", "v2"),
    ]
    assert [value.text for value in parts_of("It's a well-known 订单A-17")] == [
        "It's",
        "a",
        "well",
        "known",
        "订单",
        "A-17",
    ]


@pytest.mark.parametrize(
    ("thing", "kind"),
    [("A-17", "id"), (5, "number"), ("5.50", "number"), ("2026-03-02", "date"), ("Oslo", "word"), ("a b", "text")],
)
def test_a_value_has_the_kind_that_all_of_it_is(thing: Json, kind: str) -> None:
    assert from_plain(thing).kind == kind


def test_values_that_mean_the_same_have_one_key() -> None:
    assert from_plain(5).key == from_plain("5.0").key
    assert from_plain("2026-03-02").key == from_plain("March 2, 2026").key
    assert from_plain("OSLO").key == from_plain("Oslo").key
    assert from_plain(5).key != from_plain(6).key


@given(st.text(max_size=40), st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_what_stands_between_spaces_shows(before: str, after: str, text: str) -> None:
    value = from_plain(text)
    if not fold(text) or value.kind in ("date", "number"):
        return
    assert FoldedText(f"{before.replace(chr(92), '')} {value.text} {after.replace(chr(92), '')}").shows(value)


@given(st.integers(-(10**15), 10**15))
def test_a_number_shows_with_and_without_commas(number: int) -> None:
    assert FoldedText(f"It is {number:,} in all.").shows(from_plain(number))
    assert FoldedText(f"It is {number} in all.").shows(from_plain(number))
    assert not FoldedText(f"It is {number}1 in all.").shows(from_plain(number))


@given(st.text(max_size=200))
def test_any_text_can_be_searched(text: str) -> None:
    folded = FoldedText(text)
    for value in parts_of(text):
        folded.shows(value)
        folded.writes(value)


def test_the_texts_of_a_step_are_its_input_its_tools_answers_and_its_output() -> None:
    call = ToolCall(name="look_up", arguments={"id": "B-04"}, result={"name": 'the "big" lamp'})
    second = Step(
        id="b",
        node_id="b",
        predecessors=("a",),
        input=Snapshot(data={"a": "A-17"}),
        output=Snapshot("done", data={"total": 49.9}),
        tool_calls=(call,),
    )
    ran = trace([step("a", "hello", "A-17"), second])
    texts = TraceTexts(ran)
    assert texts.input("b").shows(from_plain("A-17"))
    assert texts.results("b").shows(from_plain('the "big" lamp'))
    assert not texts.results("b").shows(from_plain("B-04"))
    assert texts.output("b").shows(from_plain(49.9))
    assert texts.output("b").shows(from_plain("done"))
    assert texts.handed_by(second, from_plain("A-17")) == ("a",)
    assert texts.handed_by(second, from_plain("hello")) == ()


@pytest.mark.parametrize(
    "text",
    ["order_id: A-17", '{"orderId": "A-17"}', "It broke (order id: A-17; city: Oslo).", "Hi, my order id is A-17."],
)
def test_a_value_is_called_what_stands_before_it(text: str) -> None:
    assert plain_words(field_of(from_plain("A-17"), text)) == "order id"
    assert field_of(from_plain("B-04"), text) == ""


def test_names_are_compared_in_plain_words() -> None:
    assert plain_words("Give the orderIds, and *Order_ID*") == "give the order id and order id"
