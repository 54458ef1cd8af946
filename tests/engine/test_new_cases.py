"""What is known before the first call of a run about whether it can show its gain for new cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.engine.new_cases import find_obstacle_in_advance, is_promising
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.stats.final_test import FinalTestResult, Look
from promptiter.runlog.case_uses import CaseUse, list_case_digests
from promptiter.search.cheaper import ModelDownsizing
from tests.worlds import desk

VALIDATION = desk.eval_set("validation", 8)
USED = CaseUse(id="u", run_id="earlier", kind="try", validation=list_case_digests(VALIDATION)[:1])
ADVICE = "give a test set (`test`) of 8 cases or more"


def find(request: RunRequest, *uses: CaseUse, search: object = None, is_reviewed: bool = False) -> str | None:
    engine = desk.engine(desk.DRAFT)
    return find_obstacle_in_advance(engine.check(request), search or engine.search, uses, is_reviewed=is_reviewed)


def test_unused_validation_cases_may_show_it() -> None:
    assert find(desk.request(validation=VALIDATION)) is None


def test_cases_that_cannot_show_it_are_known_in_advance() -> None:
    request = desk.request(validation=VALIDATION)
    assert find(request, USED) == f"the validation cases were used before this run; {ADVICE}"
    assert find(request, search=ModelDownsizing()) == f"the search reads results of the validation cases; {ADVICE}"
    assert find(request, is_reviewed=True) == (
        f"patches are reviewed by someone who may see results of the validation cases; {ADVICE}"
    )
    few = desk.request(validation=desk.eval_set("validation", 7))
    assert find(few) == f"7 validation cases cannot decide about new cases; {ADVICE}"
    once = RunRequest(cases=VALIDATION, run_id="r")
    assert find(once) == f"the search learned from these cases; {ADVICE}"
    untested = replace(request, final_test=None)
    assert find(untested) == "the final test is turned off; remove `final_test: false`"


@pytest.mark.parametrize(("count", "is_enough"), [(8, True), (7, False)])
def test_a_test_set_must_have_enough_different_cases(count: int, is_enough: bool) -> None:
    test = desk.eval_set("test", count)
    copies = EvalSet(id="test", cases=(*test.cases, *(replace(each, id=f"{each.id}-again") for each in test.cases)))
    found = find(desk.request(validation=VALIDATION, test=copies), USED)
    assert found == (
        None
        if is_enough
        else f"the validation cases were used before this run; {ADVICE} (this one has 14 with 7 different inputs)"
    )


@pytest.mark.parametrize(
    ("p_value", "has_run_noise", "is_worth_more"),
    [(0.1, True, True), (0.001, True, True), (0.2, True, False), (0.1, False, False), (0.001, False, False)],
)
def test_more_repeats_are_run_only_if_there_is_noise_and_a_chance(
    p_value: float, has_run_noise: bool, is_worth_more: bool
) -> None:
    look = Look(repeats=2, gain=0.1, p_value=p_value, alpha=0.0125, has_run_noise=has_run_noise)
    result = FinalTestResult(scope="new cases", outcome="not_shown", looks=(look,), reason="")
    assert is_promising(result) is is_worth_more
    assert not is_promising(replace(result, looks=()))
