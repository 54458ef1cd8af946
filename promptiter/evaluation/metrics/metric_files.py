"""The keys of a metric file, and how one is read.

The first metrics that are read import this module: its models, and pydantic, take a while.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.criterion_files import read_criterion
from promptiter.evaluation.metrics.eval_config import EvalConfig, MetricConfig, UserSimulatorConfig
from promptiter.llm.secret_fields import ExpandedText, SecretValues
from promptiter.user_files import FileObject, Location, read_object, spell
from traces.model import Json

_log = logging.getLogger(__name__)


class MetricOptions(FileObject):
    """A metric of a file without its name."""

    evaluator_name: str = ""
    """Which metric it is, if `metric_name` is another name: a built-in one, one of `evaluators`, or `module:attr`."""
    threshold: float = 1.0
    """The score that a case needs to pass, from 0 to 1."""
    criterion: dict[str, Any] = Field(default_factory=dict)
    """The settings of the metric."""


class MetricEntry(MetricOptions):
    """A metric of a file."""

    metric_name: Annotated[str, Field(min_length=1)]
    """The metric, and its name in reports."""


class UserSimulatorEntry(FileObject):
    """The model that plays the user of scenarios."""

    model: ExpandedText = Field(validation_alias=spell("model", "model_name"))
    """The model."""
    max_turns: int | None = Field(default=None, ge=1, validation_alias=spell("max_turns", "max_allowed_invocations"))
    """Maximum number of turns."""
    options: SecretValues = Field(default_factory=dict)
    """Options of the model's calls."""


_ThresholdOrMetric = Annotated[
    MetricOptions,
    BeforeValidator(
        lambda value: value if isinstance(value, dict) else {"threshold": value},
        json_schema_input_type=float | MetricOptions | None,
    ),
]
_SimulatorOrNothing = Annotated[
    UserSimulatorEntry | None,
    BeforeValidator(
        lambda value: None if value == {} else value,
        json_schema_input_type=UserSimulatorEntry | Annotated[dict[str, Any], Field(max_length=0)] | None,
    ),
]


class MetricsFile(FileObject):
    """A metric file."""

    metrics: list[MetricEntry] = Field(default_factory=list)
    """The metrics."""
    criteria: dict[str, _ThresholdOrMetric] = Field(default_factory=dict)
    """Instead of `metrics`: a threshold, or the settings, by name."""
    num_runs: Annotated[int, Field(ge=1)] = 1
    """Runs of each case."""
    evaluators: dict[str, str] = Field(default_factory=dict)
    """Metrics of your own as `module:attr`, by name."""
    user_simulator_config: _SimulatorOrNothing = None
    """The model that plays the user of scenarios."""


def read_metrics(document: Json, *, source: str, environ: Mapping[str, str]) -> EvalConfig:
    """Read what a metric file holds: an array of metrics, an EvalConfig, or an object with an `evaluate` block."""
    location = Location(source)
    if isinstance(document, list):
        document = {"metrics": document}
    elif isinstance(document, Mapping) and "evaluate" in document:
        document, location = document["evaluate"], location.below("evaluate")
    found = read_object(MetricsFile, document, location, error=MetricError, context={"environ": environ})
    if found.metrics and found.criteria:
        _log.warning("%s: `criteria` is ignored because `metrics` is there too", location)
    metrics = [
        _build_metric(metric.metric_name, metric, location.below("metrics", index), environ)
        for index, metric in enumerate(found.metrics)
    ] or [
        _build_metric(name, metric, location.below("criteria", name), environ)
        for name, metric in found.criteria.items()
    ]
    if not metrics:
        raise MetricError(f"{location}: has no metrics; list at least one under `metrics`")
    _check_unique(metrics)
    simulator = found.user_simulator_config
    return EvalConfig(
        metrics=tuple(metrics),
        num_runs=found.num_runs,
        evaluators=found.evaluators,
        user_simulator=None if simulator is None else UserSimulatorConfig(**dict(simulator)),
    )


def _build_metric(name: str, entry: MetricOptions, location: Location, environ: Mapping[str, str]) -> MetricConfig:
    evaluator = entry.evaluator_name or name
    return MetricConfig(
        name=name,
        evaluator=evaluator,
        criterion=read_criterion(evaluator, entry.criterion, location.below("criterion"), environ=environ),
        threshold=entry.threshold,
        place=str(location),
    )


def _check_unique(metrics: list[MetricConfig]) -> None:
    places: dict[str, str] = {}
    for metric in metrics:
        if metric.name in places:
            raise MetricError(
                f"{metric.place}: the metric_name {metric.name!r} is taken by {places[metric.name]}; "
                "choose another, and say with evaluator_name which metric it is"
            )
        places[metric.name] = metric.place
