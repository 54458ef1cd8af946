"""The gradient of a refinement: what was wrong with the prior run, from its record alone. No model is called.

The order is fixed: defects as they were found, the last gate rejections, metric gaps from the largest to the smallest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict

from promptiter.tasks.refine.records import Defect, GateRejection, RunRecord
from traces.files import write_file

FILE_NAME = "gradient_input.json"
SAME_WITHIN = 120
"""Two defects of one severity are the same if their descriptions begin with the same characters."""
LAST_REJECTIONS = 3
_ROUNDED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricGap:
    """A metric below its threshold, and by how much."""

    name: str
    value: float
    threshold: float
    gap: float


class RefinementGradient(BaseModel):
    """What the next iteration should fix. Stored as gradient_input.json in the folder of that iteration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    defects: tuple[Defect, ...] = ()
    gate_rejections: tuple[GateRejection, ...] = ()
    metric_gaps: tuple[MetricGap, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to refine: no defect, no rejection, no gap."""
        return not (self.defects or self.gate_rejections or self.metric_gaps)

    def write(self, folder: Path) -> Path:
        """Write gradient_input.json into a folder, atomically."""
        options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
        write_file(folder / FILE_NAME, orjson.dumps(self.model_dump(mode="json"), option=options))
        return folder / FILE_NAME


def extract_gradient(record: RunRecord) -> RefinementGradient:
    """The gradient of a finished run."""
    gaps = [
        MetricGap(
            name=metric.name,
            value=metric.value,
            threshold=metric.threshold,
            gap=round(metric.threshold - metric.value, _ROUNDED),
        )
        for metric in record.metrics
        if metric.threshold is not None
    ]
    return RefinementGradient(
        run_id=record.run_id,
        defects=tuple(drop_repeated(record.defects)),
        gate_rejections=record.rejections[-LAST_REJECTIONS:],
        metric_gaps=tuple(sorted((gap for gap in gaps if gap.gap > 0), key=lambda each: (-each.gap, each.name))),
    )


def drop_repeated(defects: Iterable[Defect]) -> list[Defect]:
    """The defects without repetitions; of equal ones, the first."""
    first: dict[tuple[str, str], Defect] = {}
    for defect in defects:
        first.setdefault((defect.description[:SAME_WITHIN], defect.severity), defect)
    return list(first.values())
