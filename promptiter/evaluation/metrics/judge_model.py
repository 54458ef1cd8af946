"""Judging models in the gateway: their names, options, addresses and keys.

A judge with its own address or key is registered in the gateway under a unique name, so that it is not mixed up with a
model of the same name elsewhere. Keys are never part of a request: they are revealed when the model is built, other
secrets while it is called. The gateway's redactor knows all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.criteria import JudgeModel
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.secret import secrets_in
from promptiter.registry import MODELS
from traces import digest
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A judging model: its name in the gateway, and the repeats that are its samples."""

    model: str
    options: Mapping[str, Json] = field(default_factory=dict)
    repeats: range = range(1)
    weight: float = 1.0


def build_judges(models: tuple[JudgeModel, ...], gateway: Gateway, *, place: str) -> tuple[Judge, ...]:
    """Register the models in the gateway. A model that is listed twice gets separate samples."""
    taken: Counter[str] = Counter()
    judges = []
    for model in models:
        options = build_request_options(model, place=place)
        name = _register_model(gateway, model)
        key = digest([name, options])
        repeats = range(taken[key], taken[key] + model.num_samples)
        taken[key] = repeats.stop
        judges.append(Judge(model=name, options=options, repeats=repeats, weight=model.weight))
    return tuple(judges)


def name_for_litellm(model: JudgeModel) -> str:
    """The name under which litellm finds the provider. A variant of OpenAI's protocol needs none."""
    name, provider = model.model_name, model.provider_name
    if name in MODELS:
        return name
    if provider:
        return name if name.startswith(f"{provider}/") else f"{provider}/{name}"
    return f"openai/{name}" if model.base_url and "/" not in name else name


def build_request_options(model: JudgeModel, *, place: str) -> dict[str, Json]:
    """`generation_config`, `think` and `extra_fields` as request options. Secrets in them stay wrapped."""
    options: dict[str, Json] = {}
    for key, value in model.generation_config.items():
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
        name = _OPTION_NAMES.get(name, name)
        if name in _OWN_OPTIONS:
            raise MetricError(f"{place}: generation_config cannot set {key!r}; {_OWN_OPTIONS[name]}")
        if value is not None and name not in _NOT_FOR_JUDGES:
            options[name] = value
    most = options.get("max_tokens", 1)
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise MetricError(f"{place}: generation_config.max_tokens is {most!r}; give a whole number of at least 1")
    if model.think is not None:
        options.setdefault("reasoning_effort", "medium" if model.think else "none")
    if model.extra_fields:
        options["extra_body"] = {**options.get("extra_body", {}), **model.extra_fields}
    return options


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeEndpoint(LiteLLMModel):
    """A litellm model under a name that only the gateway knows. `in_options` are the secrets in its request options."""

    served_as: str
    in_options: tuple[str, ...] = field(default=(), repr=False)

    def secrets(self) -> tuple[str, ...]:
        return (*LiteLLMModel.secrets(self), *self.in_options)

    def find_setup_problem(self, name: str) -> str | None:  # noqa: ARG002 - the name that litellm knows counts
        return LiteLLMModel.find_setup_problem(self, self.served_as)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        return await LiteLLMModel.__call__(self, replace(request, model=self.served_as), repeat=repeat)


_OPTION_NAMES = {
    "max_output_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop_sequences": "stop",
}
_NOT_FOR_JUDGES = frozenset(("stream", "stream_options", "n", "candidate_count"))
_OWN_OPTIONS = {
    "model": "use model_name",
    "messages": "promptiter writes the prompt of a judge",
    "tools": "judges have no tools",
    "response_format": "promptiter sets it",
    "api_base": "use base_url",
    "base_url": "put it beside generation_config",
    "api_key": "put it beside generation_config",
    "extra_headers": "leave it out",
    "timeout": "the gateway sets it",
    "num_retries": "the gateway retries",
    "max_retries": "the gateway retries",
    "drop_params": "leave it out",
}


def _register_model(gateway: Gateway, model: JudgeModel) -> str:
    name = name_for_litellm(model)
    in_options = secrets_in([model.generation_config, model.extra_fields])
    gateway.redactor.learn(secrets_in(model))
    if name in MODELS or not (model.base_url or model.api_key or in_options):
        return name
    key = model.api_key.reveal() if model.api_key is not None else None
    endpoint = JudgeEndpoint(
        api_base=model.base_url,
        api_key=key,
        timeout_s=gateway.pool.timeout_s,
        served_as=name,
        in_options=in_options,
    )
    own = _make_unique_name(name, model)
    free, number = own, 1
    while isinstance(known := gateway.model(free), JudgeEndpoint) and known != endpoint:
        number += 1
        free = f"{own}~{number}"
    gateway.add_model(free, endpoint)
    return free


def _make_unique_name(name: str, model: JudgeModel) -> str:
    """A name that is the same in every process and for every key. litellm finds the price by what follows the `/`."""
    origin = digest([name, model.base_url, str(model.api_key or "")])[:8]
    provider, _, bare = name.partition("/")
    return f"judge-{origin}/{bare if provider in _LISTED_BARE and bare else name}"


_LISTED_BARE = frozenset(("openai", "anthropic"))
