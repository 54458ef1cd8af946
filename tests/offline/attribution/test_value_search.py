from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.offline.attribution.value_search import (
    SearchText,
    TraceTexts,
    Value,
    find_field_name,
    normalize_name,
    read_value,
    split_values,
)
from promptiter.offline.text.matching import normalize
from tests.offline.attribution.cases import step, trace
from traces import Edge, Snapshot, Step, ToolCall
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
def test_a_value_is_found_however_it_is_written(value: Json, text: str) -> None:
    assert SearchText(text).contains(read_value(value))


def test_a_date_with_slashes_may_have_two_readings() -> None:
    assert SearchText("03/04/2026").contains(read_value("2026-03-04"))
    assert SearchText("03/04/2026").contains(read_value("2026-04-03"))


def test_verbatim_search_compares_every_character() -> None:
    text = SearchText("Order a-17 of March 2, 2026: 49.9")
    assert text.contains(read_value("A-17"))
    assert not text.contains_verbatim(read_value("A-17"))
    assert text.contains_verbatim(read_value("March 2, 2026"))
    assert not text.contains_verbatim(read_value("2026-03-02"))
    assert not text.contains_verbatim(Value("49.90", "number"))


def test_a_text_is_split_into_values_by_kind() -> None:
    text = "Order A-17 (March 2, 2026) costs $1,234.50; write to ada@x.org or https://x.org/a. It's 5kg, v2."
    assert [(value.kind, value.text) for value in split_values(text) if value.kind != "word"] == [
        ("id", "A-17"),
        ("date", "March 2, 2026"),
        ("number", "1,234.50"),
        ("address", "ada@x.org"),
        ("address", "https://x.org/a"),
        ("number", "5"),
        ("id", "v2"),
    ]
    assert [value.text for value in split_values("Is a well-known 订单A-17")] == [
        "Is",
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
def test_a_value_has_the_kind_of_its_whole_text(thing: Json, kind: str) -> None:
    assert read_value(thing).kind == kind


def test_values_that_mean_the_same_have_one_key() -> None:
    assert read_value(5).key == read_value("5.0").key
    assert read_value("2026-03-02").key == read_value("March 2, 2026").key
    assert read_value("OSLO").key == read_value("Oslo").key
    assert read_value(5).key != read_value(6).key


@given(st.text(max_size=40), st.text(max_size=40), st.text(min_size=1, max_size=20))
def test_a_value_between_spaces_is_found(before: str, after: str, text: str) -> None:
    value = read_value(text)
    if not normalize(text) or value.kind in ("date", "number"):
        return
    assert SearchText(f"{before.replace(chr(92), '')} {value.text} {after.replace(chr(92), '')}").contains(value)


@given(st.integers(-(10**15), 10**15))
def test_a_number_is_found_with_and_without_commas(number: int) -> None:
    assert SearchText(f"It is {number:,} in all.").contains(read_value(number))
    assert SearchText(f"It is {number} in all.").contains(read_value(number))
    assert not SearchText(f"It is {number}1 in all.").contains(read_value(number))


@given(st.text(max_size=200))
def test_any_text_can_be_searched(text: str) -> None:
    normalized = SearchText(text)
    for value in split_values(text):
        normalized.contains(value)
        normalized.contains_verbatim(value)


def test_the_texts_of_a_step_are_input_tool_results_and_output() -> None:
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
    assert texts.input("b").contains(read_value("A-17"))
    assert texts.tool_results("b").contains(read_value('the "big" lamp'))
    assert not texts.tool_results("b").contains(read_value("B-04"))
    assert texts.output("b").contains(read_value(49.9))
    assert texts.output("b").contains(read_value("done"))
    assert texts.sources_with(read_value("A-17"), second) == ("a",)
    assert texts.sources_with(read_value("hello"), second) == ()
    assert texts.sources_with(read_value("A-17"), replace(second, edges=(Edge(source="a", kind="control"),))) == ()


@pytest.mark.parametrize(
    "text",
    ["order_id: A-17", '{"orderId": "A-17"}', "It broke (order id: A-17; city: Oslo).", "Hi, my order id is A-17."],
)
def test_a_value_has_the_name_before_it(text: str) -> None:
    assert normalize_name(find_field_name(read_value("A-17"), text)) == "order id"
    assert find_field_name(read_value("B-04"), text) == ""


def test_names_are_normalized() -> None:
    assert normalize_name("Give the orderIds, and *Order_ID*") == "give the order id and order id"


@pytest.mark.parametrize(
    "text",
    [
        "status: open",
        "x / Status=open / y",
        '{"id": 3, "status": "open"}',
        "**status**: open.\n",
        r"{\"status\": \"open\"}",
    ],
)
def test_a_pair_is_found_however_name_and_value_are_joined(text: str) -> None:
    assert SearchText(text).contains(Value.pair("status", "open"))
    assert not SearchText(text).contains(Value.pair("status", "closed"))
    assert not SearchText(text).contains(Value.pair("state", "open"))


@pytest.mark.parametrize("text", ["status: open since May", "status: reopen", "the status is open", "open: status"])
def test_a_pair_is_a_name_with_one_word(text: str) -> None:
    assert not SearchText(text).contains(Value.pair("status", "open"))
