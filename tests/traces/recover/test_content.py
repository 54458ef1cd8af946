"""Whose text a step read, by whole texts, lines and passages of words."""

from __future__ import annotations

import pytest

from traces.otel.recover.content import WINDOW, GivenTexts, TextIndex


def make_index(*produced: str, given: str = "") -> TextIndex:
    index = TextIndex(GivenTexts([given]))
    for place, text in enumerate(produced):
        index.add(place, [text])
    return index


def find(produced: str, read: str, given: str = "") -> bool:
    return make_index(produced, given=given).find_passages(read) == {(0,)}


def write(start: int, words: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + words))


@pytest.mark.parametrize("length", [2 * WINDOW - 1, 40])
@pytest.mark.parametrize("before", range(WINDOW))
@pytest.mark.parametrize("start", range(WINDOW))
def test_eight_words_are_found_wherever_they_are(length: int, before: int, start: int) -> None:
    quote = write(start, WINDOW)
    assert find(write(0, length), f"{write(100, 20 + before)} {quote} {write(200, 30)}")


@pytest.mark.parametrize("inside", range(1, WINDOW))
def test_eight_words_across_the_end_of_a_known_line_are_found(inside: int) -> None:
    line = write(0, 40)
    index = make_index(line, f"{write(40 - inside, inside)} {write(100, WINDOW - inside)}")
    assert index.find_passages(f"{line}\n{write(100, WINDOW - inside)} {write(300, 5)}") == {(0,), (1,)}


def test_a_line_is_from_who_produced_all_of_it() -> None:
    index = make_index(write(0, 40), write(10, 20))
    assert index.find_passages(f"Notes:\n{write(0, 40)}") == {(0,)}


def test_seven_words_of_a_long_text_are_not_enough() -> None:
    assert not find(write(0, 40), write(7, WINDOW - 1))


def test_what_the_run_was_given_is_not_found() -> None:
    assert not find(write(0, 20), write(0, 20), given=write(0, 20))


def test_a_whole_text_is_found_even_if_all_its_words_were_given() -> None:
    index = make_index(write(3, 20), given=write(0, 40))
    assert index.find_whole(f"{write(3, 20)}\n") == (0,)


@pytest.mark.parametrize("read", [f"{write(0, 20)}\n{write(50, 20)}", write(50, 20)], ids=["the text", "a line of it"])
def test_a_whole_text_that_was_given_is_not_found(read: str) -> None:
    assert make_index(read, given=f"{write(0, 20)}\n{write(50, 20)}\n").find_whole(read) == ()
