"""Converts optimizer.json to the keys of promptiter.yaml. Each of its fields is used, or refused by an error.

Agent, prompts and eval sets are not in the file. They come from `promptiter.optimize`, or from the command line:

    promptiter run optimizer.json --agent my_agent:call_agent --source system_prompt=prompts/system.md --train ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from promptiter.config.optimizer_json.sections import (
    Algorithm,
    GepaAlgorithm,
    OptimizerFile,
    ReflectionModel,
    RequiredMetricsSection,
)
from promptiter.errors import SetupError, UnknownNameError
from promptiter.evaluation.metrics.criteria import JudgeModel
from promptiter.evaluation.metrics.judge_model import build_request_options, name_for_litellm
from promptiter.references import is_reference
from promptiter.registry import DEFAULT_MODEL, SEARCHES
from promptiter.user_files import Location, list_spellings, read_object
from traces.model import Json

GEPA = "gepa"
GEPA_NAMES = (GEPA, "gepa_reflective")

MAX_ROUNDS = 1000
"""The file has no maximum number of rounds: its stop conditions end the search, and this is for those that cannot."""


def is_optimizer_json(document: Mapping[str, Json]) -> bool:
    """Whether a configuration file is an optimizer.json: promptiter.yaml has neither of its two keys."""
    return "optimize" in document or "evaluate" in document


def convert_optimizer_json(document: Mapping[str, Json], *, file: Path, environ: Mapping[str, str]) -> dict[str, Json]:
    """The run of an optimizer.json as a document of promptiter.yaml. A SetupError lists its problems."""
    where = Location(str(file))
    whole = read_object(OptimizerFile, dict(document), where, error=SetupError, context={"environ": environ})
    algorithm = _read_algorithm(whole.optimize.algorithm, where.below("optimize", "algorithm"), environ)
    search, model = _convert_search(algorithm), _convert_model(algorithm.reflection_lm)
    is_offline = algorithm.reflection_lm is not None and algorithm.reflection_lm.model_name == DEFAULT_MODEL
    converted: dict[str, Json] = {
        "metrics": file.name,
        "objective": "pass_rate",
        "evaluation": {"concurrency": whole.optimize.eval_case_parallelism},
        "seed": algorithm.seed,
        "search": search,
        "stop": _convert_stop(whole.optimize.stop, algorithm),
        "max_rounds": algorithm.max_metric_calls or MAX_ROUNDS,  # each round takes at least one
        **model,
    }
    if algorithm.max_metric_calls is not None:
        converted["budget"] = {"max_metric_calls": algorithm.max_metric_calls}
    if algorithm.reflection_lm is not None and search["name"] != GEPA and not is_offline:
        converted["stages"] = name_model(algorithm.reflection_lm)
    return converted


def name_algorithm(search: str) -> str:
    """The name of a search in optimizer.json."""
    return "gepa_reflective" if search == GEPA else search


def name_model(model: ReflectionModel) -> str:
    """The name under which the run knows a reflection model."""
    return name_for_litellm(_as_judge(model))


def _read_algorithm(value: Mapping[str, Json], where: Location, environ: Mapping[str, str]) -> Algorithm:
    name = value.get("name")
    if isinstance(name, str) and name and name not in GEPA_NAMES and not is_reference(name) and name not in SEARCHES:
        unknown = UnknownNameError("algorithm", [name], known={*SEARCHES.names(), *GEPA_NAMES})
        raise SetupError(f"{where.below('name')}: {unknown}")
    kind = GepaAlgorithm if name in GEPA_NAMES else Algorithm
    algorithm = read_object(kind, dict(value), where, error=SetupError, context={"environ": environ})
    if isinstance(algorithm, GepaAlgorithm) and algorithm.reflection_lm is None:
        raise SetupError(f"{where.below('reflection_lm')}: is missing; name the model that writes new prompts")
    return algorithm


def _convert_search(algorithm: Algorithm) -> dict[str, Json]:
    """The search with its options: fields of the algorithm that no other key of promptiter.yaml has."""
    elsewhere = {
        *("name", "seed", "reflection_lm", "max_metric_calls", "max_iterations_without_improvement"),
        *("timeout_seconds", "score_threshold"),
    }
    fields = list_spellings(type(algorithm))
    options = {
        name: value for name in fields if name not in elsewhere and (value := getattr(algorithm, name)) is not None
    }
    options |= {_to_snake(name): value for name, value in (algorithm.model_extra or {}).items()}
    if algorithm.name not in GEPA_NAMES:
        return {"name": algorithm.name, "options": options}
    if algorithm.reflection_lm is not None and algorithm.reflection_lm.model_name != DEFAULT_MODEL:
        options["reflection_model"] = name_model(algorithm.reflection_lm)
        if of_calls := _convert_options(algorithm.reflection_lm):
            options["reflection_options"] = of_calls
    return {"name": GEPA, "options": options}


def _convert_stop(required: RequiredMetricsSection, algorithm: Algorithm) -> dict[str, Json]:
    seconds = algorithm.timeout_seconds
    stop: dict[str, Json] = {
        "required_metrics": required.required_metrics or None,
        "target_score": algorithm.score_threshold,
        "patience": algorithm.max_iterations_without_improvement,
        "minutes": None if seconds is None else seconds / 60,
    }
    return {key: value for key, value in stop.items() if value is not None}


def _convert_model(model: ReflectionModel | None) -> dict[str, Json]:
    if model is None:
        return {}
    settings: dict[str, Json] = {
        "api_base": model.base_url,
        "api_key": model.api_key,
        "options": _convert_options(model),
    }
    given = {key: value for key, value in settings.items() if value}
    return {"models": {name_model(model): given}} if given else {}


def _convert_options(model: ReflectionModel) -> dict[str, Json]:
    return build_request_options(_as_judge(model), place="reflection_lm")


def _as_judge(model: ReflectionModel) -> JudgeModel:
    return JudgeModel(
        model_name=model.model_name,
        provider_name=model.provider_name,
        base_url=model.base_url,
        extra_fields=model.extra_fields,
        generation_config=model.generation_config,
        think=model.think,
    )


def _to_snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
