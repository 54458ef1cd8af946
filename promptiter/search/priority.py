"""The order of signals: the largest expected reduction in loss per cost of trying it comes first.

All blamed surfaces are patched together, but only some failed cases are re-run, and a budget may end while patches are
being written. Signals are therefore sorted by the loss that a patch may remove, divided by the dollars it takes to
re-run the cases that read the surface; by tokens where prices are unknown, and by case runs where tokens are, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from promptiter.backprop.loss import GAPS
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.surface_reads import may_touch
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.losses import Severity

LOSSES: Mapping[Severity, float] = {**{severity: gap for gap, severity in GAPS}, "P3": 0.1}
"""The least share of the threshold that a score of each severity misses; for P3, which has no lower bound, a guess."""


def order_by_priority(signals: Sequence[AggregateResult], rows: Sequence[CaseRow]) -> tuple[AggregateResult, ...]:
    """Sort signals by the loss they may remove per cost; `rows` are the runs that the signals were found in.

    The whole cost of a run counts for every surface that it read or may have read. This is an upper bound: a re-run
    pays only for what follows the first patched read.
    """
    prices = _price_runs(rows)

    def compute_priority(signal: AggregateResult) -> float:
        touched = [may_touch(row.reads, (signal.surface_id,)) for row in rows]
        price = math.fsum(price for price, is_touched in zip(prices, touched, strict=True) if is_touched)
        removed = signal.support * LOSSES[signal.severity]
        return removed / price if price else math.inf

    return tuple(
        sorted(signals, key=lambda each: (-compute_priority(each), each.severity, -each.support, each.surface_id))
    )


def _price_runs(rows: Sequence[CaseRow]) -> list[float]:
    """The cost of each run in dollars, or in tokens, or 1 each: the best unit that is known for all runs."""
    dollars = [row.usage.cost_usd for row in rows if row.usage.cost_usd is not None]
    if len(dollars) == len(rows) and any(dollars):
        return dollars
    tokens = [row.usage.tokens for row in rows]
    return [float(each) for each in tokens] if all(tokens) else [1.0] * len(rows)
