from __future__ import annotations

from itertools import islice
from random import Random

from promptiter.backprop.example_pool import Exchange, KnownInput
from promptiter.backprop.example_selection import ExampleSelector, SelectionStrategy


def exchange(case_id: str, text: str, output: str) -> Exchange:
    return Exchange(case_id=case_id, input=text, output=output)


def failing(case_id: str, text: str, wanted: str | None = None) -> KnownInput:
    return KnownInput(case_id=case_id, input=text, passed=False, wanted=wanted)


POOL = (
    exchange("a1", "red apple on a tree", "fruit"),
    exchange("a2", "green apple in the basket of my aunt", "fruit"),
    exchange("b", "hammer and nails", "tool"),
    exchange("c", "a cat", "animal"),
)


def select(
    strategy: SelectionStrategy, most: int, *inputs: KnownInput, weights: dict[str, float] | None = None
) -> list[str]:
    selector = ExampleSelector(POOL, inputs, strategy=strategy, weights=weights)
    return [each.case_id for each in next(selector.iterate(most, rng=Random(0)))]


def test_coverage_takes_one_example_for_each_kind_of_failure_the_most_useful_last() -> None:
    inputs = [failing("x", "a saw", "tool"), failing("y", "a pear", "fruit"), failing("z", "a plum", "fruit")]
    assert select("coverage", 2, *inputs) == ["b", "a1"]


def test_coverage_prefers_shared_words_where_answers_are_free_text() -> None:
    assert select("coverage", 1, failing("x", "nails for the wall"), failing("y", "a hammer")) == ["b"]


def test_an_example_does_not_cover_its_own_case() -> None:
    assert select("coverage", 1, failing("c", "a cat", "animal"), failing("x", "a saw", "tool")) == ["b"]


def test_cases_with_more_weight_are_covered_first() -> None:
    inputs = [failing("x", "a saw", "tool"), failing("y", "a pear", "fruit")]
    assert select("coverage", 1, *inputs, weights={"y": 3.0}) == ["a1"]
    assert select("coverage", 1, *inputs, weights={"x": 3.0}) == ["b"]


def test_diversity_takes_examples_that_differ() -> None:
    chosen = select("diversity", 3)
    assert {each.output for each in POOL if each.case_id in chosen} == {"fruit", "tool", "animal"}


def test_length_takes_the_shortest() -> None:
    assert select("length", 2) == ["b", "c"]


def test_selections_are_distinct_and_depend_on_the_seed_only() -> None:
    strategies: tuple[SelectionStrategy, ...] = ("coverage", "random")
    for strategy in strategies:
        selector = ExampleSelector(POOL, [failing("x", "a saw", "tool")], strategy=strategy)
        first, again = (list(islice(selector.iterate(3, rng=Random(1)), 8)) for _ in range(2))
        assert len(set(first)) == 8
        assert first == again


def test_an_empty_pool_gives_nothing() -> None:
    strategies: tuple[SelectionStrategy, ...] = ("coverage", "diversity", "length", "random")
    assert [list(ExampleSelector((), strategy=each).iterate(4, rng=Random(0))) for each in strategies] == [[]] * 4
