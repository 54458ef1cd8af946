from __future__ import annotations

from typing import Any

import pytest

from promptiter.evaluation.result import CaseRow
from promptiter.search.priority import order_by_priority
from promptiter.stages.contracts import AggregateResult
from traces import Usage

DEAR = Usage(input_tokens=900, output_tokens=100, cost_usd=0.01)
CHEAP = Usage(input_tokens=90, output_tokens=10, cost_usd=0.001)


def signal(name: str, support: float = 4.0, severity: Any = "P0") -> AggregateResult:
    return AggregateResult(surface_id=f"{name}#instruction", text="fix it", severity=severity, support=support)


def row(number: int, *read: str, usage: Usage = CHEAP) -> CaseRow:
    reads = {node: (f"{node}#instruction",) for node in read}
    return CaseRow(case_id=f"c{number}", usage=usage, reads=reads)


def order(signals: list[AggregateResult], rows: list[CaseRow]) -> list[str]:
    return [each.surface_id.partition("#")[0] for each in order_by_priority(signals, rows)]


def test_of_equal_losses_the_surface_that_fewer_cases_read_comes_first() -> None:
    rows = [row(1, "a"), row(2, "a", "b"), row(3, "a")]
    assert order([signal("a"), signal("b")], rows) == ["b", "a"]


def test_of_equal_prices_the_larger_loss_comes_first() -> None:
    rows = [row(1, "a", "b", "c")]
    signals = [signal("a", 5, "P3"), signal("b", 2, "P0"), signal("c", 5, "P1")]
    assert order(signals, rows) == ["c", "b", "a"]


def test_a_loss_that_is_cheap_to_fix_comes_before_a_larger_expensive_one() -> None:
    rows = [row(1, "a", usage=DEAR), row(2, "a", usage=DEAR), row(3, "b")]
    assert order([signal("a", 8), signal("b", 1)], rows) == ["b", "a"]


@pytest.mark.parametrize(
    "unknown", [Usage(input_tokens=900, output_tokens=100), Usage(input_tokens=900, output_tokens=100, cost_usd=0.0)]
)
def test_without_prices_tokens_count(unknown: Usage) -> None:
    few = Usage(input_tokens=5, output_tokens=1, cost_usd=unknown.cost_usd)
    rows = [row(1, "a", usage=unknown), row(2, "b", usage=few), row(3, "b", usage=few)]
    assert order([signal("a"), signal("b")], rows) == ["b", "a"]


def test_without_tokens_case_runs_count() -> None:
    rows = [row(1, "a", usage=DEAR), row(2, "b", usage=Usage()), row(3, "b", usage=Usage())]
    assert order([signal("a"), signal("b")], rows) == ["a", "b"]


def test_a_run_with_unknown_reads_counts_for_every_surface() -> None:
    unread = CaseRow(case_id="c9", usage=DEAR)
    assert order([signal("a", 4), signal("b", 3)], [row(1, "a"), row(2, "b"), unread]) == ["a", "b"]


def test_ties_have_a_fixed_order() -> None:
    signals = [signal(name) for name in ("d", "b", "c", "a")]
    assert order(signals, [row(1, "a", "b", "c", "d")]) == order(signals[::-1], [row(1, "a", "b", "c", "d")])
    assert order(signals, []) == ["a", "b", "c", "d"]
