"""Criteria: what a metric compares, and how. Those of text, JSON and tool calls are defined with their comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from promptiter.agents.runner import Runner
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.text_match import NumericCriterion, RougeCriterion, TextCriterion
from promptiter.evaluation.metrics.trajectory import TrajectoryCriterion
from promptiter.llm.secret import Secret
from traces.model import Json

ModelsAggregator: TypeAlias = Literal[
    "all_pass", "any_pass", "majority_pass", "avg", "weighted_avg", "weighted_majority"
]

RubricKind: TypeAlias = Literal["response", "critic", "reference_critic", "knowledge_recall"]
JudgeKind: TypeAlias = Literal["final_response"] | RubricKind

JUDGE_METRICS: Mapping[str, JudgeKind] = {
    "llm_final_response": "final_response",
    "llm_rubric_response": "response",
    "llm_rubric_critic": "critic",
    "llm_rubric_reference_critic": "reference_critic",
    "llm_rubric_knowledge_recall": "knowledge_recall",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalResponseCriterion:
    """How an answer is compared. All parts that are given must match."""

    text: TextCriterion | None = None
    json: JsonCriterion | None = None
    rouge: RougeCriterion | None = None

    @property
    def needs_reference(self) -> bool:
        return any(part is not None and part.needs_reference for part in self._parts)

    @property
    def has_patterns(self) -> bool:
        return any(part is not None and part.has_patterns for part in self._parts)

    @property
    def description(self) -> str:
        return "; ".join(part.description for part in self._parts if part is not None)

    @property
    def _parts(self) -> tuple[TextCriterion | JsonCriterion | RougeCriterion | None, ...]:
        return self.text, self.json, self.rouge


@dataclass(frozen=True, slots=True)
class Limit:
    """What a run may take: seconds or dollars, depending on the metric."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeModel:
    """A model that judges, or an agent or function: `model_name` may be `module:attr`, and `runner` replaces it.

    Values that may be secret are wrapped; `reveal` unwraps them for the call itself.
    """

    model_name: str = ""
    runner: Runner | None = None
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
    """Which models judge, by which rubrics, and how their verdicts are combined. No models: the caller's default.

    `show_reference`: whether the judge of `llm_rubric_response` and `llm_rubric_critic` sees the reference. If None, it
    does if a rubric mentions one.
    """

    models: tuple[JudgeModel, ...] = ()
    models_aggregator: ModelsAggregator = "all_pass"
    parallel: bool = True
    rubrics: tuple[Rubric, ...] = ()
    knowledge_tool_names: tuple[str, ...] = ()
    show_reference: bool | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """The criterion of a metric that is built elsewhere, as given. `reveal` unwraps secrets in it."""

    values: Mapping[str, Json] = field(default_factory=dict)


Criterion: TypeAlias = (
    FinalResponseCriterion | RougeCriterion | NumericCriterion | TrajectoryCriterion | Limit | JudgeConfig | Options
)
