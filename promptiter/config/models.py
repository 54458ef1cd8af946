"""Builds the gateway from promptiter.yaml: models with their addresses, prices and limits."""

from __future__ import annotations

from collections.abc import Mapping

from promptiter.config.file import RunConfig
from promptiter.config.model_sections import ModelSettings
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.models import GivenModel
from promptiter.llm.prices import Price, Prices
from promptiter.llm.rate import RateLimit
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.secret import reveal, secrets_in
from promptiter.references import is_reference
from promptiter.registry import MODELS

TIMEOUT_S = 120.0
LEAST_CONCURRENCY = 16


def build_gateway(config: RunConfig, cache: Cache | None, *, environ: Mapping[str, str]) -> Gateway:
    """Build the gateway with the models, prices, rate limits and caps of the file. It redacts their keys."""
    settings = config.models.settings
    served: dict[str, GivenModel] = {
        name: each.model or _build_model(each) for name, each in settings.items() if not is_reference(name)
    }
    for name, registered in config.models.registered.items():
        served[name] = MODELS.get(name)(**registered.model_dump())
    given = [
        *([each.api_key, each.headers, each.options] for each in settings.values()),
        *(part.options for part in config.parts),
        *(entry.environment for entry in config.stages.given.values()),
        config.agent.environment,
        *([] if config.agent.http is None else [config.agent.http.headers, config.agent.http.body]),
    ]
    return Gateway(
        models=served,
        cache=cache,
        budget=build_budget(config),
        rates={name: limit for name, each in settings.items() if (limit := _build_rate_limit(each)) is not None},
        prices=Prices({name: Price(**each.price.model_dump()) for name, each in settings.items() if each.price}),
        redactor=Redactor((*secrets_from_environment(environ), *secrets_in(given))),
        concurrency=max(LEAST_CONCURRENCY, config.evaluation.concurrency),
        timeout_s=max([TIMEOUT_S, *(each.timeout_s for each in settings.values() if each.timeout_s is not None)]),
        seed=config.seed,
    )


def _build_model(settings: ModelSettings) -> LiteLLMModel:
    return LiteLLMModel(
        api_base=settings.api_base,
        api_key=settings.api_key.reveal() if settings.api_key is not None else None,
        headers=reveal(settings.headers),
        timeout_s=settings.timeout_s or TIMEOUT_S,
    )


def _build_rate_limit(settings: ModelSettings) -> RateLimit | None:
    requests, tokens = settings.requests_per_minute, settings.tokens_per_minute
    if requests is None and tokens is None:
        return None
    return RateLimit(requests_per_minute=requests, tokens_per_minute=tokens)


def build_budget(config: RunConfig) -> Budget | None:
    caps = config.budget.model_dump(exclude={"max_metric_calls"})
    has_cap = any(caps[name] is not None for name in ("max_usd", "max_calls", "max_tokens"))
    return Budget(**caps) if has_cap else None
