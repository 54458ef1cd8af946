"""Requests that are refused before anything is spent, with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import check_request
from promptiter.errors import RequestError
from promptiter.evaluation.data.evalset import build_eval_set
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from tests.worlds import desk


def find_problems(metric: str, *rows: dict[str, Any], **request: Any) -> list[str]:
    cases = build_eval_set("cases", [{"input": f"question {number}", **row} for number, row in enumerate(rows)])
    evaluator = Evaluator(build_metrics([{"metric_name": metric}]))
    with pytest.raises(RequestError) as caught:
        check_request(RunRequest(cases=cases, **request), desk.agent().describe(), evaluator)
    return list(caught.value.problems)


def test_cases_without_the_tool_calls_that_a_metric_compares_are_refused() -> None:
    rows: list[dict[str, Any]] = [
        {"id": "desk", "expected": "yes"},
        {"id": "none", "expected": "yes", "tool_calls": []},
    ]
    assert find_problems("tool_trajectory", *rows, teacher="simulated") == [
        (
            "metric 'tool_trajectory' needs tool_calls, and the eval set has cases without them: 'desk'; write the "
            "expected calls, or `tool_calls: []` if none is expected"
        )
    ]


def test_expected_tool_calls_are_no_reference_for_answers() -> None:
    [problem] = find_problems("exact_match", {"id": "a", "tool_calls": []}, {"id": "b", "expected": "yes"})
    assert problem.startswith("metric 'exact_match' needs a reference, and the eval set has cases without one: 'a'; ")


def test_a_judge_that_no_metric_asks_is_refused() -> None:
    assert find_problems("exact_match", {"expected": "yes"}, judge="nomodule") == [
        "judge is 'nomodule', but no metric has a judge; add one that has, or leave the judge out"
    ]
