"""The metrics of agent.yaml as those of a metric file: standard ones, and graders in Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promptiter.config.agent_yaml.graders import BUILDER
from promptiter.config.agent_yaml.sections import MetricBlock
from promptiter.errors import SetupError, UnknownNameError
from promptiter.references import is_reference
from traces.model import Json

STANDARD: Mapping[str, str] = {
    "numeric": "numeric",
    "equality": "exact_match",
    "exact_match": "exact_match",
    "contains": "contains",
    "regex": "regex",
    "rouge": "rouge",
    "json_match": "json_match",
    "length": "length",
    "latency": "latency",
    "cost": "cost",
}
"""Standard metrics, by their names in agent.yaml."""

_RENAMED = {"absolute_tolerance": "tolerance"}
_WITHOUT_EFFECT = frozenset(
    ("accept_percent", "accept_thousands_separators", "scale", "retry_on_failure", "timeout_ms")
)
"""Options that say what happens here anyway, or that are about judges."""

GRADER_THRESHOLD = 0.5
"""A case passes a grader from this score on, unless the file says otherwise."""


def convert_metrics(blocks: Iterable[MetricBlock]) -> tuple[list[Json], list[str]]:
    """The enabled metrics as entries of a metric file, and what is wrong with the others."""
    found: list[Json] = []
    problems = []
    for number, block in enumerate(blocks):
        if not block.enabled:
            continue
        try:
            found.append(_convert(block))
        except SetupError as error:
            problems.append(f"evaluations.metrics[{number}]: {error}")
    return found, problems


def name_metric(block: MetricBlock) -> str:
    """The name of a metric, as `loss` refers to it."""
    return block.name or block.metric or block.grader.rpartition(":")[2]


def _convert(block: MetricBlock) -> dict[str, Json]:
    if block.type == "code":
        if not is_reference(block.grader):
            raise SetupError(f"grader is {block.grader!r}; name a function as module:function")
        threshold = GRADER_THRESHOLD if block.threshold is None else block.threshold
        return _build(block, BUILDER, threshold=threshold, criterion={"grader": block.grader})
    if block.type != "standard":
        raise SetupError(f"the type {block.type!r} is not supported; use standard or code")
    if block.metric not in STANDARD:
        raise UnknownNameError("metric", [block.metric], known=STANDARD)
    options = {_RENAMED.get(name, name): each for name, each in block.others.items() if name not in _WITHOUT_EFFECT}
    return _build(block, STANDARD[block.metric], threshold=block.threshold, criterion=options)


def _build(
    block: MetricBlock, evaluator: str, *, threshold: float | None, criterion: Mapping[str, Json]
) -> dict[str, Json]:
    name = name_metric(block)
    entry: dict[str, Json] = {"metric_name": name}
    if evaluator != name:
        entry["evaluator_name"] = evaluator
    if threshold is not None:
        entry["threshold"] = threshold
    return {**entry, "criterion": dict(criterion)} if criterion else entry
