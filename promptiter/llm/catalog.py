"""The models of a gateway by name: where each is served, what it costs, and what it needs to be called.

A name is one of the user's own models, a registered one, `module:attr`, or one that litellm serves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import cast

from promptiter.errors import SetupError
from promptiter.llm.litellm import LiteLLMModel, context_tokens, most_output_tokens, thinking_tokens
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import GivenModel, Model, SeededModel, as_model, load_model, takes_seed
from promptiter.llm.prices import Price, PricedModel, Prices
from promptiter.references import is_reference
from promptiter.registry import MODELS


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model behind a name, with what a call needs to know about it, found once."""

    model: Model
    is_of_litellm: bool
    takes_seed: bool
    has_price: bool


class ModelCatalog:
    """Models by name, with their prices. A name that is not in it is looked up once, when it is first used.

    `others` serves all names that are neither given nor `module:attr`, in place of registered models and litellm.
    """

    def __init__(
        self,
        models: Mapping[str, GivenModel] | None = None,
        *,
        prices: Prices | None = None,
        timeout_s: float = 120.0,
        others: Model | None = None,
    ) -> None:
        self.prices = prices or Prices()
        self._others = others
        self._timeout_s = timeout_s
        self._models: dict[str, ServedModel] = {}
        self._references: dict[str, str] = {}
        self._checked: set[str] = set()
        for name, model in (models or {}).items():
            self.add(name, model)

    def add(self, name: str, model: GivenModel) -> None:
        """Serve a name by this model, by this function of the messages, or by what `module:attr` names."""
        self._checked.discard(name)
        if isinstance(model, str) and is_reference(model):
            self._references[name] = model
            return
        served = as_model(model, what=f"the model {name!r}")
        self._models[name] = ServedModel(
            served, isinstance(served, LiteLLMModel), takes_seed(served), isinstance(served, PricedModel)
        )

    def names(self) -> list[str]:
        """The names of the user's own models, and of those that were used."""
        return sorted({*self._models, *self._references})

    def get(self, name: str) -> Model:
        return self._serve(name).model

    def call(self, request: ModelRequest, *, repeat: int, seed: int) -> Awaitable[ModelReply]:
        """Call the model that a request names. Only a SeededModel is given the seed."""
        served = self._serve(request.model)
        if served.takes_seed:
            return cast("SeededModel", served.model)(request, repeat=repeat, seed=seed)
        return served.model(request, repeat=repeat)

    def prepare(self, name: str) -> None:
        """Import what a call of a model needs, which takes seconds, before the time limit of the call starts."""
        if (served := self._serve(name)).is_of_litellm:
            cast("LiteLLMModel", served.model).prepare()

    def secrets(self) -> tuple[str, ...]:
        """Keys and other secrets of the models."""
        models = (served.model for served in self._models.values())
        return tuple(secret for model in models if isinstance(model, LiteLLMModel) for secret in model.secrets())

    def price(self, name: str) -> Price | None:
        """The user's own price of a model, litellm's for what litellm serves, or the model's own; None if unknown."""
        served = self._serve(name)
        known = self.prices.of(name, is_listed=served.is_of_litellm)
        return cast("PricedModel", served.model).price if known is None and served.has_price else known

    def context_tokens(self, name: str) -> int | None:
        """How many tokens a request to a model may have, or None if that is unknown."""
        return context_tokens(name) if self._serve(name).is_of_litellm else None

    def limit_output(self, request: ModelRequest, *, default: int) -> int:
        """The default limit of the tokens of an answer, with what its model may need to think before it answers.

        It is never more than the model can write, as far as that is known.
        """
        if not self._serve(request.model).is_of_litellm:
            return default
        limit = default + thinking_tokens(request.model, request.options)
        return min(limit, most_output_tokens(request.model) or limit)

    def most_output_tokens(self, name: str) -> int | None:
        """How many tokens an answer of a model may have, or None if that is unknown."""
        return most_output_tokens(name) if self._serve(name).is_of_litellm else None

    def find_setup_problem(self, name: str) -> str | None:
        """Why a call of a model must fail: no such module, an unknown provider, no key, no server, or a wrong name.

        A model that has passed is not checked again: a run is checked when it is configured and when it starts.
        """
        if name in self._checked:
            return None
        try:
            model = self.get(name)
        except SetupError as error:
            return str(error)
        problem = None
        if isinstance(model, LiteLLMModel):
            problem = model.find_setup_problem(name) or model.find_problem_of_server(name)
        if problem is None:
            self._checked.add(name)
        return problem

    def _serve(self, name: str) -> ServedModel:
        if name not in self._models:
            self.add(name, self._find(self._references.get(name, name)))
        return self._models[name]

    def _find(self, name: str) -> Model:
        if self._others is not None and not is_reference(name):
            return self._others
        if name in MODELS:
            registered: Model = MODELS.get(name)()
            return registered
        if is_reference(name):
            return load_model(name)
        own = (known for known, served in self._models.items() if not served.is_of_litellm)
        return LiteLLMModel(timeout_s=self._timeout_s, other_names=(*MODELS.names(), *self._references, *own))
