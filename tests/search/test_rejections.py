from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.search.rejections import MOST_KEPT, Rejections
from promptiter.stages.optimizer import Rejection

MANY = 3 * MOST_KEPT
kinds = st.sampled_from(["tried", "tried", "tried_together", "refused", "vetoed"])


def rejection(number: int, surface_id: str = "a#instruction", kind: str = "tried") -> Rejection:
    return Rejection(surface_id=surface_id, value=f"text {number}", reason="no", kind=kind)  # type: ignore[arg-type]


def test_only_the_latest_rejections_of_a_surface_are_kept_and_all_are_counted() -> None:
    known = Rejections()
    for number in range(MANY):
        known.add([rejection(number), rejection(number, "b#instruction")])
    assert known.for_surface("a#instruction") == tuple(rejection(number) for number in range(MANY - MOST_KEPT, MANY))
    assert len(known.for_surface("b#instruction")) == MOST_KEPT
    assert known.for_surface("c#instruction") == ()
    assert known.count == 2 * MANY


@pytest.mark.slow
@given(st.lists(kinds, min_size=MANY // 2, max_size=MANY))
def test_vetoes_are_kept_in_order(kinds: list[str]) -> None:
    known = Rejections()
    many = [rejection(number, kind=kind) for number, kind in enumerate(kinds)]
    known.add(many)
    others = [each for each in many if each.kind != "vetoed"][-MOST_KEPT:]
    vetoed = [each for each in many if each.kind == "vetoed"]
    assert known.for_surface("a#instruction") == tuple(each for each in many if each in others or each in vetoed)
    assert known.count == len(many)
    known.forget_all_but_vetoes()
    assert known.for_surface("a#instruction") == tuple(vetoed)
    assert known.count == len(vetoed)
