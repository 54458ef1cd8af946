"""The models and programs that the stages of a search use, and the prices of the models that it may choose from."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.agents.base import NeedsProgram
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.llm.gateway import Gateway
from promptiter.llm.prices import Price
from promptiter.stages.contracts import CallsModel, NamesModel
from promptiter.structure import Surface


def find_model(stage: object) -> str | None:
    """The model that a stage calls, None if it calls none, UNKNOWN_MODEL if the stage does not say."""
    return stage.model if isinstance(stage, NamesModel) else UNKNOWN_MODEL


def find_stage_problems(stages: Iterable[object], gateway: Gateway) -> list[str]:
    """One line for each model of a stage that cannot be called or has no price, and each program that is missing."""
    found: list[str] = []
    for each in stages:
        if isinstance(each, NeedsProgram) and (problem := each.find_setup_problem()):
            found.append(f"{type(each).__name__}: {problem}")
        if isinstance(each, CallsModel) and each.model:
            lines = find_model_problems(each.model, each.gateway or gateway)
            found.extend(f"{type(each).__name__}: {line}" for line in lines)
    return list(dict.fromkeys(found))


def find_model_problems(model: str | None, gateway: Gateway) -> list[str]:
    """One line if a model cannot be called, and one if it has no price; none without a model."""
    models = [] if model is None else [model]
    return [*gateway.find_setup_problems(models), *gateway.find_unpriced_models(models)]


def find_prices(surface: Surface, gateway: Gateway) -> dict[str, Price]:
    """The prices of the models that a surface may choose from, as far as they are known."""
    models = surface.limits.choices if surface.type == "model" else ()
    return {model: price for model in models if (price := gateway.price(model)) is not None}
