from __future__ import annotations

from itertools import product

from promptiter.llm.judgement import MAX_JUDGEMENTS, MAX_SAMPLES, judge_again, judge_repeat, keep_repeats, place_call
from promptiter.llm.messages import CallSite

SITE = CallSite(role="judge", repeat=2)


def place(repeat: int, number: int, sample: int) -> int:
    with judge_repeat(repeat), judge_again(number):
        return place_call(CallSite(role="judge", repeat=sample)).repeat


def test_each_sample_of_each_judgement_of_each_repeat_has_its_own_place() -> None:
    places = [
        place(repeat, number, sample)
        for repeat, number, sample in product((0, 1, 7, 40_000), (0, 1, MAX_JUDGEMENTS - 1), (0, 1, MAX_SAMPLES - 1))
    ]
    assert len(set(places)) == len(places)


def test_outside_of_scoring_and_in_the_first_repeat_the_place_is_the_given_one() -> None:
    assert place_call(SITE) == SITE
    with judge_repeat(0):
        assert place_call(SITE) == SITE


def test_a_call_that_has_its_place_keeps_it() -> None:
    with judge_repeat(3):
        assert place_call(SITE) != SITE
        with keep_repeats():
            assert place_call(SITE) == SITE
