from __future__ import annotations

from itertools import chain, combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.stats.shares import next_to_drop, shapley_shares

PARTS = "abcd"
SETS = [frozenset(chosen) for chosen in chain(*(combinations(PARTS, size) for size in range(5)))]
VALUES = st.lists(st.integers(-8, 8), min_size=16, max_size=16).map(
    lambda values: dict(zip(SETS, (value / 8 for value in values), strict=True))
)


@given(VALUES)
def test_shares_add_up_to_the_gain_of_the_whole(values: dict[frozenset[str], float]) -> None:
    shares = shapley_shares(PARTS, values.__getitem__)
    assert sum(shares.values()) == pytest.approx(values[frozenset(PARTS)] - values[frozenset()])


@given(VALUES)
def test_a_share_is_the_mean_over_all_orders(values: dict[frozenset[str], float]) -> None:
    added = dict.fromkeys(PARTS, 0.0)
    orders = list(permutations(PARTS))
    for order in orders:
        for at, part in enumerate(order):
            added[part] += values[frozenset(order[: at + 1])] - values[frozenset(order[:at])]
    shares = shapley_shares(PARTS, values.__getitem__)
    assert shares == pytest.approx({part: total / len(orders) for part, total in added.items()})


def test_two_parts_that_do_the_same_share_what_they_do() -> None:
    def value(parts: frozenset[str]) -> float:
        return 0.5 * bool(parts & {"a", "b"}) + 0.2 * ("c" in parts)

    assert shapley_shares("abc", value) == pytest.approx({"a": 0.25, "b": 0.25, "c": 0.2})


def test_the_most_harmful_part_goes_first() -> None:
    assert next_to_drop({"a": 0.0, "b": -0.1, "c": 0.3}) == "b"
    assert next_to_drop({"a": 0.1}) is None
    assert next_to_drop({}) is None


def test_shares_of_many_parts_are_refused_with_their_price() -> None:
    with pytest.raises(SetupError, match="8,192 values"):
        shapley_shares("abcdefghijklm", lambda _: 0.0)
