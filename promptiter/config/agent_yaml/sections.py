"""The keys of agent.yaml. The block `evaluations.optimizer` is checked key by key; other tools' keys are ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import ConfigDict, Field, model_validator

from promptiter.policies.sigma_gain import Holdout
from promptiter.user_files import FileObject, spell

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]

AxisType: TypeAlias = Literal["float", "int", "categorical", "bool"]


class OpenObject(FileObject):
    """An object with more keys than are used here."""

    model_config = ConfigDict(extra="allow")

    @property
    def others(self) -> dict[str, Any]:
        """The keys that have no field of their own."""
        return dict(self.model_extra or {})


class ModelBlock(OpenObject):
    """`model`: provider and name, and the options of its calls."""

    provider: str = ""
    """The provider, as litellm names it; `python` for a model of your own, whose name is `module:attr`."""
    name: Annotated[str, Field(min_length=1)]
    """The model."""
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: Count | None = None
    endpoint: str | None = None
    """Address of its server."""
    api_key: str | None = Field(default=None, repr=False)
    """Its key, best written as `${VAR}`."""


class Instructions(FileObject):
    """`instructions`: the text itself, or the file that has it."""

    inline: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.inline is None) == (self.file is None):
            raise ValueError("needs exactly one of inline and file")
        return self


class ToolBlock(OpenObject):
    """A tool: a function, or a search in documents. Its other keys are settings that the function takes."""

    name: Annotated[str, Field(min_length=1)]
    type: str = "function"
    description: str = ""
    function: str | None = None
    """The function as `module:attr`, or its name in `file`."""
    file: str | None = None
    """The Python file of the function."""
    source: str | None = None
    """The documents to search, without a function."""
    parameters: dict[str, Any] | None = None
    """The JSON schema of the arguments; by default that of the function's signature."""
    optional: bool = False
    """Whether the tool may be switched off: an axis of type bool."""
    enabled: bool = True
    """Whether the agent has the tool."""


class MetricBlock(OpenObject):
    """A metric: a standard one with its options, or a grader in Python."""

    type: str = "standard"
    metric: str = ""
    grader: str = ""
    name: str = ""
    threshold: Share | None = None
    enabled: bool = True
    fail_on_error: bool = False


class NumericAxis(FileObject):
    """A number, a choice or a switch to search."""

    path: Annotated[str, Field(min_length=1)]
    range: tuple[float, float] | None = None
    type: AxisType | None = None
    choices: list[Any] = Field(default_factory=list)
    scale: Literal["linear", "log"] = "linear"
    rebuild: str | None = None
    """A command that prepares the tool for a value, such as an index; run once per value."""

    @model_validator(mode="before")
    @classmethod
    def _read_range(cls, value: Any) -> Any:
        """A range is a list in YAML, and pydantic wants a tuple."""
        if isinstance(value, dict) and isinstance(value.get("range"), list):
            return {**value, "range": tuple(value["range"])}
        return value

    @property
    def kind(self) -> AxisType:
        """The type, or what the other keys say."""
        if self.type is not None:
            return self.type
        return "categorical" if self.choices else "float"


class TextualAxis(FileObject):
    """A text to improve."""

    path: Annotated[str, Field(min_length=1)]
    max_chars: Count | None = None


class Axes(FileObject):
    """What may change."""

    numeric: list[NumericAxis] = Field(default_factory=list)
    textual: list[TextualAxis] = Field(default_factory=list)


class GlobalBudget(FileObject):
    """When the run ends."""

    max_cycles: Count = 4
    max_minutes: Above0 | None = None
    max_usd: Above0 | None = None


class NumericBudget(FileObject):
    """When a numeric phase ends."""

    max_trials: Count = 15
    patience: Count = 5


class TextualBudget(FileObject):
    """When a textual phase ends."""

    max_trials: Count = 10
    patience: Count = 4


class BudgetBlock(FileObject):
    """`budget`: caps of the run and of each phase."""

    whole: GlobalBudget = Field(default=GlobalBudget(), validation_alias=spell("global"))
    numeric_phase: NumericBudget = NumericBudget()
    textual_phase: TextualBudget = TextualBudget()


class PenaltyBlock(FileObject):
    """`penalties`: what cost and latency add to the loss."""

    cost_per_usd: Amount = 0.0
    latency_per_sec: Amount = 0.0


class OptimizerBlock(FileObject):
    """`evaluations.optimizer`."""

    loss: dict[str, Amount] = Field(default_factory=dict)
    """The weight of each metric; a metric that is left out has the weight 0."""
    penalties: PenaltyBlock = PenaltyBlock()
    train_cases_file: str | None = None
    holdout_cases_file: str | None = None
    holdout_eval_policy: Holdout = "on_train_improve"
    min_holdout_cases: Count = 5
    k: Annotated[int, Field(ge=2)] = 5
    """Folds of the policy `k_fold`."""
    repeats: Count = 3
    accept_sigma: Amount = 1.0
    max_errored_fraction: Share = 0.25
    axes: Axes = Axes()
    budget: BudgetBlock = BudgetBlock()
    seed: int = 42
    min_confidence: Share = 0.4
    numeric_convergence_eps: Amount = 1e-3
    n_startup_trials: Count = 10
    n_ei_candidates: Count = 24
    multivariate: bool = True
    batch_size: Count = 1
    """Numeric trials that are proposed, and run, together."""
    co_optimize: list[list[str]] = Field(default_factory=list)
    """Groups of textual axes that one trial changes together."""


class Evaluations(OpenObject):
    """`evaluations`: the metrics, and how the agent is optimized."""

    metrics: list[MetricBlock] = Field(default_factory=list)
    optimizer: OptimizerBlock | None = None


class Execution(OpenObject):
    """`execution`: how cases are run."""

    parallel_test_cases: Count = 4
    llm_timeout: Above0 | None = None


class AgentFile(OpenObject):
    """agent.yaml."""

    name: Annotated[str, Field(min_length=1)] = "agent"
    model: ModelBlock
    instructions: Instructions
    tools: list[ToolBlock] = Field(default_factory=list)
    evaluations: Evaluations = Evaluations()
    execution: Execution = Execution()
    test_cases: list[Any] = Field(default_factory=list)
    test_cases_file: str | None = None
