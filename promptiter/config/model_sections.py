"""`models` of promptiter.yaml: the settings of each model by its name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)

from promptiter.config.fields import Above0, Amount, Count, Section
from promptiter.errors import SetupError
from promptiter.llm.options import check_options
from promptiter.llm.secret import hide_by_name
from promptiter.llm.secret_fields import ExpandedText, SecretText, SecretValues
from promptiter.references import is_reference
from promptiter.registry import MODELS
from traces.model import Json


def _keep_validated(value: Json, validate: ValidatorFunctionWrapHandler) -> Json:
    return value if isinstance(value, BaseModel) else validate(value)


def _hide_headers(value: Json) -> Json:
    return hide_by_name({"headers": value})["headers"]


class ModelPrice(Section):
    """Dollars per million tokens."""

    input_usd_per_million: Amount
    """Dollars per million input tokens."""
    output_usd_per_million: Amount
    """Dollars per million output tokens."""
    cached_usd_per_million: Amount | None = None
    """Dollars per million cached input tokens."""


class ModelSettings(Section):
    """Settings of one model: where it is served, with its key and price.

    Headers are treated as secrets, except for a few such as `Content-Type`, and so are options with a secret's name.
    """

    model: str | None = Field(default=None, json_schema_extra={"pattern": ":"})
    """Your own model as `module:attr`: a function of the messages, or a `Model`. Then it has no address or key here."""
    api_base: ExpandedText | None = Field(default=None, repr=False)
    """Address of the server."""
    api_key: SecretText = None
    """Best given as `${VAR}`, which is read from the environment."""
    headers: Annotated[SecretValues, AfterValidator(_hide_headers)] = Field(default_factory=dict)
    """HTTP headers. Values are treated as secrets."""
    timeout_s: Above0 | None = None
    """Time limit of a call. `timeout` in the options of a node or model replaces it."""
    options: Annotated[dict[str, Any], BeforeValidator(hide_by_name)] = Field(default_factory=dict)
    """Temperature and so on, for the stages that ask this model. The nodes of your agent have options of their own."""
    price: ModelPrice | None = None
    """`input_usd_per_million`, `output_usd_per_million` and, optionally, `cached_usd_per_million`. By default the price
    on litellm's list.
    """
    requests_per_minute: Count | None = None
    """Rate limit."""
    tokens_per_minute: Count | None = None
    """Rate limit."""

    @field_validator("options")
    @classmethod
    def _check_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            check_options(value, place="they")
        except SetupError as error:
            raise ValueError(str(error)) from error
        return value

    @model_validator(mode="after")
    def _check_own_model(self) -> Self:
        if self.model is None:
            return self
        if not is_reference(self.model):
            raise ValueError(f"model is {self.model!r}; name your own model as module:attr, such as my_models:clerk")
        if given := [key for key in ("api_base", "api_key", "headers", "timeout_s") if getattr(self, key)]:
            raise ValueError(f"{given[0]} is for models of a service, and {self.model} is your own; remove one of both")
        return self


def find_declared_settings(names: Iterable[str]) -> dict[str, type[BaseModel]]:
    """The settings that each registered model among these declares, by its name."""
    return {name: MODELS.get(name).Settings for name in names if name in MODELS}


class Models(Section):
    """The settings of models by name. Registered models declare their own settings."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, Annotated[ModelSettings, WrapValidator(_keep_validated)]] = Field(init=False)

    @model_validator(mode="before")
    @classmethod
    def _read_registered(cls, value: Json) -> Json:
        """Validate the settings of registered models with the schema that each declares."""
        if not isinstance(value, dict):
            return value
        kinds: dict[str, Any] = {name: (settings, ...) for name, settings in find_declared_settings(value).items()}
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
