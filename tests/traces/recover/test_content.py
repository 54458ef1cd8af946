"""Whose text a step read, by passages of words."""

from __future__ import annotations

import pytest

from traces.otel.recover.content import STRIDE, WINDOW, GivenTexts, TextIndex

CERTAIN = WINDOW + STRIDE - 1


def find(produced: str, read: str, given: str = "") -> bool:
    index = TextIndex(GivenTexts([given]))
    index.add(0, [produced])
    return index.find_producers([read]) == {(0,)}


def write(start: int, words: int) -> str:
    return " ".join(f"word{number}" for number in range(start, start + words))


@pytest.mark.parametrize("before", range(STRIDE))
@pytest.mark.parametrize("start", [0, 5, 40 - CERTAIN])
def test_eleven_words_of_a_long_text_are_found_wherever_they_are(before: int, start: int) -> None:
    quote = write(start, CERTAIN)
    assert find(write(0, 40), f"{write(100, 20 + before)} {quote} {write(200, 30)}")


@pytest.mark.parametrize("before", range(STRIDE))
@pytest.mark.parametrize("start", range(WINDOW))
def test_eight_words_of_a_short_text_are_found_wherever_they_are(before: int, start: int) -> None:
    quote = write(start, WINDOW)
    assert find(write(0, 2 * WINDOW - 1), f"{write(100, 20 + before)} {quote} {write(200, 30)}")


@pytest.mark.parametrize("more", range(STRIDE))
def test_eight_words_at_the_end_of_what_was_read_are_found(more: int) -> None:
    assert find(write(0, 40), f"{write(100, 20 + more)} {write(7, WINDOW)}")


def test_seven_words_of_a_long_text_are_not_enough() -> None:
    assert not find(write(0, 40), write(7, WINDOW - 1))


def test_what_the_run_was_given_is_not_found() -> None:
    assert not find(write(0, 20), write(0, 20), given=write(0, 20))
