"""Worth: which blamed surfaces come first, where not all can: most loss removed for what trying it costs.

All blamed surfaces are patched together. But only some failed cases are run again, and a budget may end while patches
are written. So signals stand in the order of the loss that a patch may remove, for each dollar of running the cases
again that read the surface; for each token where prices are unknown, and for each case run where tokens are too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from promptiter.backprop.loss import GAPS
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.surface_reads import may_touch
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.losses import Severity

LOSSES: Mapping[Severity, float] = {**{severity: gap for gap, severity in GAPS}, "P3": 0.1}
"""The share of its threshold that a score of such a severity misses at least; of the mildest, what it may be."""


def most_worth_first(
    signals: Sequence[AggregateResult], rows: Sequence[CaseRow], *, unsure: Collection[str] = ()
) -> tuple[AggregateResult, ...]:
    """The signals by expected loss removed per price; `rows` are the runs that they were found in.

    What a run spent is all counted to each surface that it read, or may have read: only what comes after the first
    patched read would be paid again, so a price is the most that it can be. Nodes that are `unsure` may read anything.
    """
    prices = _prices(rows)

    def worth(signal: AggregateResult) -> float:
        touched = [may_touch(row.reads, (signal.surface_id,), unsure=unsure) for row in rows]
        price = math.fsum(price for price, is_touched in zip(prices, touched, strict=True) if is_touched)
        removed = signal.support * LOSSES[signal.severity]
        return removed / price if price else math.inf

    return tuple(sorted(signals, key=lambda each: (-worth(each), each.severity, -each.support, each.surface_id)))


def _prices(rows: Sequence[CaseRow]) -> list[float]:
    """What each run cost, in the best currency that all of them are known in."""
    dollars = [row.usage.cost_usd for row in rows if row.usage.cost_usd is not None]
    if len(dollars) == len(rows) and any(dollars):
        return dollars
    tokens = [row.usage.tokens for row in rows]
    return [float(each) for each in tokens] if all(tokens) else [1.0] * len(rows)
