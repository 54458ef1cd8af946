from __future__ import annotations

import random
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Scenario, Turn
from promptiter.evaluation.data.splits import check_disjoint, split
from promptiter.llm.messages import Message


def case(case_id: str, user: str, *, expected: str | None = None) -> EvalCase:
    return EvalCase(id=case_id, turns=(Turn(user=user, expected=expected),))


def numbered_cases(count: int, *, start: int = 0) -> EvalSet:
    return EvalSet(id="s", cases=tuple(case(f"c{n}", f"question {n}") for n in range(start, start + count)))


def ids(eval_set: EvalSet) -> list[str]:
    return [case.id for case in eval_set.cases]


shares = st.lists(st.integers(0, 10), min_size=4, max_size=4).filter(lambda weights: sum(weights[:3]) > 0)


@given(st.integers(3, 40), shares, st.integers(0, 99), st.integers(0, 99))
def test_sets_are_disjoint_near_their_shares_and_independent_of_order(
    count: int, weights: list[int], seed: int, order: int
) -> None:
    eval_set = numbered_cases(count)
    train, validation, test = (weight / sum(weights) for weight in weights[:3])
    parts = split(eval_set, train=train, validation=validation, test=test, seed=seed)

    dealt = [*ids(parts.train), *ids(parts.validation), *ids(parts.test)]
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= set(ids(eval_set))
    if weights[3] == 0:
        assert len(dealt) == count
    for part, share in ((parts.train, train), (parts.validation, validation), (parts.test, test)):
        assert abs(len(part.cases) - share * count) < 3
        assert bool(part.cases) == (share > 0)
    check_disjoint(parts.train, parts.validation, parts.test)

    shuffled = list(eval_set.cases)
    random.Random(order).shuffle(shuffled)
    again = replace(eval_set, cases=tuple(shuffled))
    assert split(again, train=train, validation=validation, test=test, seed=seed) == parts


def test_shares_are_met_exactly_when_they_can_be() -> None:
    parts = split(numbered_cases(20), train=0.6, validation=0.3, test=0.1, seed=1)
    assert [len(part.cases) for part in (parts.train, parts.validation, parts.test)] == [12, 6, 2]
    assert [part.id for part in (parts.train, parts.validation, parts.test)] == ["s-train", "s-validation", "s-test"]


def test_a_share_of_zero_is_an_empty_set() -> None:
    parts = split(numbered_cases(4), train=0.5, validation=0.5, seed=1)
    assert (len(parts.train.cases), len(parts.validation.cases), parts.test.cases) == (2, 2, ())


def test_cases_beyond_the_shares_are_in_no_set() -> None:
    parts = split(numbered_cases(10), train=0.5, validation=0.2, seed=1)
    assert (len(parts.train.cases), len(parts.validation.cases)) == (5, 2)


def test_a_tiny_share_still_gets_a_case() -> None:
    parts = split(numbered_cases(3), train=0.98, validation=0.01, test=0.01, seed=1)
    assert [len(part.cases) for part in (parts.train, parts.validation, parts.test)] == [1, 1, 1]
    parts = split(numbered_cases(3), train=0.32, validation=0.32, test=0.04, seed=1)
    assert [len(part.cases) for part in (parts.train, parts.validation, parts.test)] == [1, 1, 1]


def test_the_split_depends_on_the_seed() -> None:
    dealt = {tuple(ids(split(numbered_cases(20), train=0.5, validation=0.5, seed=seed).train)) for seed in range(10)}
    assert len(dealt) == 10


def test_the_split_depends_on_content_and_not_on_ids() -> None:
    renamed = EvalSet(id="s", cases=tuple(replace(case, id=f"x{n}") for n, case in enumerate(numbered_cases(20).cases)))
    one = split(numbered_cases(20), train=0.5, validation=0.5, seed=3)
    other = split(renamed, train=0.5, validation=0.5, seed=3)
    assert [case.turns for case in one.train.cases] == [case.turns for case in other.train.cases]


def test_cases_that_are_alike_stay_together() -> None:
    twins = [case(f"twin{n}", f"question  {n} ", expected="other") for n in range(10)]
    eval_set = EvalSet(id="s", cases=(*numbered_cases(10).cases, *twins))
    for seed in range(5):
        parts = split(eval_set, train=0.5, validation=0.5, seed=seed)
        check_disjoint(parts.train, parts.validation)
        assert len(parts.train.cases) == len(parts.validation.cases) == 10


def test_a_split_is_frozen() -> None:
    parts = split(numbered_cases(2), train=0.5, validation=0.5, seed=1)
    with pytest.raises(FrozenInstanceError):
        parts.train = parts.test  # type: ignore[misc]


@pytest.mark.parametrize(
    ("count", "train", "validation", "message"),
    [
        (1, 0.5, 0.5, r"eval set 's' has 1 different cases, too few for 2 parts \(train, validation\); add cases"),
        (0, 1.0, 0.0, "has 0 different cases"),
        (9, 0.9, 0.2, "add up to 1.1; make them add up to at most 1"),
        (9, -0.1, 0.2, "the share of train is -0.1"),
        (9, 0.1, float("nan"), "the share of validation is nan"),
        (9, 0.0, 0.0, "are all 0"),
    ],
)
def test_shares_that_cannot_be_met_are_errors(count: int, train: float, validation: float, message: str) -> None:
    with pytest.raises(EvalSetError, match=message):
        split(numbered_cases(count), train=train, validation=validation, seed=1)


def test_sets_without_common_cases_are_disjoint() -> None:
    check_disjoint(numbered_cases(5), numbered_cases(5, start=5), numbered_cases(5, start=10))


def test_equal_ids_of_different_cases_do_not_overlap() -> None:
    check_disjoint(EvalSet(id="a", cases=(case("1", "x"),)), EvalSet(id="b", cases=(case("1", "y"),)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (case("a", "What is 2+2?", expected="4"), case("b", "What is 2+2?", expected="4")),
        (case("a", "What is 2+2?", expected="4"), case("b", " what IS\n2+2? ", expected="four")),
        (
            EvalCase(id="a", scenario=Scenario(starting_prompt="Hi", plan="refund")),
            EvalCase(id="b", scenario=Scenario(starting_prompt="hi ", plan="Refund")),
        ),
        (case("a", "Hi"), EvalCase(id="b", mode="trace", actual=(Turn(user="hi", expected="hello"),))),
    ],
)
def test_cases_with_the_same_input_overlap_whatever_their_ids(one: EvalCase, other: EvalCase) -> None:
    with pytest.raises(EvalSetError, match="train and validation share 1 case: 'a' = 'b'; keep each case in one"):
        check_disjoint(EvalSet(id="x", cases=(one,)), EvalSet(id="y", cases=(other,)))


def test_the_same_question_in_another_context_or_state_is_another_case() -> None:
    base = case("a", "Summarise it.")
    check_disjoint(
        EvalSet(id="x", cases=(base,)),
        EvalSet(id="y", cases=(replace(base, context=(Message("user", "a document"),)),)),
        EvalSet(id="z", cases=(replace(base, state={"document": 2}),)),
    )


def test_an_overlap_lists_five_ids_and_counts_the_rest() -> None:
    with pytest.raises(
        EvalSetError, match="train and validation share 7 cases: 'c0', 'c1', 'c2', 'c3', 'c4' and 2 more;"
    ):
        check_disjoint(numbered_cases(9), numbered_cases(7))


def test_every_pair_of_sets_is_compared() -> None:
    with pytest.raises(
        EvalSetError, match="train and test share 1 case: 'c1'; validation and test share 2 cases: 'c2', 'c3'; keep"
    ):
        check_disjoint(numbered_cases(2), numbered_cases(2, start=2), numbered_cases(3, start=1))
