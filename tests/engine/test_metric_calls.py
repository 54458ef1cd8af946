"""`max_metric_calls`: a hard cap on the cases that a run evaluates, from the baseline to the final test."""

from __future__ import annotations

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.metric_calls import MetricCalls, count_calls, name_call
from promptiter.engine.request import RunRequest
from promptiter.errors import BudgetEndedError, RequestError
from promptiter.evaluation.data.case import EvalSet
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.results import RunResult
from tests.worlds import desk

TRAIN, VALIDATION = desk.eval_set("train", 4), desk.eval_set("validation", 4)
TEST = desk.eval_set("test", 8)
BASELINE, FINAL_TEST = 4, 8
THOROUGH = FinalTest()


async def run(cap: int | None, *, test: EvalSet | None = None, final_test: FinalTest | None = THOROUGH) -> RunResult:
    engine = Engine(desk.agent(), desk.evaluator(), search=desk.Tries(desk.DRAFT, desk.POLISH))
    request = RunRequest(
        train=TRAIN, validation=VALIDATION, test=test, final_test=final_test, max_metric_calls=cap, run_id="r"
    )
    return await engine.run(request)


def count(result: RunResult) -> int:
    return count_calls((*result.evaluations, *(each for one in result.rounds for each in one.all_evaluations)))


@pytest.mark.parametrize("test", [None, pytest.param(TEST, marks=pytest.mark.slow)])
async def test_a_run_never_evaluates_more_cases_than_allowed_and_the_final_test_is_always_run(
    test: EvalSet | None,
) -> None:
    whole = await run(None, test=test)
    needed, least = count(whole), BASELINE + FINAL_TEST + (0 if test is None else 16)
    assert (await run(needed, test=test)).verdict == whole.verdict
    reasons, tested = set(), 0
    for cap in range(least + 1, needed, 4):
        result = await run(cap, test=test)
        assert count(result) <= cap
        reasons.add(result.stop_reason)
        if result.working_profile != result.initial_profile:
            assert result.conclusion is not None
            assert result.conclusion.results
            tested += 1
    assert "max_metric_calls" in reasons
    assert tested


async def test_a_cap_that_leaves_nothing_for_a_candidate_is_refused_before_anything_is_run() -> None:
    with pytest.raises(RequestError) as caught:
        await run(BASELINE + FINAL_TEST)
    assert (
        "max_metric_calls is 12, but the baseline takes 4 and the final test 8, which leaves none for a candidate; "
        "give more than 12, or fewer cases"
    ) in str(caught.value)
    with pytest.raises(RequestError, match="the final test 24"):
        await run(BASELINE + FINAL_TEST, test=TEST)


async def test_without_a_final_test_nothing_is_reserved() -> None:
    result = await run(3, final_test=None)
    assert (result.verdict, result.measured.case_runs) == ("budget_ended", 0)
    assert result.stop is not None
    assert result.stop.text == ("the next evaluation needs 4 metric calls, and 3 of 3 are left; raise max_metric_calls")
    assert (await run(12, final_test=None)).working_profile != result.initial_profile


@pytest.mark.parametrize("cap", [0, -1, 2.5, True])
async def test_a_cap_is_a_whole_number_above_0(cap: int) -> None:
    with pytest.raises(RequestError, match=r"max_metric_calls is .*; give a whole number of at least 1"):
        await run(cap)


def test_blocks_of_the_final_test_repeat_the_same_calls_and_may_use_what_is_reserved() -> None:
    def name(number: int, phase: str) -> tuple[int | None, str, str, str]:
        return name_call("a", number=number, phase=phase, profile_digest="p")

    calls = MetricCalls(3, reserved=1)
    calls.check([name(0, "baseline")])
    calls.note(name(0, "baseline"))
    calls.note(name(1, "train"))
    with pytest.raises(BudgetEndedError) as caught:
        calls.check([name(2, "ablation")])
    assert caught.value.message == (
        "the next evaluation needs 1 metric call, and 0 of 3 are left, besides 1 reserved for the final test"
    )
    for number in (3, 4):
        calls.check([name(number, "final_test")])
        calls.note(name(number, "final_test"))
    assert calls.made == 3
