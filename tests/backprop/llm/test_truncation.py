from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.backprop.llm.truncation import (
    MOST_WINDOWS,
    PromptSection,
    Quote,
    approximate_tokens,
    compose,
    share,
    truncate,
)

GAP = re.compile(r"\n\[… ([\d,]+) characters left out …\]\n")
ANYTHING = st.text(st.characters(exclude_categories=()), max_size=60)
LONG = st.builds(lambda text, times: text * times, ANYTHING, st.integers(0, 60))
MARKED = st.builds(
    lambda text, times: text * times, st.sampled_from(["<data ", "</data>", "< / DATA>"]), st.integers(1, 90)
)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abc", 1),
        ("abcd", 2),
        ("é", 1),
        ("漢字", 3),
        ("😀", 2),
        ("1234", 2),
        ("The order is late.", 7),
    ],
)
def test_tokens_are_estimated_from_bytes(text: str, tokens: int) -> None:
    assert approximate_tokens(text) == tokens


@given(LONG, LONG)
def test_the_tokens_of_parts_are_never_fewer_than_those_of_the_whole(one: str, other: str) -> None:
    assert approximate_tokens(one + other) <= approximate_tokens(one) + approximate_tokens(other)


def test_a_text_that_fits_stays_as_it_is() -> None:
    assert truncate("a" * 30, 10) == "a" * 30
    assert truncate("", 0) == ""


def test_a_long_text_keeps_its_beginning_and_end_and_says_what_is_left_out() -> None:
    text = "".join(f"{number:05}" for number in range(2_000))
    shown = truncate(text, 200)
    head, count, tail = GAP.split(shown)
    assert text.startswith(head)
    assert text.endswith(tail)
    assert len(head) + len(tail) + int(count.replace(",", "")) == len(text)
    assert len(head) > len(tail) > 140


def test_text_around_a_literal_is_kept() -> None:
    text = "x" * 5_000 + " the order A-17 is late " + "y" * 9_000 + " price 42 " + "z" * 5_000
    shown = truncate(text, 300, around=["A-17", "42", "not there", ""])
    assert " the order A-17 is late " in shown
    assert " price 42 " in shown
    assert len(GAP.findall(shown)) == 3
    assert approximate_tokens(shown) <= 300


def test_a_gap_shorter_than_its_note_is_shown_instead() -> None:
    text = "a" * 100 + "NEEDLE" + "b" * 400
    shown = truncate(text, 120, around=["NEEDLE"])
    assert shown.startswith("a" * 100 + "NEEDLE")
    assert len(GAP.findall(shown)) == 1


def test_no_more_windows_are_shown_than_are_readable() -> None:
    text = "".join(f"{'.' * 3_000}needle-{number}" for number in range(20))
    literals = [f"needle-{number}" for number in range(20)]
    assert len(GAP.findall(truncate(text, 2_000, around=literals))) == MOST_WINDOWS + 1
    assert len(GAP.findall(truncate(text, 120, around=literals))) == 2


def test_without_room_for_a_note_an_ellipsis_is_shown() -> None:
    assert truncate("a" * 1_000, 10) == "[…]"
    assert truncate("a" * 1_000, 2) == ""
    assert truncate("a", -5) == ""


@given(LONG, st.integers(-3, 400), st.lists(ANYTHING, max_size=8))
def test_a_cut_text_fits_and_can_be_sent(text: str, limit: int, around: list[str]) -> None:
    shown = truncate(text, limit, around=around)
    assert approximate_tokens(shown) <= max(0, limit)
    shown.encode()
    pieces = GAP.split(shown)[::2]
    spelled = text.encode("utf-8", "backslashreplace").decode()
    assert shown == "[…]" or all(piece in spelled for piece in pieces)


@given(st.integers(0, 500), st.lists(st.tuples(st.integers(0, 300), st.integers(1, 9)), max_size=12))
def test_shares_fit_and_use_all_the_room_that_is_wanted(limit: int, wanted: list[tuple[int, int]]) -> None:
    given_rooms = share(limit, wanted)
    assert sum(given_rooms) <= limit
    assert all(0 <= room <= size for room, (size, _) in zip(given_rooms, wanted, strict=True))
    hungry = [number for number, (size, _) in enumerate(wanted) if given_rooms[number] < size]
    assert not hungry or limit - sum(given_rooms) < len(wanted)
    weights = sum(weight for _, weight in wanted)
    for number in hungry:
        assert given_rooms[number] >= limit * wanted[number][1] // weights - 1


@given(st.builds(Quote, st.just("text"), LONG | MARKED), st.integers(0, 300))
def test_a_quote_fits_and_cannot_be_closed_from_inside(quote: Quote, more: int) -> None:
    limit = approximate_tokens('<data name="text">\n\n</data>') + 1 + more
    block = quote.fit(limit)
    assert approximate_tokens(block) < limit or not block.removeprefix('<data name="text">\n').removesuffix("\n</data>")
    assert len(re.findall(r"<\s*/?\s*data\b", block, re.IGNORECASE)) == 2


def test_a_quote_that_fits_is_not_cut() -> None:
    for length in range(60):
        quote = Quote("text", "a" * length)
        assert "a" * length in quote.fit(quote.size)


def sections(texts: list[list[str]], weights: list[int]) -> list[PromptSection]:
    return [
        PromptSection(title=f"# {number}", quotes=tuple(Quote("text", text) for text in quotes), weight=weight)
        for number, (quotes, weight) in enumerate(zip(texts, weights, strict=True))
    ]


@given(
    st.lists(st.tuples(st.lists(LONG | MARKED, max_size=6), st.integers(1, 9)), min_size=1, max_size=9),
    st.integers(20, 1_500),
)
def test_composed_sections_fit_whatever_they_hold(parts: list[tuple[list[str], int]], limit: int) -> None:
    made = sections([texts for texts, _ in parts], [weight for _, weight in parts])
    text = compose(made, limit, around=["a"])
    assert approximate_tokens(text) <= limit
    assert text == compose(made, limit, around=["a"])
    if sum(section.size for section in made) <= limit:
        assert "left out" not in re.sub(r"(?s)<data.*?</data>", "", text)


def test_quotes_that_do_not_fit_are_left_out_and_counted() -> None:
    (section,) = sections([["text " * 100] * 50], [1])
    text = section.fit(600)
    shown = text.count("<data")
    assert 5 < shown < 20
    assert text.endswith(f"[… {50 - shown} more left out …]")


def test_the_lightest_sections_are_left_out_first() -> None:
    text = compose(sections([["light " * 90], ["heavy " * 90], ["light " * 90]], [1, 9, 1]), 220)
    assert "heavy" in text
    assert text.endswith("[… sections left out: 1 …]")
    assert text.startswith("# 0")


def test_a_section_that_needs_all_of_its_quotes_is_left_out_rather_than_shown_in_pieces() -> None:
    made = [replace(each, needs_all=True) for each in sections([["first " * 90, "second " * 90]] * 3, [1, 1, 1])]
    text = compose(made, 400)
    assert text.count("<data") in (2, 4)
    assert "more left out" not in text
    assert "sections left out" in text


def test_a_heavier_section_keeps_more_of_its_text() -> None:
    text = compose(sections([["a" * 3_000], ["b" * 3_000]], [1, 4]), 400)
    assert text.count("b") > 2 * text.count("a")
