from __future__ import annotations

from random import Random

import pytest

from promptiter.evaluation.stats.search_differences import ComparedFigure, compare_figures
from tests.worlds.search_tables import draw_table

pytestmark = pytest.mark.slow

FIGURES: tuple[ComparedFigure, ...] = ("score", "usd", "calls")


def test_equal_searches_are_said_to_differ_in_at_most_5_percent_of_tables() -> None:
    rng, claims = Random(1), 0
    for _ in range(400):  # 2,000 in benchmarks.bench_searches
        [found] = compare_figures(draw_table(rng, common=0.3), FIGURES)
        claims += any(each.is_shown for each in found.figures)
    assert claims / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_half_of_the_calls_is_found_with_ten_seeds() -> None:
    rng = Random(2)
    pairs = [compare_figures(draw_table(rng, ratios=(0.5, 1.0)), FIGURES)[0] for _ in range(200)]
    found = [pair.figure("calls") for pair in pairs]
    assert sum(each is not None and each.is_better for each in found) / 200 >= 0.8


@pytest.mark.long
def test_several_searches_that_are_alike_are_rarely_said_to_differ() -> None:
    rng, claims = Random(3), 0
    for _ in range(200):
        found = compare_figures(draw_table(rng, ratios=(1.0, 1.0, 1.0, 1.0)), FIGURES)
        claims += any(figure.is_shown for each in found for figure in each.figures)
    assert claims / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_few_seeds_show_nothing_however_large_the_difference(seeds: int) -> None:
    table = draw_table(Random(4), seeds=seeds, ratios=(0.01, 1.0), gains=(0.0, -0.7))
    [found] = compare_figures(table, FIGURES)
    assert not found.has_enough_seeds
    assert not any(each.is_shown for each in found.figures)


def test_costs_are_compared_by_their_ratio() -> None:
    runs = {
        "a": {seed: {"calls": 50.0 * 2**seed} for seed in range(6)},
        "b": {seed: {"calls": 100.0 * 2**seed} for seed in range(6)},
    }
    [found] = compare_figures(runs, ("calls",))  # type: ignore[arg-type]
    [calls] = found.figures
    assert (calls.difference, calls.low, calls.high) == pytest.approx((0.5, 0.5, 0.5))
    assert (calls.p_value, calls.is_better, calls.is_worse) == (2 / 2**6, True, False)


def test_a_missing_figure_leaves_out_its_seed_for_that_figure() -> None:
    table = draw_table(Random(5), seeds=8, ratios=(0.2, 1.0))
    table["a"][3] = {**table["a"][3], "usd": None}
    del table["b"][7]
    [found] = compare_figures(table, FIGURES)
    assert found.seeds == 7
    assert [(each.figure, each.pairs) for each in found.figures] == [("score", 7), ("usd", 6), ("calls", 7)]


def test_a_figure_that_no_seed_has_is_left_out() -> None:
    runs = {name: {0: {"score": 1.0, "usd": None}} for name in "ab"}
    [found] = compare_figures(runs, ("score", "usd"))  # type: ignore[arg-type]
    assert [each.figure for each in found.figures] == ["score"]
    assert found.figures[0].ties == 1


def test_a_run_that_took_nothing_counts_as_one_call() -> None:
    runs = {"a": {0: {"calls": 0}}, "b": {0: {"calls": 10}}}
    [found] = compare_figures(runs, ("calls",))  # type: ignore[arg-type]
    assert found.figures[0].difference == pytest.approx(0.1)


def test_dollars_are_compared_with_those_of_a_run_that_was_free() -> None:
    runs = {"free": {seed: {"usd": 0.0} for seed in range(6)}, "paid": {seed: {"usd": 0.05} for seed in range(6)}}
    [found] = compare_figures(runs, ("usd",))  # type: ignore[arg-type]
    assert found.figures[0].is_better
    assert found.figures[0].difference == pytest.approx(0.0001 / 0.05)


def test_searches_without_a_common_seed_have_no_figures() -> None:
    [found] = compare_figures({"a": {0: {"score": 1.0}}, "b": {1: {"score": 0.0}}}, ("score",))
    assert (found.seeds, found.figures) == (0, ())


def test_each_pair_of_three_searches_is_compared() -> None:
    found = compare_figures(draw_table(Random(6), ratios=(0.3, 1.0, 1.0)), ("calls",))
    assert [(each.first, each.second) for each in found] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [each.figures[0].is_better for each in found] == [True, True, False]
    assert {each.needed_seeds for each in found} == {7}


def test_results_seen_earlier_count_as_comparisons() -> None:
    table = draw_table(Random(7), seeds=6, ratios=(0.1, 1.0))
    [once], [again] = (compare_figures(table, ("calls",), results=results) for results in (1, 2))
    assert (once.figures[0].p_value, once.figures[0].is_shown, once.needed_seeds) == (2 / 2**6, True, 6)
    assert (again.figures[0].p_value, again.figures[0].is_shown, again.needed_seeds) == (4 / 2**6, False, 7)


def test_stopping_at_the_first_of_three_results_that_claims_something_is_corrected() -> None:
    rng, claims = Random(8), 0
    for _ in range(200):
        table = draw_table(rng, seeds=11)
        parts = [{name: dict(list(runs.items())[:seeds]) for name, runs in table.items()} for seeds in (6, 9, 11)]
        looks = [compare_figures(part, FIGURES, results=at)[0] for at, part in enumerate(parts, start=1)]
        claims += any(figure.is_shown for look in looks for figure in look.figures)
    assert claims / 200 <= 0.05 + 3 * (0.05 * 0.95 / 200) ** 0.5


def test_a_seed_whose_cheaper_run_the_budget_cut_is_a_tie_in_costs() -> None:
    runs = {
        "a": {seed: {"score": 0.5, "calls": 50.0} for seed in range(6)},
        "b": {seed: {"score": 0.6, "calls": 100.0} for seed in range(6)},
    }
    [found] = compare_figures(runs, ("score", "calls"), cut={"a": [0, 1], "b": [2]})  # type: ignore[arg-type]
    score, calls = found.figures
    assert (score.ties, calls.ties, calls.pairs) == (0, 2, 6)
    assert calls.difference == pytest.approx(0.5 ** (4 / 6))
