"""The keys of optimizer.json. They may be snake_case or camelCase; unknown keys are errors.

The `evaluate` block is a metric file, which `promptiter.evaluation.metrics.metric_files` reads.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from promptiter.llm.secret_fields import CheckedText, ExpandedText
from promptiter.search.gepa_library import CandidateSelection, FrontierType, ModuleSelector
from promptiter.user_files import FileObject

Count = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]

STOPPERS = (
    "max_metric_calls",
    "max_iterations_without_improvement",
    "timeout_seconds",
    "score_threshold",
    "max_candidate_proposals",
    "max_tracked_candidates",
)
"""The six stop conditions of an algorithm; one of them must be given."""


class ReflectionModel(FileObject):
    """`reflection_lm`: the model that writes new prompts."""

    model_name: ExpandedText
    """The model."""
    base_url: ExpandedText | None = None
    """Address of its server."""
    api_key: CheckedText = Field(default="", repr=False)
    """Its key, best written as `${VAR}`."""
    generation_config: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Options of its calls, such as `max_tokens` and `temperature`."""
    provider_name: str = ""
    """The provider, as litellm names it."""
    extra_fields: dict[str, Any] = Field(default_factory=dict, repr=False)
    """More fields of the request's body."""
    think: bool | None = None
    """Whether the model thinks before it answers."""
    variant: str = ""
    """Refused: a variant of OpenAI's protocol."""
    num_samples: int | None = None
    """Refused, unless it is 1: samples of an answer."""
    weight: float = 1.0
    """Refused, unless it is 1: the weight among several judges."""

    @field_validator("model_name")
    @classmethod
    def _require_name(cls, value: str) -> str:
        if not value:
            raise ValueError("must not be empty; name the model that writes new prompts")
        return value

    @model_validator(mode="after")
    def _refuse_advanced(self) -> ReflectionModel:
        usual = {"variant": "", "num_samples": 1, "weight": 1.0}
        for name, value in usual.items():
            given = getattr(self, name)
            if given not in (value, None):
                raise ValueError(f"{name} is {given!r}, which is not supported for a reflection model; leave it out")
        return self


class RequiredMetricsSection(FileObject):
    """`stop`: the metrics that must reach their thresholds."""

    required_metrics: Literal["all"] | list[str] = "all"
    """`"all"`, a list of metrics, or `null` or `[]` for none."""

    @model_validator(mode="before")
    @classmethod
    def _read_null(cls, value: Any) -> Any:
        """Null is a value here, not a key that is left out."""
        if not isinstance(value, dict):
            return value
        names = ("required_metrics", "requiredMetrics")
        return {key: [] if key in names and each is None else each for key, each in value.items()}


class Algorithm(FileObject):
    """`algorithm`: a registered search, its seed, its model and its stop conditions.

    Other keys are options of the search.
    """

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(min_length=1)]
    """The search: `gepa_reflective`, or any that is registered."""
    reflection_lm: ReflectionModel | None = None
    """The model that writes new prompts."""
    seed: int = 42
    """Random seed."""
    max_metric_calls: Count | None = None
    """Evaluated cases: a hard budget."""
    max_iterations_without_improvement: Count | None = None
    """Rounds without an accepted candidate."""
    timeout_seconds: Above0 | None = None
    """A deadline, checked after each round."""
    score_threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    """The pass rate of validation to reach."""
    max_candidate_proposals: Count | None = None
    """Candidates that are proposed."""
    max_tracked_candidates: Count | None = None
    """Candidates that the search keeps."""

    @model_validator(mode="after")
    def _require_stopper(self) -> Algorithm:
        if all(getattr(self, name) is None for name in STOPPERS):
            raise ValueError(f"has no stop condition; give at least one of {', '.join(STOPPERS)}")
        return self


class GepaAlgorithm(Algorithm):
    """`algorithm` of `gepa_reflective`."""

    model_config = ConfigDict(extra="forbid")

    candidate_selection_strategy: CandidateSelection = "pareto"
    """How the parent of the next candidate is chosen."""
    module_selector: ModuleSelector = "round_robin"
    """Which prompts a round rewrites: `round_robin`, `all`, `random`, or `blame`."""
    frontier_type: FrontierType = "instance"
    """What a candidate must be best at to stay: a case, a metric, one of both, or a case under a metric."""
    reflection_minibatch_size: Count | None = None
    """Train cases of a round."""
    reflection_history_top_k: Annotated[int, Field(ge=0, le=5)] = 2
    """How many of the best earlier answers to a case the model sees."""
    perfect_score: float = 1.0
    """The score of a case that needs no change."""
    skip_perfect_score: bool = True
    """Skip rounds whose train cases all have the perfect score."""
    use_merge: bool = False
    """Also merge two candidates. It takes at least two prompts."""
    max_merge_invocations: Annotated[int, Field(ge=0)] = 5
    """Merges."""
    merge_val_overlap_floor: Count = 5
    """Validation cases that two candidates must share to be merged."""
    cache_evaluation: bool = False
    """Keep the scores of a candidate on a case, instead of running it again."""
    track_best_outputs: bool = False
    """Keep the best answer to each case."""


class OptimizeSection(FileObject):
    """`optimize`: how prompts are searched for."""

    eval_case_parallelism: Count = 4
    """Cases run at the same time."""
    stop: RequiredMetricsSection = RequiredMetricsSection()
    """The metrics that must reach their thresholds."""
    algorithm: dict[str, Any]
    """The search and its options."""


class OptimizerFile(FileObject):
    """optimizer.json."""

    evaluate: dict[str, Any]
    """The metrics, as in a metric file."""
    optimize: OptimizeSection
    """How prompts are searched for."""
