"""EvalConfig: what an evaluation measures, as metric files say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from promptiter.evaluation.metrics.criteria import Criterion
from promptiter.evaluation.metrics.metric import Metric
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricConfig:
    """One metric. `evaluator` says which one it is, `name` is its name in reports, `place` is where the file has it."""

    name: str
    evaluator: str
    criterion: Criterion
    threshold: float = 1.0
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserSimulatorConfig:
    """The model that plays the user of scenarios. `max_turns` None: the default of the simulated user."""

    model: str
    max_turns: int | None = None
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """What an evaluation measures. `evaluators` maps names of the user's own metrics to `module:attr`."""

    metrics: tuple[MetricConfig, ...]
    num_runs: int = 1
    evaluators: Mapping[str, str] = field(default_factory=dict)
    user_simulator: UserSimulatorConfig | None = None


MetricBuilder: TypeAlias = Callable[[MetricConfig], Metric]
