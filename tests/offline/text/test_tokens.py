from __future__ import annotations

import json
import unicodedata
from decimal import Decimal
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.offline.attribution.value_search import SearchText, read_value
from promptiter.offline.rules.field_rules import is_carried
from promptiter.offline.text.matching import contains_words, find_whole
from promptiter.offline.text.tokens import find_documents, parse_number, tokenize

WHOLE = [
    # between marks
    ("12", "it is 12."),
    ("12", "(12)"),
    ("12", '"12"'),
    ("12", "**12**"),
    ("12", "_12_"),
    ("12", "x=12"),
    ("12", "#12"),
    ("12", "12, 13"),
    ("12", "12,13,14"),
    ("12", "Oslo,12,34"),
    ("12", "amount:12;"),
    ("42", "id:42"),
    ("12", "12–14 items"),
    ("12", "A-12 costs 12"),
    # amounts, units, percent, signs
    ("5", "€5"),
    ("5", "5€"),
    ("€5", "it costs €5."),
    ("€5,50", "€5,50!"),
    ("12", "EUR12"),
    ("12", "12kg"),
    ("1.5", "1.5x"),
    ("30", "a 30-day trial"),
    ("12", "12/unit"),
    ("50", "50%"),
    ("50%", "a 50% discount"),
    ("-5", "at -5 degrees"),
    ("-5", "x:-5"),
    ("1,234.50", "$1,234.50"),
    ("1.234,50", "1.234,50 €"),
    (".5", "p = .5"),
    # ids, versions, addresses, dates, times
    ("A-17", "订单A-17已发货"),
    ("A-17", "A-17's owner"),
    ("A-17", "https://shop.example/orders/A-17?x=1"),
    ("0042", "code 0042."),
    ("v1.2", "since v1.2."),
    ("1.2.3", "version 1.2.3, released"),
    ("10.0.0.1", "http://10.0.0.1/"),
    ("2024-03-01", "due:2024-03-01"),
    ("2024-03-01", "at 2024-03-01T10:30:00Z"),
    ("10:30", "at 10:30."),
    ("ada@example.org", "<ada@example.org>"),
    # words
    ("Smith", "Smith's order"),
    ("known", "well-known"),
    ("Zürich", "Zürich-Oerlikon"),
    ("北京", "我住在北京市"),
    ("서울", "서울에서"),
    # JSON
    ("200", "[100,200,300]"),
    ("200", 'The prices: {"all":[100,200,300]}.'),
    ("42", '{"id":42}'),
    ("-1", "[0,-1]"),
    ("1,234", '{"n":"1,234"}'),
    ("A-17", json.dumps({"note": "first line\nA-17"})),
]

PARTS = [
    ("1", "order 10"),
    ("29", "129"),
    ("12", "12.5"),
    ("12", "1.12"),
    ("12", "0.12"),
    ("5", "0,5"),
    ("12", "1,012"),
    ("12", "12,000"),
    ("23", "1,23,456"),
    ("234", "1.234,50"),
    ("5", "1e5"),
    ("100", "100k"),
    ("1", "1st"),
    ("3", "3½"),
    ("7", "７8"),
    ("5", "-5"),
    ("-5", "5"),
    ("-5", "10-5"),
    ("+5", "-5"),
    ("€5", "€5,50"),
    ("$5", "$5.50"),
    ("$5", "$50"),
    ("10%", "110%"),
    ("10%", "10.5%"),
    ("5 EUR", "15 EUR"),
    ("12kg", "112kg"),
    ("42", "0042"),
    ("0042", "42"),
    ("2", "v2"),
    ("12", "A-12"),
    ("A-1", "A-17"),
    ("A-1", "X-A-1"),
    ("A-17", "A-17-B"),
    ("A17", "A17B"),
    ("INV_1", "INV_12"),
    ("12", "12_3"),
    ("ab-12", "ab-12.txt"),
    ("12.5", "12.5.1"),
    ("10", "10.0.0.1"),
    ("127.0.0.1", "127.0.0.10"),
    ("17", "2026-03-17"),
    ("2026", "2026-03-01"),
    ("2024-03-01", "2024-03-012"),
    ("2024-03-01", "INV-2024-03-01"),
    ("10", "10:30"),
    ("3", "1/3"),
    ("12", "12-14"),
    ("555-1234", "1-555-1234"),
    ("cat", "concatenate"),
    ("order", "order_id"),
    ("rich", json.dumps({"city": "Zürich"})),
    ("cafe", unicodedata.normalize("NFD", "café")),
    ("20", "[100,200]"),
]


@pytest.mark.parametrize(("value", "text"), WHOLE)
@pytest.mark.parametrize("frame", ["{}", "it says {}, too"])
def test_a_whole_value_is_found(value: str, text: str, frame: str) -> None:
    framed = frame.format(text)
    assert contains_words(framed, value)
    assert SearchText(framed).contains(read_value(value))
    assert SearchText(framed).contains_verbatim(read_value(value))


@pytest.mark.parametrize(("value", "text"), PARTS)
@pytest.mark.parametrize("frame", ["{}", "it says {}, too"])
def test_a_part_of_another_value_is_not_found(value: str, text: str, frame: str) -> None:
    framed = frame.format(text)
    assert not contains_words(framed, value)
    assert not is_carried(value, framed)
    assert not SearchText(framed).contains(read_value(value))
    assert not SearchText(framed).contains_verbatim(read_value(value))


_VALUES = st.one_of(
    st.integers(-(10**12), 10**12).map(str),
    st.decimals(-(10**6), 10**6, places=2).map(str),
    st.integers(0, 10**9).map("{:,}".format),
    st.from_regex(r"[A-Z]{1,4}-\d{1,6}", fullmatch=True),
    st.from_regex(r"v?\d{1,3}(\.\d{1,3}){2,3}", fullmatch=True),
    st.dates().map(str),
    st.from_regex(r"[a-zéü]{1,10}", fullmatch=True),
)
_SEPARATORS = st.sampled_from([" ", "\n", "(", ")", '"', "'", ";", "=", "|", "*", ", ", ": ", ". ", "€", "，", "是"])


@given(_VALUES, _SEPARATORS, _SEPARATORS, st.text("ab1 ,.", max_size=5), st.text("ab1 ,.", max_size=5))
def test_a_value_between_separators_is_always_found(value: str, before: str, after: str, head: str, tail: str) -> None:
    if value.startswith("-") and before == ")":  # (3)-2 is a difference
        return
    assert find_whole(f"{head}{before}{value}{after}{tail}", value) is not None


@given(
    st.from_regex(r"\d{1,12}", fullmatch=True), st.from_regex(r"\d*", fullmatch=True), st.sampled_from(["", "€", "-"])
)
def test_a_number_inside_a_longer_one_is_never_found(number: str, more: str, mark: str) -> None:
    for longer in (f"{more}7{number}", f"{number}7{more}", f"{more}7{number}7", f"{number}.7{more}", f"7.{number}"):
        if longer.count(number) == 1:
            assert not contains_words(f"it is {mark}{longer}, too", number)
            assert not SearchText(f"[{longer}]").contains_verbatim(read_value(number))


@given(st.recursive(st.integers() | st.text(max_size=8), lambda inner: st.lists(inner, min_size=1, max_size=4)))
def test_the_values_of_a_json_list_are_found_one_by_one(document: object) -> None:
    compact = json.dumps([document], separators=(",", ":"))
    tokens = tokenize(compact)
    numbers = [compact[token.start : token.end] for token in tokens.tokens if token.kind == "number"]
    assert all(any(str(leaf) in (number, f"+{number}") for number in numbers) for leaf in _list_numbers(document))


def _list_numbers(document: object) -> list[int]:
    if isinstance(document, list):
        return [number for each in document for number in _list_numbers(each)]
    return [document] if isinstance(document, int) else []


@given(st.text(max_size=200))
def test_tokens_are_in_order_and_do_not_overlap(text: str) -> None:
    spans = [(token.start, token.end) for token in tokenize(text).tokens]
    assert all(start < end for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,234.50", "1234.50"), ("1.234,5", "1234.5"), ("5,50", "5.50"), ("1,234", "1234"), ("−3", "-3"), ("1e5", "1e5")],
)
def test_a_number_is_parsed_as_it_is_written(text: str, number: str) -> None:
    assert parse_number(text) == Decimal(number)


@pytest.mark.parametrize(
    ("value", "text", "carried"),
    [
        ("€5", "5.00 EUR", True),
        ("12 kg", "it weighs 12kg", True),
        ("7%", "7 percent", True),
        ("M 12", "K 12", False),
        ("room 12", "12 kg", False),
        ("上海1", "灯1", False),
    ],
)
def test_an_amount_is_carried_by_its_number(value: str, text: str, carried: bool) -> None:
    assert is_carried(value, text) is carried


def test_a_number_that_is_too_large_to_compute_with_is_not_parsed() -> None:
    assert parse_number("1e999999999999999999999") is None
    assert parse_number("1e9999") is None


def test_json_documents_are_found_in_a_text() -> None:
    text = 'Got {"a": [1, 2]} and [3] but not [x] or {1'
    assert [(text[start:end], value) for start, end, value in find_documents(text)] == [
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ("[3]", [3]),
    ]
