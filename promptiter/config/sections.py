"""The parts of promptiter.yaml: which keys each mapping has, and what their values may be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
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


def _in_folder(path: Path, info: ValidationInfo) -> Path:
    folder: Path | None = (info.context or {}).get("folder")
    return path if folder is None else folder / path


def _as_list(value: Json) -> Json:
    return [value] if isinstance(value, str | Path) else value


def as_metrics(value: Json, info: ValidationInfo) -> Json:
    if isinstance(value, str | Path):
        return _in_folder(Path(value), info)
    if isinstance(value, list | dict):
        return value
    raise ValueError("must be a metrics file, or a list of metrics")


def as_cache(value: Json, info: ValidationInfo) -> Json:
    if not isinstance(value, str):
        raise ValueError("must be 'memory', or a path in .jsonl, .sqlite or .db")  # noqa: TRY004 - pydantic catches these
    return value if value == "memory" else str(_in_folder(Path(value), info))


def _as_stages(value: Json) -> Json:
    return dict.fromkeys(("backwarder", "aggregator", "optimizer"), value) if isinstance(value, str) else value


def as_goal(value: Json) -> Json:
    if value == "score":
        return {}
    if isinstance(value, str) and value in Goals.model_fields:
        return {value: {}}
    if isinstance(value, dict) and len(value) == 1:
        return value
    raise ValueError("must be score, cheaper or fewer_tokens, or a mapping with one of the last two")


def _as_switch(value: Json) -> Json:
    return "off" if value is False else value  # YAML reads off as a truth value


def _unless_read(value: Json, read: ValidatorFunctionWrapHandler) -> Json:
    return value if isinstance(value, BaseModel) else read(value)


def as_final_test(value: Json) -> Json:
    return None if value is False else {} if value is True else value


def _as_headers(value: Json) -> Json:
    return hide_by_name({"headers": value})["headers"]


Count = Annotated[int, Field(strict=True, ge=1)]
Amount = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Above0 = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Chance = Annotated[float, Field(strict=True, gt=0, lt=1)]
Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
File = Annotated[Path, AfterValidator(_in_folder)]
Files = Annotated[tuple[File, ...], BeforeValidator(_as_list)]
Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Section(BaseModel):
    """A mapping of the file: frozen, and it knows its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Shares(Section):
    """How `data` is dealt out. Cases that are alike stay together."""

    train: Share = 0.6
    validation: Share = 0.4
    test: Share = 0.0
    seed: int = 0


class ModelPrice(Section):
    """Dollars for a million tokens."""

    input_usd_per_million: Amount
    output_usd_per_million: Amount
    cached_usd_per_million: Amount | None = None


class ModelSettings(Section):
    """Where a model is served, with which key and at which price. The key is best given as `${VAR}`.

    Headers are secrets, but for a few such as `Content-Type`, and so are options with a secret's name.

    `options` (temperature, …) are for the stages that ask this model; the nodes of an agent have their own.
    """

    api_base: ExpandedText | None = Field(default=None, repr=False)
    api_key: SecretText = None
    headers: Annotated[SecretValues, AfterValidator(_as_headers)] = Field(default_factory=dict)
    timeout_s: Above0 | None = None
    options: Annotated[dict[str, Any], BeforeValidator(hide_by_name)] = Field(default_factory=dict)
    price: ModelPrice | None = None
    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None


class Stages(Section):
    """Which models the stages ask. A stage that is left out is the one that needs no model.

    `attribution` is how the backwarder's model is asked: of each step on the way back, of the whole trace, or by
    `auto` whichever is expected to cost less. `check_gradients` is how much of a round's blame is checked by
    replays: by `auto` a dozen if a model blames, else nothing. A `corrector` is a model that is asked for corrected
    outputs where the expected answer does not tell.
    """

    backwarder: str | None = None
    aggregator: str | None = None
    optimizer: str | None = None
    attribution: Literal["auto", "walk", "whole_trace"] = "auto"
    check_gradients: Annotated[Literal["auto", "off"] | Count, BeforeValidator(_as_switch)] = "auto"
    corrector: str | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The models that are asked, each once."""
        asked = {self.backwarder, self.aggregator, self.optimizer, self.corrector}
        return tuple(sorted(name for name in asked if name is not None))


class Models(Section):
    """The models of the stages, and the settings of models by name. A registered model has settings of its own kind."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[ModelSettings, WrapValidator(_unless_read)]] = Field(init=False)

    stages: Annotated[Stages, BeforeValidator(_as_stages)] = Stages()

    @model_validator(mode="before")
    @classmethod
    def _read_registered(cls, value: Json) -> Json:
        """Read the settings of registered models by the schema that the model declares."""
        if not isinstance(value, dict):
            return value
        kinds: dict[str, Any] = {name: (MODELS.get(name).Settings, ...) for name in value if name in MODELS}
        read = create_model("Registered", **kinds).model_validate({name: value[name] for name in kinds})
        return value | {name: getattr(read, name) for name in kinds}

    @property
    def settings(self) -> dict[str, ModelSettings]:
        """Of the models that are served elsewhere."""
        return {name: each for name, each in self._extra.items() if isinstance(each, ModelSettings)}

    @property
    def registered(self) -> dict[str, BaseModel]:
        """Of the models that are registered."""
        return {name: each for name, each in self._extra.items() if not isinstance(each, ModelSettings)}

    @property
    def _extra(self) -> dict[str, Any]:
        return self.__pydantic_extra__ or {}


class CheaperGoal(Section):
    """The same quality on cheaper models: those named here, or the choices of each node."""

    models: Names = ()
    margin: Chance = MARGIN


class FewerTokensGoal(Section):
    """The same quality with shorter texts."""

    margin: Chance = MARGIN


class Goals(Section):
    """What a run is for besides the score; at most one of them. `margin` is the loss that it may cost, below it."""

    cheaper: CheaperGoal | None = None
    fewer_tokens: FewerTokensGoal | None = None


class PairedGainEntry(Section):
    """An exact test for each candidate; `alpha` is for all of them, `repeats` are blocks with a look after each."""

    alpha: Chance = 0.05
    repeats: tuple[Count, ...] = (2, 2, 2)


class SigmaGainEntry(Section):
    """The gain on train clears the spread of repeated sweeps, the hold-out loses no more than its own."""

    accept_sigma: Amount = 1.0
    repeats: Count = 3
    holdout: Holdout = "on_train_improve"
    folds: Annotated[int, Field(strict=True, ge=2)] = 5
    seed: Annotated[int, Field(strict=True)] = 0


class ConstraintEntry(Section):
    """Bounds of tokens, cost_usd, characters, latency_s or a metric; `_times` is of the accepted profile's."""

    figure: str
    at_most: Finite | None = None
    at_least: Finite | None = None
    at_most_times: Amount | None = None
    at_least_times: Amount | None = None
    measured: Flag = False


class TieBreakEntry(Section):
    """Within `min_gain` of each other, the first of these figures that differs decides."""

    by: Names
    min_gain: Amount = 0.0
    measured: Flag = False


class Acceptance(Section):
    """What a candidate must show; all of it must hold. A file that names no gain means: any gain above 0."""

    min_gain: Amount | None = None
    paired_gain: PairedGainEntry | None = None
    sigma_gain: SigmaGainEntry | None = None
    tie_break: TieBreakEntry | None = None
    no_regression: Flag = False
    protected: Names = ()
    constraints: tuple[ConstraintEntry, ...] = ()


class FinalTestSection(Section):
    """The test at the end of a run: `repeats` of each case and profile in each of 3 blocks.

    `min_detectable_gain` is the gain that the cases should be able to show. `ablate` first removes the patches that do
    not help. The significance level is the run's `alpha`.
    """

    repeats: Count = 2
    min_detectable_gain: Above0 = 0.1
    ablate: Flag = True


class Stop(Section):
    """When the search ends, looked at after each round; the first that holds ends it. `minutes` is a deadline."""

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
    """Hard caps: a call that does not fit is not made, and a round may be cut short."""

    max_usd: Amount | None = None
    max_calls: Annotated[int, Field(strict=True, ge=0)] | None = None
    max_tokens: Annotated[int, Field(strict=True, ge=0)] | None = None
    allow_unknown_price: Flag = False


class Evaluating(Section):
    """How cases are run. Without `repeats` it is num_runs of the metrics."""

    repeats: Count | None = None
    concurrency: Count = 16
    case_timeout_s: Above0 | None = None
    max_errored_fraction: Share = 0.25


class LossTargetEntry(Section):
    """Failures of this metric belong to this node."""

    metric: str
    node_id: str


class HintEntry(Section):
    """What you know about a metric that fails on a case."""

    case_id: str
    metric: str
    text: str = ""
    severity: Severity | None = None
