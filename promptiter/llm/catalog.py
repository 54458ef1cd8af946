"""The models of a gateway by name: where each is served, what it costs, and what it needs to be called.

A name is one of the user's own models, a registered one, `module:attr`, or one that litellm serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import cast

from promptiter.errors import SetupError
from promptiter.llm.litellm import LiteLLMModel, context_tokens, most_output_tokens, thinking_tokens
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import GivenModel, Model, SeededModel, as_model, load_model, takes_seed
from promptiter.llm.prices import Price, PricedModel, Prices
from promptiter.references import is_reference
from promptiter.registry import MODELS


class ModelCatalog:
    """Models by name, with their prices. A name that is not in it is looked up once, when it is first used."""

    def __init__(
        self,
        models: Mapping[str, GivenModel] | None = None,
        *,
        prices: Prices | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        self.prices = prices or Prices()
        self._timeout_s = timeout_s
        self._models: dict[str, Model] = {}
        self._takes_seed: dict[str, bool] = {}
        self._has_price: dict[str, bool] = {}
        self._references: dict[str, str] = {}
        for name, model in (models or {}).items():
            self.add(name, model)

    def add(self, name: str, model: GivenModel) -> None:
        """Serve a name by this model, by this function of the messages, or by what `module:attr` names."""
        if isinstance(model, str) and is_reference(model):
            self._references[name] = model
            return
        served = self._models[name] = as_model(model, what=f"the model {name!r}")
        self._takes_seed[name] = takes_seed(served)
        self._has_price[name] = isinstance(served, PricedModel)

    def get(self, name: str) -> Model:
        if name not in self._models:
            self.add(name, self._find(self._references.get(name, name)))
        return self._models[name]

    def call(self, request: ModelRequest, *, repeat: int, seed: int) -> Awaitable[ModelReply]:
        """Call the model that a request names. Only a SeededModel is given the seed."""
        model = self.get(request.model)
        if self._takes_seed[request.model]:
            return cast("SeededModel", model)(request, repeat=repeat, seed=seed)
        return model(request, repeat=repeat)

    def prepare(self, name: str) -> None:
        """Import what a call of a model needs, which takes seconds, before the time limit of the call starts."""
        if isinstance(model := self.get(name), LiteLLMModel):
            model.prepare()

    def secrets(self) -> tuple[str, ...]:
        """Keys and other secrets of the models."""
        served = (model for model in self._models.values() if isinstance(model, LiteLLMModel))
        return tuple(secret for model in served for secret in model.secrets())

    def price(self, name: str) -> Price | None:
        """The user's own price of a model, litellm's for what litellm serves, or the model's own; None if unknown."""
        model = self.get(name)
        known = self.prices.of(name, is_listed=isinstance(model, LiteLLMModel))
        return cast("PricedModel", model).price if known is None and self._has_price[name] else known

    def context_tokens(self, name: str) -> int | None:
        """How many tokens a request to a model may have, or None if that is unknown."""
        return context_tokens(name) if isinstance(self.get(name), LiteLLMModel) else None

    def most_output_tokens(self, name: str) -> int | None:
        """How many tokens an answer of a model may have, or None if that is unknown."""
        return most_output_tokens(name) if isinstance(self.get(name), LiteLLMModel) else None

    def thinking_tokens(self, request: ModelRequest) -> int:
        """How many tokens the model of a request may need to think before it answers, as far as that is known."""
        is_served = isinstance(self.get(request.model), LiteLLMModel)
        return thinking_tokens(request.model, request.options) if is_served else 0

    def find_setup_problem(self, name: str) -> str | None:
        """Why a call of a model must fail: no such module, an unknown provider, no key, or a misspelled name."""
        try:
            model = self.get(name)
        except SetupError as error:
            return str(error)
        if not isinstance(model, LiteLLMModel):
            return None
        return model.find_setup_problem(name) or model.find_misspelled_model(name)

    def _find(self, name: str) -> Model:
        if name in MODELS:
            registered: Model = MODELS.get(name)()
            return registered
        if is_reference(name):
            return load_model(name)
        own = (known for known, model in self._models.items() if not isinstance(model, LiteLLMModel))
        return LiteLLMModel(timeout_s=self._timeout_s, other_names=(*MODELS.names(), *self._references, *own))
