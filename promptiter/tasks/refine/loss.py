"""The loss of a run: one number from 0 (nothing wrong) to 1, made of what its record says.

    loss = 1 - weighted mean of the metric values
         + for each open defect, the weight of its severity
         + for each gate rejection, a fixed weight

and at most 1. Metric values count from 0 to 1. A run without metrics has only the other two terms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from promptiter.errors import SetupError
from promptiter.numbers import is_number
from promptiter.tasks.refine.gradient import LAST_REJECTIONS, drop_repeated
from promptiter.tasks.refine.records import RunRecord

SEVERITIES: Mapping[str, float] = {"critical": 0.10, "high": 0.05, "medium": 0.03, "low": 0.01}
"""The weight of a defect by its severity."""

_SAME_SEVERITY: Mapping[str, str] = {
    **dict.fromkeys(("critical", "blocker", "fatal", "p0"), "critical"),
    **dict.fromkeys(("high", "major", "error", "severe", "p1"), "high"),
    **dict.fromkeys(("medium", "moderate", "warning", "p2"), "medium"),
    **dict.fromkeys(("low", "minor", "trivial", "info", "nit", "p3"), "low"),
}
_ROUNDED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class LossWeights:
    """What an open defect and a gate rejection add to the loss. A severity that is not known counts as medium."""

    defects: Mapping[str, float] = field(default_factory=lambda: dict(SEVERITIES))
    rejection: float = 0.05

    def __post_init__(self) -> None:
        if unknown := [name for name in self.defects if name not in SEVERITIES]:
            raise SetupError(f"unknown severity {unknown[0]!r}; known are {', '.join(SEVERITIES)}")
        for weight in (*self.defects.values(), self.rejection):
            if not is_number(weight, least=0):
                raise SetupError(f"a weight of the loss is {weight!r}; give a finite number of at least 0")

    def of_severity(self, severity: str) -> float:
        """The weight of a defect of this severity."""
        name = _SAME_SEVERITY.get(severity.strip().lower(), "medium")
        return self.defects.get(name, SEVERITIES[name])


def compute_loss(record: RunRecord, weights: LossWeights | None = None) -> float:
    """The loss of a finished run, from 0 to 1."""
    weights = weights or LossWeights()
    of_defects = math.fsum(weights.of_severity(each.severity) for each in drop_repeated(record.defects))
    of_rejections = weights.rejection * len(record.rejections[-LAST_REJECTIONS:])
    return round(min(1.0, max(0.0, _find_shortfall(record) + of_defects + of_rejections)), _ROUNDED)


def _find_shortfall(record: RunRecord) -> float:
    """1 minus the weighted mean of the metrics; 0 if there are none."""
    total = math.fsum(metric.weight for metric in record.metrics)
    if not total:
        return 0.0
    return 1.0 - math.fsum(metric.weight * min(1.0, max(0.0, metric.value)) for metric in record.metrics) / total
