"""Penalties: what cost and latency add to the weighted loss of a case.

    loss = 1 - weighted mean score + cost_per_usd * cost of a sweep + latency_per_sec * mean latency

A sweep is one run of every case of the eval set. The cost of a case counts as many times as there are cases, so that
the mean over the cases contains the cost of a whole sweep. Latencies are measured: they differ from run to run, and an
answer from the cache takes no time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from promptiter.errors import SetupError
from promptiter.numbers import is_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """What is added to the loss: for each dollar of a sweep, and for each second that a case takes."""

    cost_per_usd: float = 0.0
    latency_per_sec: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cost_per_usd", "latency_per_sec"):
            if not is_number(getattr(self, name), least=0):
                raise SetupError(f"{name} is {getattr(self, name)!r}; give a number of at least 0, such as 0.05")

    def __bool__(self) -> bool:
        return bool(self.cost_per_usd or self.latency_per_sec)

    def add_up(self, *, costs_usd: Sequence[float | None], durations_s: Sequence[float], cases: int) -> float:
        """The penalty of a case with these runs, in an eval set with this number of cases. Unknown costs add none."""
        return self.of_costs(costs_usd, cases=cases) + self.of_durations(durations_s)

    def of_costs(self, costs_usd: Sequence[float | None], *, cases: int) -> float:
        return self.cost_per_usd * cases * _average([cost or 0.0 for cost in costs_usd])

    def of_durations(self, durations_s: Sequence[float]) -> float:
        return self.latency_per_sec * _average(durations_s)


NO_PENALTIES = Penalties()


def _average(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
