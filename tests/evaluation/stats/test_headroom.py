from __future__ import annotations

import pytest

from promptiter.evaluation.stats.headroom import ContenderResult, find_headroom
from promptiter.evaluation.stats.noise import NoiseReport
from tests.evaluation.stats.test_noise import Values, evaluation


def test_cases_are_told_apart_by_how_often_they_pass() -> None:
    found = find_headroom(
        {"a": (True, True), "b": (True, False), "c": (False, False)}, [(1.0, 1.0), (0.5, 0.0), (0.2, 0.4)]
    )
    assert (found.always, found.sometimes, found.never, found.failing) == (("a",), ("b",), ("c",), ("b", "c"))
    assert found.mean == pytest.approx((1.0 + 0.25 + 0.3) / 3)
    assert found.best_of_repeats == pytest.approx((1.0 + 0.5 + 0.4) / 3)


def test_a_noise_report_names_metrics_that_every_run_meets_or_none() -> None:
    values: dict[str, Values] = {"a": [0.1, 0.4], "b": [0.0, 0.3]}
    other: dict[str, Values] = {"a": [0.6, 0.9], "b": [1.0, 0.5]}
    found = NoiseReport(evaluation=evaluation(values, other=other)).headroom
    assert (found.saturated, found.never_met, found.never) == (("n",), ("m",), ("a", "b"))


def test_what_another_model_reaches_counts_by_case() -> None:
    found = evaluation({"a": [1, 1], "b": [0, 0], "c": [1, 0]})
    assert ContenderResult(name="strong", evaluation=found).passed == {"a", "c"}
    assert ContenderResult(name="strong", problem="it did not run").passed == frozenset()
