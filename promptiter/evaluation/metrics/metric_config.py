"""Metrics as files say them: `test_config.json`, `*.metrics.json`, or the `evaluate` block of optimizer.json.

Everything is checked here, before anything is spent: an unknown key, a wrong type or an unset `${VAR}` is a MetricError
that names its place. Keys may be snake_case or camelCase. A metric that is not known here keeps its options.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import orjson

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.config_fields import Fields
from promptiter.evaluation.metrics.criteria import (
    read_fixed_text,
    read_json,
    read_numeric,
    read_rouge,
    read_text,
    read_trajectory,
)
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.text_match import NumericCriterion, RougeCriterion, TextCriterion, TextMatch
from promptiter.evaluation.metrics.trajectory import TrajectoryCriterion
from promptiter.llm.secret import Secret, is_secret_name, reveal
from traces.model import Json

ModelsAggregator: TypeAlias = Literal[
    "all_pass", "any_pass", "majority_pass", "avg", "weighted_avg", "weighted_majority"
]

JUDGE_METRICS = (
    "llm_final_response",
    "llm_rubric_response",
    "llm_rubric_critic",
    "llm_rubric_reference_critic",
    "llm_rubric_knowledge_recall",
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeModel:
    """A model that judges. What may hold secrets is wrapped: `reveal` gives the values for the call itself."""

    model_name: str
    provider_name: str = ""
    variant: str = ""
    base_url: str | None = field(default=None, repr=False)
    api_key: Secret | None = None
    extra_fields: Mapping[str, Json] = field(default_factory=dict)
    num_samples: int = 1
    generation_config: Mapping[str, Json] = field(default_factory=dict)
    weight: float = 1.0
    think: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """One question that a judge answers with yes or no."""

    id: str
    text: str
    description: str = ""
    type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """Who judges, by what, and how several models make one verdict. No models: the caller's own judge."""

    models: tuple[JudgeModel, ...] = ()
    models_aggregator: ModelsAggregator = "all_pass"
    parallel: bool = True
    rubrics: tuple[Rubric, ...] = ()
    knowledge_tool_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalResponseCriterion:
    """How an answer is compared. All that is given must hold."""

    text: TextCriterion | None = None
    json: JsonCriterion | None = None
    rouge: RougeCriterion | None = None

    @property
    def needs_reference(self) -> bool:
        return self.rouge is not None or any(
            part is not None and part.needs_reference for part in (self.text, self.json)
        )


@dataclass(frozen=True, slots=True)
class Limit:
    """What a run may take: seconds or dollars, as the metric says."""

    value: float


@dataclass(frozen=True, slots=True)
class Options:
    """The criterion of a metric that is built elsewhere, as given; use `reveal` on what it may need of secrets."""

    values: Mapping[str, Json] = field(default_factory=dict)


Criterion: TypeAlias = (
    FinalResponseCriterion | RougeCriterion | NumericCriterion | TrajectoryCriterion | Limit | JudgeConfig | Options
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricConfig:
    """One metric. `evaluator` says which one it is, `name` what reports call it, `place` where the file says so."""

    name: str
    evaluator: str
    criterion: Criterion
    threshold: float = 1.0
    place: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """What an evaluation measures. `evaluators` maps names of the user's own metrics to `module:attr`."""

    metrics: tuple[MetricConfig, ...]
    num_runs: int = 1
    evaluators: Mapping[str, str] = field(default_factory=dict)
    user_simulator: Mapping[str, Json] = field(default_factory=dict)


def load_eval_config(path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> EvalConfig:
    """Read a file with metrics. `environ` (default: the process's) gives the values of `${VAR}`."""
    try:
        document = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise MetricError(f"{path}: cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise MetricError(f"{path}: is not valid JSON: {error}") from error
    return parse_eval_config(document, source=os.fspath(path), environ=environ)


def parse_eval_config(
    document: Json, *, source: str = "metrics", environ: Mapping[str, str] | None = None
) -> EvalConfig:
    """The configuration of a document: an array of metrics, an EvalConfig, or an optimizer.json's `evaluate` block."""
    environ = os.environ if environ is None else environ
    path = ""
    if isinstance(document, list):
        document = {"metrics": document}
    elif isinstance(document, Mapping) and "evaluate" in document:
        document, path = document["evaluate"], "evaluate"
    fields = Fields(document, source=source, path=path, environ=environ)
    metrics = [_metric(item) for item in fields.objects("metrics")]
    criteria = fields.object("criteria")
    if criteria is not None and metrics:
        _log.warning("%s: `criteria` is ignored because `metrics` is there too", fields.place)
    elif criteria is not None:
        metrics = [_short_metric(name, criteria) for name in criteria.names()]
    num_runs = fields.integer("num_runs", default=1, minimum=1)
    evaluators = fields.text_object("evaluators")
    simulator = {
        key: value if isinstance(value, Mapping) or is_secret_name(key) else reveal(value)  # a model's name is none
        for key, value in fields.secured_object("user_simulator_config").items()
    }
    fields.close()
    if not metrics:
        raise MetricError(f"{fields.place}: has no metrics; list at least one under `metrics`")
    _check_unique(metrics)
    return EvalConfig(metrics=tuple(metrics), num_runs=num_runs, evaluators=evaluators, user_simulator=simulator)


def _metric(fields: Fields) -> MetricConfig:
    name = fields.text("metric_name", required=True)
    return _rest_of_metric(name, fields)


def _short_metric(name: str, criteria: Fields) -> MetricConfig:
    """The short form `{name: threshold}` or `{name: {threshold, criterion}}`."""
    value = criteria.take(name, any_spelling=False)
    if not isinstance(value, Mapping):
        value = {"threshold": value}
    return _rest_of_metric(name, criteria.at(name, value))


def _rest_of_metric(name: str, fields: Fields) -> MetricConfig:
    evaluator = fields.text("evaluator_name") or name
    threshold = fields.number("threshold", default=1.0)
    criterion = fields.object("criterion") or fields.at("criterion", {})
    fields.close()
    read = _READERS.get(evaluator, _options)
    return MetricConfig(
        name=name, evaluator=evaluator, criterion=read(criterion), threshold=threshold, place=fields.place
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


def _final_response(fields: Fields) -> FinalResponseCriterion:
    inner = fields.object("final_response")
    fields.close()
    if inner is None:
        return FinalResponseCriterion(text=TextCriterion())
    text, json, rouge = inner.object("text"), inner.object("json"), inner.object("rouge")
    inner.close()
    if text is None and json is None and rouge is None:
        raise MetricError(f"{inner.place}: compares nothing; give it text, json or rouge")
    return FinalResponseCriterion(
        text=read_text(text) if text else None,
        json=read_json(json) if json else None,
        rouge=read_rouge(rouge) if rouge else None,
    )


def _own_text(match: TextMatch) -> Callable[[Fields], FinalResponseCriterion]:
    return lambda fields: FinalResponseCriterion(text=read_fixed_text(fields, match=match))


def _length(fields: Fields) -> FinalResponseCriterion:
    minimum, maximum = fields.optional_integer("min", minimum=0), fields.optional_integer("max", minimum=0)
    fields.close()
    if minimum is None and maximum is None:
        raise MetricError(f"{fields.place}: limits nothing; give it min, max or both")
    with fields.naming_place():
        return FinalResponseCriterion(text=TextCriterion(ignore=True, min_length=minimum, max_length=maximum))


def _limit(name: str) -> Callable[[Fields], Limit]:
    def read(fields: Fields) -> Limit:
        value = fields.optional_number(name)
        fields.close()
        if value is None or value <= 0:
            raise MetricError(f"{fields.place}.{name}: is {value!r}; say what a run may take, above 0")
        return Limit(value)

    return read


def _wrapped_trajectory(fields: Fields) -> TrajectoryCriterion:
    inner = fields.object("tool_trajectory")
    fields.close()
    return TrajectoryCriterion() if inner is None else read_trajectory(inner)


def _judge(fields: Fields) -> JudgeConfig:
    inner = fields.object("llm_judge") or fields.at("llm_judge", {})
    fields.close()
    one, many = inner.object("judge_model"), inner.objects("judge_models")
    if one is not None and many:
        raise MetricError(f"{inner.place}: has both judge_model and judge_models; give it one of them")
    models = tuple(_judge_model(model) for model in ([one] if one is not None else many))
    aggregator = inner.choice("models_aggregator", get_args(ModelsAggregator), default="all_pass")
    if models and aggregator.startswith("weighted") and not any(model.weight for model in models):
        raise MetricError(f"{inner.place}: {aggregator} of models that all have weight 0; give one a weight")
    parallel = inner.flag("parallel", default=True)
    rubrics = tuple(_rubric(rubric) for rubric in inner.objects("rubrics"))
    names = inner.texts("knowledge_tool_names")
    inner.close()
    if len({rubric.id for rubric in rubrics}) < len(rubrics):
        raise MetricError(f"{inner.place}.rubrics: two have the same id; give each its own")
    return JudgeConfig(
        models=models, models_aggregator=aggregator, parallel=parallel, rubrics=rubrics, knowledge_tool_names=names
    )


def _judge_model(fields: Fields) -> JudgeModel:
    model = JudgeModel(
        model_name=fields.expanded_text("model_name", required=True),
        provider_name=fields.expanded_text("provider_name") or "",
        variant=fields.expanded_text("variant") or "",
        base_url=fields.expanded_text("base_url"),
        api_key=fields.secret("api_key"),
        extra_fields=fields.secured_object("extra_fields"),
        num_samples=fields.integer("num_samples", default=1, minimum=1),
        generation_config=fields.secured_object("generation_config"),
        weight=fields.number("weight", default=1.0, minimum=0),
        think=fields.optional_flag("think"),
    )
    fields.close()
    return model


def _rubric(fields: Fields) -> Rubric:
    content = fields.take("content")
    if isinstance(content, str):
        content = {"text": content}
    inner = fields.at("content", content)
    rubric = Rubric(
        id=fields.text("id", required=True),
        text=inner.text("text", required=True),
        description=fields.text("description") or "",
        type=fields.text("type") or "",
    )
    inner.close()
    fields.close()
    return rubric


def _own_rouge(fields: Fields) -> RougeCriterion:
    if fields.take("threshold") is not None:
        raise MetricError(f"{fields.place}.threshold: stands beside metric_name, not in the criterion")
    return read_rouge(fields)


def _options(fields: Fields) -> Options:
    return Options(fields.rest_as_options())


def _no_criterion(fields: Fields) -> RougeCriterion:
    fields.close()
    return RougeCriterion()


_READERS: Mapping[str, Callable[[Fields], Criterion]] = {
    "final_response_avg_score": _final_response,
    "tool_trajectory_avg_score": _wrapped_trajectory,
    "response_match_score": _no_criterion,
    "exact_match": _own_text("exact"),
    "contains": _own_text("contains"),
    "regex": _own_text("regex"),
    "length": _length,
    "json_match": lambda fields: FinalResponseCriterion(json=read_json(fields)),
    "rouge": _own_rouge,
    "numeric": read_numeric,
    "tool_trajectory": read_trajectory,
    "latency": _limit("limit_s"),
    "cost": _limit("limit_usd"),
    **dict.fromkeys(JUDGE_METRICS, _judge),
}
