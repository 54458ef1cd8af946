from __future__ import annotations

from itertools import groupby
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from promptiter.engine.run_order import interleave_runs

RUNS = [(f"case-{case}", repeat) for repeat in range(2) for case in range(10)]
CASE_RUNS = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), unique=True, max_size=12)


@given(batch=st.lists(CASE_RUNS, min_size=1, max_size=4), segment=st.integers(1, 5))
def test_every_run_of_every_evaluation_is_made_once(batch: list[list[tuple[str, int]]], segment: int) -> None:
    order = interleave_runs(batch, seed="any", segment=segment)
    assert sorted(order) == sorted((place, run) for place, runs in enumerate(batch) for run in runs)


def test_both_evaluations_make_a_run_right_after_each_other_in_random_order() -> None:
    order = interleave_runs([RUNS, RUNS], seed="0")
    pairs = list(zip(order[::2], order[1::2], strict=True))
    assert all(first[1] == second[1] and first[0] != second[0] for first, second in pairs)
    assert {first[0] for first, _ in pairs} == {0, 1}, "neither is always first"
    assert [first[1] for first, _ in pairs] != RUNS, "cases are in random order, too"


def test_the_order_depends_on_the_seed_alone() -> None:
    assert interleave_runs([RUNS, RUNS], seed="0") == interleave_runs([RUNS, RUNS], seed="0")
    assert interleave_runs([RUNS, RUNS], seed="0") != interleave_runs([RUNS, RUNS], seed="1")


def test_segments_are_runs_of_one_evaluation_and_then_the_same_of_the_other() -> None:
    order = interleave_runs([RUNS, RUNS], seed="0", segment=4)
    segments = [order[start : start + 4] for start in range(0, len(order), 4)]
    for first, second in zip(segments[::2], segments[1::2], strict=True):
        assert {place for place, _ in first} != {place for place, _ in second}
        assert [run for _, run in first] == [run for _, run in second]
    longest = max(len(list(group)) for _, group in groupby(order, key=itemgetter(0)))
    assert longest <= 8, "two segments at most follow each other"


@given(count=st.integers(1, 60), most=st.integers(1, 40))
def test_there_are_several_segments_of_about_equal_size(count: int, most: int) -> None:
    runs = [(f"case-{number}", 0) for number in range(count)]
    made = [run for _, run in interleave_runs([runs, runs], seed="0", segment=most)]
    sizes = []
    while made:
        sizes.append(made.index(made[0], 1))  # where the other evaluation begins the same segment
        made = made[2 * sizes[-1] :]
    assert len(sizes) >= min(4, count)
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


def test_a_single_evaluation_keeps_its_order() -> None:
    assert interleave_runs([RUNS], seed="0") == [(0, run) for run in RUNS]
