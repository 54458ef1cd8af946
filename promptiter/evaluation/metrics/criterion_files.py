"""The `criterion` of each metric, as files write it. `read_criterion` turns one into the criterion it describes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

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
    criterion = entry.build()
    if isinstance(criterion, TextCriterion):
        return FinalResponseCriterion(text=criterion)
    return FinalResponseCriterion(json=criterion) if isinstance(criterion, JsonCriterion) else criterion


class _Entry(FileObject):
    """A criterion in a file. It is built once while it is checked, so that its own complaints name the place, too."""

    def build(self) -> Criterion | TextCriterion | JsonCriterion:
        raise NotImplementedError

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.build()
        except MetricError as error:
            raise ValueError(str(error)) from error
        return self


_Amount = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=0)]
_Name = Annotated[str, Field(min_length=1)]


class _Length(FileObject):
    min: _Count | None = None
    max: _Count | None = None


class _Text(_Entry):
    match: TextMatch = Field(default="exact", validation_alias=spell("match", "match_strategy"))
    case_insensitive: bool = False
    length: _Length = _Length()
    ignore: bool = False
    expected: str | None = None

    def build(self) -> TextCriterion:
        options = {name: value for name, value in self if name != "length"}
        return TextCriterion(min_length=self.length.min, max_length=self.length.max, **options)


class _ExactMatch(_Entry):
    match: ClassVar[TextMatch] = "exact"
    case_insensitive: bool = False
    ignore: bool = False
    expected: str | None = None

    def build(self) -> TextCriterion:
        return TextCriterion(match=self.match, **dict(self))


class _Contains(_ExactMatch):
    match: ClassVar[TextMatch] = "contains"


class _Regex(_ExactMatch):
    match: ClassVar[TextMatch] = "regex"


class _LengthMetric(_Length, _Entry):
    def build(self) -> TextCriterion:
        if self.min is None and self.max is None:
            raise MetricError("limits nothing; give it min, max or both")
        return TextCriterion(ignore=True, min_length=self.min, max_length=self.max)


class _Json(_Entry):
    match: Literal["exact"] = Field(default="exact", validation_alias=spell("match", "match_strategy"))
    ignore_tree: dict[str, Any] | None = None
    only_tree: dict[str, Any] | None = None
    number_tolerance: _Amount = DEFAULT_NUMBER_TOLERANCE
    json_schema: dict[str, Any] | None = Field(default=None, validation_alias="schema")
    ignore: bool = False

    def build(self) -> JsonCriterion:
        return JsonCriterion(
            ignore_tree=self.ignore_tree,
            only_tree=self.only_tree,
            number_tolerance=self.number_tolerance,
            schema=self.json_schema,
            ignore=self.ignore,
        )


def _normalize_rouge(value: Json) -> Json:
    """`rouge-L`, `ROUGE_L` and `rougeL` are the same."""
    known = {name.lower(): name for name in get_args(RougeType)}
    return known.get(value.lower().replace("-", "").replace("_", ""), value) if isinstance(value, str) else value


def _reject_threshold(_: Json) -> Json:
    raise ValueError("belongs beside metric_name, not in the criterion")


_RougeType = Annotated[RougeType, BeforeValidator(_normalize_rouge)]


class _Rouge(_Entry):
    type: _RougeType = Field(default="rouge1", validation_alias=spell("type", "rouge_type"))
    threshold: float = 1.0

    def build(self) -> RougeCriterion:
        return RougeCriterion(type=self.type, threshold=self.threshold)


class _RougeMetric(_Entry):
    type: _RougeType = Field(default="rouge1", validation_alias=spell("type", "rouge_type"))
    threshold: Annotated[None, BeforeValidator(_reject_threshold)] = None

    def build(self) -> RougeCriterion:
        return RougeCriterion(type=self.type)


class _FinalResponse(FileObject):
    text: _Text | None = Field(default=None, validation_alias=spell("text", "text_strategy"))
    as_json: _Json | None = Field(default=None, validation_alias=spell("json", "json_strategy"))
    rouge: _Rouge | None = None

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.text is None and self.as_json is None and self.rouge is None:
            raise ValueError("compares nothing; give it text, json or rouge")
        return self


class _FinalResponseMetric(_Entry):
    final_response: _FinalResponse | None = None

    def build(self) -> FinalResponseCriterion:
        if (given := self.final_response) is None:
            return FinalResponseCriterion(text=TextCriterion())
        return FinalResponseCriterion(
            text=given.text.build() if given.text else None,
            json=given.as_json.build() if given.as_json else None,
            rouge=given.rouge.build() if given.rouge else None,
        )


class _NoOptions(_Entry):
    def build(self) -> RougeCriterion:
        return RougeCriterion()


class _Numeric(_Entry):
    which: NumberChoice = "last"
    tolerance: _Amount = 0.0
    relative_tolerance: _Amount = 0.0
    expected: float | None = None

    def build(self) -> NumericCriterion:
        return NumericCriterion(**dict(self))


class _ToolCall(FileObject):
    name: _Text | None = None
    arguments: _Json | None = None
    result: _Json | None = None

    def build(self, default: ToolCriterion) -> ToolCriterion:
        return ToolCriterion(
            name=self.name.build() if self.name else default.name,
            arguments=self.arguments.build() if self.arguments else default.arguments,
            result=self.result.build() if self.result else default.result,
        )


class _Trajectory(_Entry):
    default: _ToolCall = Field(default=_ToolCall(), validation_alias=spell("default", "default_strategy"))
    overrides: dict[str, _ToolCall] = Field(default_factory=dict, validation_alias=spell("overrides", "tool_strategy"))
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


class _TrajectoryMetric(_Entry):
    tool_trajectory: _Trajectory = _Trajectory()

    def build(self) -> TrajectoryCriterion:
        return self.tool_trajectory.build()


class _Latency(_Entry):
    limit_s: float = Field(gt=0)

    def build(self) -> Limit:
        return Limit(self.limit_s)


class _Cost(_Entry):
    limit_usd: float = Field(gt=0)

    def build(self) -> Limit:
        return Limit(self.limit_usd)


class _JudgeModel(FileObject):
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


class _RubricContent(FileObject):
    text: _Name


class _Rubric(FileObject):
    id: _Name
    content: Annotated[
        _RubricContent, BeforeValidator(lambda value: {"text": value} if isinstance(value, str) else value)
    ]
    description: str = ""
    type: str = ""


class _Judge(FileObject):
    judge_model: _JudgeModel | None = None
    judge_models: list[_JudgeModel] = Field(default_factory=list)
    models_aggregator: ModelsAggregator = "all_pass"
    parallel: bool = True
    rubrics: list[_Rubric] = Field(default_factory=list)
    knowledge_tool_names: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        models, aggregator = self.models, self.models_aggregator
        if self.judge_model is not None and self.judge_models:
            raise ValueError("has both judge_model and judge_models; keep one of them")
        if models and aggregator.startswith("weighted") and not any(model.weight for model in models):
            raise ValueError(f"{aggregator} needs a weight above 0, and all models have weight 0; give one a weight")
        if len({rubric.id for rubric in self.rubrics}) < len(self.rubrics):
            raise ValueError("two rubrics have the same id; give each its own")
        return self

    @property
    def models(self) -> list[_JudgeModel]:
        return self.judge_models if self.judge_model is None else [self.judge_model]


class _JudgeMetric(_Entry):
    llm_judge: _Judge = _Judge()

    def build(self) -> JudgeConfig:
        judge = self.llm_judge
        return JudgeConfig(
            models=tuple(JudgeModel(**dict(model)) for model in judge.models),
            models_aggregator=judge.models_aggregator,
            parallel=judge.parallel,
            rubrics=tuple(
                Rubric(id=rubric.id, text=rubric.content.text, description=rubric.description, type=rubric.type)
                for rubric in judge.rubrics
            ),
            knowledge_tool_names=tuple(judge.knowledge_tool_names),
        )


_ENTRIES: Mapping[str, type[_Entry]] = {
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
