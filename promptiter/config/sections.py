"""The sections of promptiter.yaml: the keys of each mapping, and the values they take."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator

from promptiter.config.fields import (
    Above0,
    Amount,
    Chance,
    Count,
    File,
    Finite,
    Flag,
    Names,
    Section,
    Share,
)
from promptiter.errors import SetupError
from promptiter.policies.figure_gain import Direction, Operator
from promptiter.policies.goals import MARGIN
from promptiter.policies.sigma_gain import Holdout
from promptiter.runs.app_names import APP_NAME
from promptiter.sources.place import parse_place
from promptiter.stages.losses import Severity
from traces.model import Json


def _parse_goal(value: Json) -> Json:
    if value == "score":
        return {}
    if isinstance(value, str) and value in Goals.model_fields:
        return {value: {}}
    if isinstance(value, dict) and len(value) == 1:
        return value
    raise ValueError("must be score, cheaper or fewer_tokens, or a mapping with one of the last two")


def _parse_final_test(value: Json) -> Json:
    return None if value is False else {} if value is True else value


class Shares(Section):
    """Shares of `data`. Cases that are alike stay together."""

    train: Share = 0.6
    """Share of the train set."""
    validation: Share = 0.4
    """Share of the validation set."""
    test: Share = 0.0
    """Share of the test set."""
    seed: Annotated[int, Field(strict=True)] = 0
    """Random seed of the split."""


class PenaltiesSection(Section):
    """What cost and latency add to the weighted loss."""

    cost_per_usd: Amount = 0.0
    """Loss for each dollar of a sweep: one run of every case."""
    latency_per_sec: Amount = 0.0
    """Loss for each second of the mean time of a case."""


class CheaperGoal(Section):
    """The same quality with cheaper models."""

    models: Names = ()
    """The models to try; by default the choices of each node."""
    margin: Chance = MARGIN
    """The loss of score that is tolerated."""


class FewerTokensGoal(Section):
    """The same quality with shorter texts."""

    margin: Chance = MARGIN
    """The loss of score that is tolerated."""


def _require_one(schema: dict[str, Any]) -> None:
    """Add to the JSON schema that exactly one key is given, which pydantic does not know."""
    schema["oneOf"] = [{"required": [key], "properties": {key: {"type": "object"}}} for key in schema["properties"]]


class Goals(Section):
    """Goals other than the score; exactly one of them."""

    model_config = ConfigDict(json_schema_extra=_require_one)

    cheaper: CheaperGoal | None = None
    """The same quality with cheaper models."""
    fewer_tokens: FewerTokensGoal | None = None
    """The same quality with shorter texts."""


GoalEntry = Annotated[
    Goals,
    BeforeValidator(_parse_goal, json_schema_input_type=Literal["score", "cheaper", "fewer_tokens"] | Goals),
]


class SigmaGainEntry(Section):
    """The gain on train must exceed the spread of repeated sweeps, and the hold-out must not lose more than its own."""

    accept_sigma: Amount = 1.0
    """How many standard deviations the gain must exceed."""
    repeats: Count = 3
    """Sweeps of the train set."""
    holdout: Holdout = "on_train_improve"
    """When the hold-out is run."""
    folds: Annotated[int, Field(strict=True, ge=2)] = 5
    """Folds of the hold-out."""
    seed: Annotated[int, Field(strict=True)] = 0
    """Random seed of the folds."""


class ConstraintEntry(Section):
    """Bounds for tokens, cost_usd, characters, latency_s or a metric; `_times` is relative to the accepted profile."""

    figure: str
    """The figure that is bounded."""
    at_most: Finite | None = None
    """Upper bound."""
    at_least: Finite | None = None
    """Lower bound."""
    at_most_times: Amount | None = None
    """Upper bound, as a multiple of the accepted profile's figure."""
    at_least_times: Amount | None = None
    """Lower bound, as a multiple of the accepted profile's figure."""
    measured: Flag = False
    """Allow figures of the clock, which differ from run to run."""


class TieBreakEntry(Section):
    """If the scores differ by less than `min_gain`, the first of these figures that differs decides."""

    by: Names
    """The figures, in order."""
    min_gain: Amount = 0.0
    """Scores that differ by less are close."""
    measured: Flag = False
    """Allow figures of the clock, which differ from run to run."""


def _require_side(schema: dict[str, Any]) -> None:
    """Add to the JSON schema that exactly one side is given, which pydantic does not know."""
    schema["oneOf"] = [{"required": [key], "properties": {key: {"type": "string"}}} for key in schema["properties"]]


class TieBreakerEntry(Section):
    """A figure that is better when it is `lower`, or when it is `higher`."""

    model_config = ConfigDict(json_schema_extra=_require_side)

    lower: str | None = None
    """A figure of which less is better."""
    higher: str | None = None
    """A figure of which more is better."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.lower is None) == (self.higher is None):
            raise ValueError("needs exactly one of lower and higher")
        return self


class FigureGainEntry(Section):
    """A figure of the scorer must be better; if it is equal or close, the first tie-breaker that differs decides."""

    figure: str
    """The figure that decides."""
    direction: Direction = "maximize"
    """Whether more or less is better."""
    min_gain: Amount = 0.0
    """A difference up to this is a tie."""
    tie_breakers: tuple[TieBreakerEntry, ...] = ()
    """Figures that decide ties, in order: `lower: runtime_s`, `higher: coverage`."""
    sigma: Amount = 0.0
    """With repeats, a difference of up to this many times the spread of equal runs is a tie."""


class BoundEntry(Section):
    """A figure of the scorer, in its own units, compared with a value."""

    figure: str
    """The figure that is bounded."""
    op: Operator
    """The comparison that must hold."""
    value: Finite
    """What the figure is compared with. True and false count as 1 and 0."""


class EditLimitsEntry(Section):
    """How much a candidate may differ from the profile that it was made from."""

    max_files: Count | None = None
    """Surfaces."""
    max_changed_lines: Count | None = None
    """Lines that are added or removed."""


class Acceptance(Section):
    """What a candidate must show; all conditions must hold. Without one on the gain, any gain above 0 counts."""

    min_gain: Amount | None = None
    """Minimum gain."""
    sigma_gain: SigmaGainEntry | None = None
    """A gain on train beyond noise: `accept_sigma` (1.0), `repeats` (3), `holdout` (`on_train_improve`), `folds` (5),
    `seed` (0).
    """
    tie_break: TieBreakEntry | None = None
    """Figures that decide between close scores: `by`, `min_gain` (0), `measured` (`false`)."""
    figure_gain: FigureGainEntry | None = None
    """A figure of the scorer that must be better: `figure`, `direction` (`maximize`), `min_gain` (0),
    `tie_breakers`, `sigma` (0).
    """
    bounds: tuple[BoundEntry, ...] = ()
    """Bounds of figures of the scorer: `figure`, `op` and `value`. They are checked first."""
    no_regression: Flag = False
    """Every case that passed must still pass."""
    protected: Names = ()
    """Ids of cases that must still pass."""
    constraints: tuple[ConstraintEntry, ...] = ()
    """Bounds: `figure` and `at_most`, `at_least`, `at_most_times` or `at_least_times`; `measured` (`false`) for
    `latency_s`.
    """


class FinalTestSection(Section):
    """The test at the end of a run. Its significance level is the run's `alpha`."""

    repeats: Count = 2
    """The final test runs up to three blocks and ends once the result is clear. Each block runs every case this often
    with each profile. If the third leaves a promising gain open, and there are at most 100 cases, a last block
    runs them five times as often.
    """
    min_detectable_gain: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.1
    """The gain that your cases should be able to show."""
    ablate: Flag = True
    """First drop changes that do not help."""


FinalTestEntry = Annotated[
    FinalTestSection | None, BeforeValidator(_parse_final_test, json_schema_input_type=bool | FinalTestSection | None)
]


class StopConditions(Section):
    """The search ends after the round in which any of these holds. The final test follows."""

    target_score: Finite | None = None
    """The validation score to reach."""
    patience: Count | None = None
    """Rounds without an accepted candidate."""
    minutes: Above0 | None = None
    """A deadline."""
    max_evaluations: Count | None = None
    """Cases run with candidates."""
    max_calls: Count | None = None
    """Model calls."""
    max_tokens: Count | None = None
    """Tokens."""
    max_usd: Above0 | None = None
    """Dollars."""
    required_metrics: Names | None = None
    """Metrics whose mean must reach their threshold, or `all`."""


class Stop(StopConditions):
    """The search ends after the round in which any of these holds. The final test follows."""

    stop_file: File | None = None
    """Stops when this file exists."""
    max_failures: Count | None = None
    """Candidates that crashed."""


class Caps(Section):
    """Hard caps: a call that would exceed one is not made, which may end a round early."""

    max_usd: Amount | None = None
    """Dollars."""
    max_calls: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Model calls."""
    max_tokens: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Tokens."""
    max_metric_calls: Count | None = None
    """Cases that the run evaluates; repeats of a case count once. Two per case are reserved for the final test."""


class BudgetCaps(Caps):
    """Hard caps: a call that would exceed one is not made, which may end a round early."""

    allow_unknown_price: Flag = False
    """With `max_usd`: also call models without a known price."""


class EvaluationSection(Section):
    """How cases are run."""

    repeats: Count | None = None
    """Runs of each case; by default `num_runs` of the metrics file."""
    concurrency: Count = 16
    """Cases run at the same time."""
    case_timeout_s: Above0 | None = None
    """Time limit of one run of a case."""
    max_errored_fraction: Share = 0.25
    """An evaluation with a larger share of failed runs is invalid."""


class LossPlacementEntry(Section):
    """Failures of a metric are placed on a node, instead of the last steps."""

    metric: str
    """The metric."""
    node_id: str
    """The node."""


class HintEntry(Section):
    """A hint about a metric that fails on a case."""

    case_id: str
    """The case."""
    metric: str
    """The metric that fails."""
    text: str = ""
    """What you know, for the stage that blames."""
    severity: Severity | None = None
    """`P0` (worst) to `P3`, instead of the computed one."""


class SourceEntry(Section):
    """Where the value of a surface is stored: a mapping, or only the place."""

    place: str
    """A file, `prompts.md#Heading`, `config.yaml:field`, `config.json:field`, `agent.py:NAME`, or `module:attr`."""
    encoding: str | None = None
    """The encoding of the file; by default that of its byte order mark, else UTF-8."""


def _parse_source(value: Json, info: ValidationInfo) -> Json:
    if isinstance(value, str):
        value = {"place": value}
    if isinstance(value, dict) and isinstance(value.get("place"), str):
        folder = (info.context or {}).get("folder")
        try:
            file, _ = parse_place(value["place"])
        except SetupError as error:
            raise ValueError(str(error)) from error
        if folder is not None and file is not None:
            value = {**value, "place": str(folder / value["place"])}
    return value


SourceItem = Annotated[SourceEntry, BeforeValidator(_parse_source, json_schema_input_type=str | SourceEntry)]


class ServerSection(Section):
    """What requests to `promptiter serve` may name, besides the eval sets of the file."""

    app: Annotated[str, Field(pattern=APP_NAME)] | None = None
    """The name in addresses: letters, digits, `-`, `_` and `.`. By default that of the folder."""
    eval_sets: dict[str, File] = Field(default_factory=dict)
    """Eval sets by id."""
    metrics: dict[str, File] = Field(default_factory=dict)
    """Metrics files by id."""
    judges: dict[str, str] = Field(default_factory=dict)
    """Judges by id: models, or agents or functions as `module:attr`."""
    teachers: dict[str, str] = Field(default_factory=dict)
    """Teachers by id: models, or agents or functions as `module:attr`."""
