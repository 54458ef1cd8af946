"""`max_metric_calls`: a hard cap on the cases that a search evaluates."""

from __future__ import annotations

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.errors import RequestError
from promptiter.runlog.results import RunResult
from tests.worlds import desk

TRAIN, VALIDATION = desk.eval_set("train", 4), desk.eval_set("validation", 4)


async def run(cap: int | None) -> RunResult:
    engine = Engine(desk.agent(), desk.evaluator(), search=desk.Tries(desk.DRAFT, desk.POLISH))
    return await engine.run(RunRequest(train=TRAIN, validation=VALIDATION, max_metric_calls=cap, run_id="r"))


def count_cases(result: RunResult) -> int:
    """Evaluated cases of the search, repeats of a case counted once."""
    before = [each for each in result.evaluations if each.phase == "baseline"]
    found = [*before, *(each for one in result.rounds for each in one.all_evaluations)]
    return sum(len({row.case_id for row in each.rows if row.origin == "executed"}) for each in found)


async def test_a_search_never_evaluates_more_cases_than_allowed_and_the_final_test_still_decides() -> None:
    whole = await run(None)
    needed = count_cases(whole)
    assert (await run(needed)).stop_reason == whole.stop_reason
    for cap in range(4, needed):
        result = await run(cap)
        assert count_cases(result) <= cap
        assert result.stop_reason == "max_metric_calls"
        assert (result.conclusion is not None) == (result.working_profile != result.initial_profile)


async def test_a_cap_below_the_baseline_ends_the_run_before_anything_is_run() -> None:
    result = await run(3)
    assert (result.verdict, result.measured.case_runs) == ("budget_ended", 0)
    assert result.stop is not None
    assert result.stop.text == (
        "the next evaluation needs 4 metric calls, and 3 metric calls of 3 are left; raise max_metric_calls"
    )


@pytest.mark.parametrize("cap", [0, -1, 2.5, True])
async def test_a_cap_is_a_whole_number_above_0(cap: int) -> None:
    with pytest.raises(RequestError, match=r"max_metric_calls is .*; give a whole number of at least 1"):
        await run(cap)
