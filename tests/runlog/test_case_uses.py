from __future__ import annotations

import pytest

from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.runlog.case_uses import (
    CaseUse,
    CaseUseHistory,
    MemoryCaseUses,
    count_seen_cases,
    list_case_digests,
    list_earlier_uses,
)


def search(number: int, *, train: tuple[str, ...] = (), validation: tuple[str, ...] = ()) -> CaseUse:
    return CaseUse(id=f"u{number}", run_id=f"r{number}", kind="search", train=train, validation=validation)


async def test_a_use_is_kept_once_and_in_order() -> None:
    uses = MemoryCaseUses()
    for number in (1, 2, 1):
        found = await uses.add(search(number))
    assert [use.id for use in found] == ["u1", "u2"]
    assert [use.id for use in list_earlier_uses(found, "u2")] == ["u1"]


def test_cases_are_known_by_their_input_and_not_by_their_id_or_answer() -> None:
    def digests(case_id: str, user: str, expected: str) -> tuple[str, ...]:
        case = EvalCase(id=case_id, turns=(Turn(user=user, expected=expected),))
        return list_case_digests(EvalSet(id="set", cases=(case,)))

    assert digests("a", "Where is it?", "here") == digests("b", "where  is it?", "there")
    assert digests("a", "Where is it?", "here") != digests("a", "Where was it?", "here")


def test_cases_that_were_used_for_any_purpose_are_seen() -> None:
    earlier = [
        search(1, train=("a", "b"), validation=("c",)),
        CaseUse(id="t", run_id="r", kind="test_set", test=("d",)),
    ]
    assert count_seen_cases(("a", "c", "d", "e"), earlier) == 3


@pytest.mark.parametrize(
    ("history", "text"),
    [
        (CaseUseHistory(validation_cases=9), ()),
        (
            CaseUseHistory(validation_cases=9, earlier_runs=6, seen_cases=9),
            ("run 7 on these 9 validation cases",),
        ),
        (
            CaseUseHistory(validation_cases=9, earlier_runs=1, seen_cases=2),
            ("run 2 on these 9 validation cases, 2 of which were used before",),
        ),
        (
            CaseUseHistory(validation_cases=9, seen_cases=1),
            ("used before by runs or `promptiter try`: 1 of 9 validation cases",),
        ),
        (CaseUseHistory(test_opened=0), ()),
        (CaseUseHistory(test_opened=2), ("the test set was opened twice before",)),
        (
            CaseUseHistory(test_opened=3, seen_test_cases=1),
            (
                "the test set was opened 3 times before",
                "used before in a search or with `promptiter try`: 1 test case",
            ),
        ),
    ],
)
def test_the_history_of_cases_in_words(history: CaseUseHistory, text: tuple[str, ...]) -> None:
    assert history.describe() == text
