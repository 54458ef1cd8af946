"""The sections of promptiter.yaml: the keys of each mapping, and the values they take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from promptiter.llm.secret import hide_by_name
from promptiter.llm.secret_fields import ExpandedText, SecretText, SecretValues
from promptiter.policies.goals import MARGIN
from promptiter.policies.sigma_gain import Holdout
from promptiter.registry import MODELS
from promptiter.stages.losses import Severity
from traces.model import Json


def _resolve_path(path: Path, info: ValidationInfo) -> Path:
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None else folder / path


def _to_list(value: Json) -> Json:
    return [value] if isinstance(value, str | Path) else value


def _parse_metrics(value: Json, info: ValidationInfo) -> Json:
    if isinstance(value, str | Path):
        return _resolve_path(Path(value), info)
    if isinstance(value, list | dict):
        return value
    raise ValueError("must be a metrics file, or a list of metrics")


def _parse_cache(value: Json, info: ValidationInfo) -> Json:
    if not isinstance(value, str):
        raise ValueError("must be 'memory', or a path in .jsonl, .sqlite or .db")  # noqa: TRY004 - pydantic catches these
    return value if value == "memory" else str(_resolve_path(Path(value), info))


def _parse_stages(value: Json) -> Json:
    return dict.fromkeys(("backwarder", "aggregator", "optimizer"), value) if isinstance(value, str) else value


def _parse_goal(value: Json) -> Json:
    if value == "score":
        return {}
    if isinstance(value, str) and value in Goals.model_fields:
        return {value: {}}
    if isinstance(value, dict) and len(value) == 1:
        return value
    raise ValueError("must be score, cheaper or fewer_tokens, or a mapping with one of the last two")


def _parse_switch(value: Json) -> Json:
    return "off" if value is False else value  # YAML reads `off` as false


def _keep_validated(value: Json, validate: ValidatorFunctionWrapHandler) -> Json:
    return value if isinstance(value, BaseModel) else validate(value)


def _parse_final_test(value: Json) -> Json:
    return None if value is False else {} if value is True else value


def _hide_headers(value: Json) -> Json:
    return hide_by_name({"headers": value})["headers"]


Count = Annotated[int, Field(strict=True, ge=1)]
Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Chance = Annotated[float, Field(strict=True, gt=0, lt=1)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
File = Annotated[Path, AfterValidator(_resolve_path)]
Files = Annotated[tuple[File, ...], BeforeValidator(_to_list)]
Names = Annotated[tuple[str, ...], BeforeValidator(_to_list)]
MetricsEntry = Annotated[Path | list[Any] | dict[str, Any] | None, PlainValidator(_parse_metrics), Field(repr=False)]
CacheEntry = Annotated[str, PlainValidator(_parse_cache)]


class Section(BaseModel):
    """A mapping of the file. It is frozen and rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Shares(Section):
    """How `data` is split. Similar cases stay together."""

    train: Share = 0.6
    validation: Share = 0.4
    test: Share = 0.0
    seed: int = 0


class ModelPrice(Section):
    """Dollars per million tokens."""

    input_usd_per_million: Amount
    output_usd_per_million: Amount
    cached_usd_per_million: Amount | None = None


class ModelSettings(Section):
    """Where a model is served, with its key and price. Give the key as `${VAR}`.

    Headers are treated as secrets, except for a few such as `Content-Type`, and so are options with a secret's name.
    `options` (temperature, …) are for the stages that ask this model; the nodes of an agent have their own.
    """

    api_base: ExpandedText | None = Field(default=None, repr=False)
    api_key: SecretText = None
    headers: Annotated[SecretValues, AfterValidator(_hide_headers)] = Field(default_factory=dict)
    timeout_s: Above0 | None = None
    options: Annotated[dict[str, Any], BeforeValidator(hide_by_name)] = Field(default_factory=dict)
    price: ModelPrice | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None


class Stages(Section):
    """The models that the stages ask. A stage without a model uses the implementation that needs none.

    `attribution` says how the backwarder's model is asked: about each step (`walk`), about the whole trace, or with
    `auto` whichever is expected to cost less. `check_gradients` is how much of a round's blame is checked by replays:
    with `auto` a dozen if a model blames, otherwise none. A `corrector` model is asked for the corrected output of a
    step where the expected answer does not determine it.
    """

    backwarder: str | None = None
    aggregator: str | None = None
    optimizer: str | None = None
    attribution: Literal["auto", "walk", "whole_trace"] = "auto"
    check_gradients: Annotated[Literal["auto", "off"] | Count, BeforeValidator(_parse_switch)] = "auto"
    corrector: str | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The names of these models, without duplicates."""
        asked = {self.backwarder, self.aggregator, self.optimizer, self.corrector}
        return tuple(sorted(name for name in asked if name is not None))


class Models(Section):
    """The models of the stages, and the settings of models by name. Registered models declare their own settings."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[ModelSettings, WrapValidator(_keep_validated)]] = Field(init=False)

    stages: Annotated[Stages, BeforeValidator(_parse_stages)] = Stages()

    @model_validator(mode="before")
    @classmethod
    def _read_registered(cls, value: Json) -> Json:
        """Validate the settings of registered models with the schema that each declares."""
        if not isinstance(value, dict):
            return value
        kinds: dict[str, Any] = {name: (MODELS.get(name).Settings, ...) for name in value if name in MODELS}
        read = create_model("Registered", **kinds).model_validate({name: value[name] for name in kinds})
        return value | {name: getattr(read, name) for name in kinds}

    @property
    def settings(self) -> dict[str, ModelSettings]:
        """The settings of models that a service provides."""
        return {name: each for name, each in self._extra.items() if isinstance(each, ModelSettings)}

    @property
    def registered(self) -> dict[str, BaseModel]:
        """The settings of registered models."""
        return {name: each for name, each in self._extra.items() if not isinstance(each, ModelSettings)}

    @property
    def _extra(self) -> dict[str, Any]:
        return self.__pydantic_extra__ or {}


class CheaperGoal(Section):
    """The same quality with cheaper models: those named here, or the choices of each node."""

    models: Names = ()
    margin: Chance = MARGIN


class FewerTokensGoal(Section):
    """The same quality with shorter texts."""

    margin: Chance = MARGIN


class Goals(Section):
    """Goals other than the score; at most one of them. `margin` bounds the loss of score that is tolerated."""

    cheaper: CheaperGoal | None = None
    fewer_tokens: FewerTokensGoal | None = None


GoalEntry = Annotated[Goals, BeforeValidator(_parse_goal)]


class PairedGainEntry(Section):
    """An exact test for each candidate, after each block of `repeats`; `alpha` covers all candidates."""

    alpha: Chance = 0.05
    repeats: tuple[Count, ...] = (2, 2, 2)


class SigmaGainEntry(Section):
    """The gain on train must exceed the spread of repeated sweeps, and the hold-out must not lose more than its own."""

    accept_sigma: Amount = 1.0
    repeats: Count = 3
    holdout: Holdout = "on_train_improve"
    folds: Annotated[int, Field(strict=True, ge=2)] = 5
    seed: Annotated[int, Field(strict=True)] = 0


class ConstraintEntry(Section):
    """Bounds for tokens, cost_usd, characters, latency_s or a metric; `_times` is relative to the accepted profile."""

    figure: str
    at_most: Finite | None = None
    at_least: Finite | None = None
    at_most_times: Amount | None = None
    at_least_times: Amount | None = None
    measured: Flag = False


class TieBreakEntry(Section):
    """If the scores differ by less than `min_gain`, the first of these figures that differs decides."""

    by: Names
    min_gain: Amount = 0.0
    measured: Flag = False


class Acceptance(Section):
    """What a candidate must show; all conditions must hold. Without one on the gain, any gain above 0 counts."""

    min_gain: Amount | None = None
    paired_gain: PairedGainEntry | None = None
    sigma_gain: SigmaGainEntry | None = None
    tie_break: TieBreakEntry | None = None
    no_regression: Flag = False
    protected: Names = ()
    constraints: tuple[ConstraintEntry, ...] = ()


class FinalTestSection(Section):
    """The test at the end of a run: `repeats` of each case and profile in each of 3 blocks.

    `min_detectable_gain` is the gain that the cases should be able to show. `ablate` first removes patches that do not
    help. The significance level is the run's `alpha`.
    """

    repeats: Count = 2
    min_detectable_gain: Above0 = 0.1
    ablate: Flag = True


FinalTestEntry = Annotated[FinalTestSection | None, BeforeValidator(_parse_final_test)]


class Stop(Section):
    """When the search ends: checked after each round, the first condition that holds ends it."""

    target_score: Finite | None = None
    patience: Count | None = None
    minutes: Above0 | None = None
    max_evaluations: Count | None = None
    max_calls: Count | None = None
    max_tokens: Count | None = None
    max_usd: Above0 | None = None
    required_metrics: Names | None = None
    stop_file: File | None = None


class BudgetCaps(Section):
    """Hard caps: a call that would exceed one is not made, which may end a round early."""

    max_usd: Amount | None = None
    max_calls: Annotated[int, Field(strict=True, ge=0)] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=0)] | None = None
    allow_unknown_price: Flag = False


class EvaluationSection(Section):
    """How cases are run. `repeats` defaults to num_runs of the metrics file."""

    repeats: Count | None = None
    concurrency: Count = 16
    case_timeout_s: Above0 | None = None
    max_errored_fraction: Share = 0.25


class LossPlacementEntry(Section):
    """Failures of this metric are blamed on this node."""

    metric: str
    node_id: str


class HintEntry(Section):
    """A hint about a metric that fails on a case."""

    case_id: str
    metric: str
    text: str = ""
    severity: Severity | None = None
