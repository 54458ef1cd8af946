"""The `criterion` of each metric, as files write it. `read_criterion` turns one into the criterion it describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from promptiter.agents.runner import is_runner
from promptiter.errors import MetricError
from promptiter.evaluation.metrics.criteria import (
    JUDGE_METRICS,
    Criterion,
    FinalResponseCriterion,
    JudgeConfig,
    JudgeModel,
    Limit,
    ModelsAggregator,
    Options,
    Rubric,
)
from promptiter.evaluation.metrics.json_match import DEFAULT_NUMBER_TOLERANCE, JsonCriterion
from promptiter.evaluation.metrics.text_match import (
    NumberChoice,
    NumericCriterion,
    RougeCriterion,
    RougeType,
    TextCriterion,
    TextMatch,
)
from promptiter.evaluation.metrics.trajectory import ToolCriterion, TrajectoryCriterion
from promptiter.llm.secret_fields import ExpandedText, SecretText, SecretValues, hide_named_secrets
from promptiter.user_files import FileObject, Location, read_object, spell
from traces.model import Json


def read_criterion(
    evaluator: str, value: Mapping[str, Json], location: Location, *, environ: Mapping[str, str]
) -> Criterion:
    """The criterion of a metric. A metric that is not known here keeps its options as they are."""
    if evaluator not in _ENTRIES:
        try:
            return Options(hide_named_secrets(value, environ))
        except ValueError as error:
            raise MetricError(f"{location}: {error}") from error
    entry = read_object(_ENTRIES[evaluator], value, location, error=MetricError, context={"environ": environ})
    criterion: Criterion | TextCriterion | JsonCriterion | float = entry.build()
    match criterion:
        case TextCriterion():
            return FinalResponseCriterion(text=criterion)
        case JsonCriterion():
            return FinalResponseCriterion(json=criterion)
        case float():
            return Limit(criterion)
    return criterion


class _CriterionEntry(FileObject):
    """A criterion in a file, whose keys are the fields of `builds`.

    It is built once while it is checked, so that the criterion's own errors name the place, too.
    """

    builds: ClassVar[Callable[..., Any]]

    def build(self) -> Any:
        return type(self).builds(**self.fields())

    def fields(self) -> dict[str, Any]:
        built = {name: value.build() if isinstance(value, _CriterionEntry) else value for name, value in self}
        return {_FIELD_NAMES.get(name, name): value for name, value in built.items()}

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.build()
        except MetricError as error:
            raise ValueError(str(error)) from error
        return self


class _Wrapper(_CriterionEntry):
    """A criterion under a single key, such as `{"final_response": {...}}`."""

    def build(self) -> Any:
        [criterion] = self.fields().values()
        return criterion


_FIELD_NAMES = {"json_schema": "schema", "as_json": "json"}  # pydantic models have methods of these names
_Amount = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(min_length=1)]


class _Length(FileObject):
    min: _Count | None = None
    max: _Count | None = None


class _Text(_CriterionEntry):
    builds = TextCriterion
    match: TextMatch = Field(default="exact", validation_alias=spell("match", "match_strategy"))
    case_insensitive: bool = False
    length: _Length = Field(default_factory=_Length)
    ignore: bool = False
    expected: str | None = None

    def fields(self) -> dict[str, Any]:
        options = {name: value for name, value in self if name != "length"}
        return {**options, "min_length": self.length.min, "max_length": self.length.max}


class _ExactMatch(_CriterionEntry):
    builds = partial(TextCriterion, match="exact")
    case_insensitive: bool = False
    ignore: bool = False
    expected: str | None = None


class _Contains(_ExactMatch):
    builds = partial(TextCriterion, match="contains")


class _Regex(_ExactMatch):
    builds = partial(TextCriterion, match="regex")


class _LengthMetric(_Length, _CriterionEntry):
    def build(self) -> TextCriterion:
        if self.min is None and self.max is None:
            raise MetricError("limits nothing; give it min, max or both")
        return TextCriterion(ignore=True, min_length=self.min, max_length=self.max)


class _Json(_CriterionEntry):
    builds = JsonCriterion
    match: Literal["exact"] = Field(default="exact", validation_alias=spell("match", "match_strategy"))
    ignore_tree: dict[str, Any] | None = None
    only_tree: dict[str, Any] | None = None
    number_tolerance: _Amount = DEFAULT_NUMBER_TOLERANCE
    json_schema: dict[str, Any] | None = Field(default=None, validation_alias="schema")
    ignore: bool = False

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in super().fields().items() if name != "match"}


def _normalize_rouge(value: Json) -> Json:
    """`rouge-L`, `ROUGE_L` and `rougeL` are the same."""
    known = {name.lower(): name for name in get_args(RougeType)}
    return known.get(value.lower().replace("-", "").replace("_", ""), value) if isinstance(value, str) else value


def _reject_threshold(_: Json) -> Json:
    raise ValueError("belongs beside metric_name, not in the criterion")


class _Rouge(_CriterionEntry):
    builds = RougeCriterion
    type: Annotated[RougeType, BeforeValidator(_normalize_rouge)] = Field(
        default="rouge1", validation_alias=spell("type", "rouge_type")
    )
    threshold: float = 1.0


class _RougeMetric(_Rouge):
    threshold: Annotated[float, BeforeValidator(_reject_threshold)] = 1.0


class _FinalResponse(_CriterionEntry):
    builds = FinalResponseCriterion
    text: _Text | None = Field(default=None, validation_alias=spell("text", "text_strategy"))
    as_json: _Json | None = Field(default=None, validation_alias=spell("json", "json_strategy"))
    rouge: _Rouge | None = None

    def build(self) -> Any:
        if self.text is None and self.as_json is None and self.rouge is None:
            raise MetricError("compares nothing; give it text, json or rouge")
        return super().build()


class _FinalResponseMetric(_Wrapper):
    final_response: _FinalResponse = Field(default_factory=lambda: _FinalResponse(text=_Text()))


class _NoOptions(_CriterionEntry):
    builds = RougeCriterion


class _Numeric(_CriterionEntry):
    builds = NumericCriterion
    which: NumberChoice = "last"
    tolerance: _Amount = 0.0
    relative_tolerance: _Amount = 0.0
    expected: float | None = None


class _ToolCallEntry(FileObject):
    name: _Text | None = None
    arguments: _Json | None = None
    result: _Json | None = None

    def build(self, default: ToolCriterion) -> ToolCriterion:
        return replace(default, **{name: entry.build() for name, entry in self if entry is not None})


class _Trajectory(_CriterionEntry):
    default: _ToolCallEntry = Field(
        default_factory=_ToolCallEntry, validation_alias=spell("default", "default_strategy")
    )
    overrides: dict[str, _ToolCallEntry] = Field(
        default_factory=dict, validation_alias=spell("overrides", "tool_strategy")
    )
    order_sensitive: bool = False
    subset_matching: bool = False

    def build(self) -> TrajectoryCriterion:
        default = self.default.build(ToolCriterion())
        return TrajectoryCriterion(
            default=default,
            overrides={name: tool.build(default) for name, tool in self.overrides.items()},
            order_sensitive=self.order_sensitive,
            subset_matching=self.subset_matching,
        )


class _TrajectoryMetric(_Wrapper):
    tool_trajectory: _Trajectory = Field(default_factory=_Trajectory)


class _Latency(_Wrapper):
    limit_s: Annotated[float, Field(gt=0)]


class _Cost(_Wrapper):
    limit_usd: Annotated[float, Field(gt=0)]


class _JudgeModelEntry(_CriterionEntry):
    builds = JudgeModel
    model_name: Annotated[ExpandedText, Field(min_length=1)]
    provider_name: ExpandedText = ""
    variant: ExpandedText = ""
    base_url: ExpandedText | None = Field(default=None, validation_alias=spell("base_url", "baseURL"))
    api_key: SecretText = None
    extra_fields: SecretValues = Field(default_factory=dict)
    num_samples: Annotated[int, Field(ge=1)] = 1
    generation_config: SecretValues = Field(default_factory=dict)
    weight: _Amount = 1.0
    think: bool | None = None


def _parse_judge(value: Any) -> Any:
    if is_runner(value):
        raise ValueError("is an agent or a function; name it as module:attr, or give it as judge= of build_metrics")
    return {"model_name": value} if isinstance(value, str) else value


_NamedJudge = Annotated[_JudgeModelEntry, BeforeValidator(_parse_judge)]


class _RubricContent(FileObject):
    text: _Name


class _RubricEntry(FileObject):
    id: _Name
    content: Annotated[
        _RubricContent, BeforeValidator(lambda value: {"text": value} if isinstance(value, str) else value)
    ]
    description: str = ""
    type: str = ""

    def build(self) -> Rubric:
        return Rubric(id=self.id, text=self.content.text, description=self.description, type=self.type)


class _Judge(_CriterionEntry):
    judge_model: _NamedJudge | None = None
    judge_models: list[_NamedJudge] = Field(default_factory=list)
    models_aggregator: ModelsAggregator = "all_pass"
    parallel: bool = True
    rubrics: list[_RubricEntry] = Field(default_factory=list)
    knowledge_tool_names: list[str] = Field(default_factory=list)
    show_reference: bool | None = None

    def build(self) -> JudgeConfig:
        models = self.judge_models if self.judge_model is None else [self.judge_model]
        aggregator = self.models_aggregator
        if self.judge_model is not None and self.judge_models:
            raise MetricError("has both judge_model and judge_models; keep one of them")
        if models and aggregator.startswith("weighted") and not any(model.weight for model in models):
            raise MetricError(f"{aggregator} needs a weight above 0, and all models have weight 0; give one a weight")
        if len({rubric.id for rubric in self.rubrics}) < len(self.rubrics):
            raise MetricError("two rubrics have the same id; give each its own")
        return JudgeConfig(
            models=tuple(model.build() for model in models),
            models_aggregator=aggregator,
            parallel=self.parallel,
            rubrics=tuple(rubric.build() for rubric in self.rubrics),
            knowledge_tool_names=tuple(self.knowledge_tool_names),
            show_reference=self.show_reference,
        )


class _JudgeMetric(_Wrapper):
    llm_judge: _Judge = Field(default_factory=_Judge)


_ENTRIES: Mapping[str, type[_CriterionEntry]] = {
    "final_response_avg_score": _FinalResponseMetric,
    "tool_trajectory_avg_score": _TrajectoryMetric,
    "response_match_score": _NoOptions,
    "exact_match": _ExactMatch,
    "contains": _Contains,
    "regex": _Regex,
    "length": _LengthMetric,
    "json_match": _Json,
    "rouge": _RougeMetric,
    "numeric": _Numeric,
    "tool_trajectory": _Trajectory,
    "latency": _Latency,
    "cost": _Cost,
    **dict.fromkeys(JUDGE_METRICS, _JudgeMetric),
}
