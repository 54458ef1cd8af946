"""optimizer.json as a promptiter.yaml: what each field becomes, and what is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic.alias_generators import to_camel

from promptiter.config.file import RunConfig, read_config
from promptiter.config.optimizer_json.conversion import convert_optimizer_json
from promptiter.config.optimizer_json.sections import (
    STOPPERS,
    Algorithm,
    GepaAlgorithm,
    OptimizerFile,
    OptimizeSection,
    ReflectionModel,
    RequiredMetricsSection,
)
from promptiter.errors import SetupError
from promptiter.evaluation.metrics.metric_config import parse_eval_config

EVALUATE = {"metrics": [{"metric_name": "exact_match"}, {"metric_name": "final_response_avg_score"}]}
ALGORITHM = {
    "name": "gepa_reflective",
    "reflection_lm": {"model_name": "m"},
    "max_metric_calls": 60,
}
ENVIRON = {"MODEL": "gpt", "URL": "http://localhost:1", "KEY": "sk-very-secret"}


def make(evaluate: Mapping[str, Any] | None = None, optimize: Any = None, **algorithm: Any) -> dict[str, Any]:
    given = {key: value for key, value in {**ALGORITHM, **algorithm}.items() if value is not ...}
    return {"evaluate": dict(evaluate or EVALUATE), "optimize": {"algorithm": given, **(optimize or {})}}


def convert(document: Mapping[str, Any]) -> dict[str, Any]:
    return convert_optimizer_json(document, file=Path("optimizer.json"), environ=ENVIRON)


def read(folder: Path, document: Mapping[str, Any]) -> RunConfig:
    file = folder / "optimizer.json"
    file.write_text(json.dumps(document))
    parsed = read_config(file, environ=ENVIRON)
    assert not parsed.problems
    return parsed.config


def test_the_defaults_are_those_of_the_document(tmp_path: Path) -> None:
    config = read(tmp_path, make())
    assert config.seed == 42
    assert config.objective == "pass_rate"
    assert config.evaluation.concurrency == 4
    assert config.budget.max_metric_calls == 60
    assert config.max_rounds == 60
    assert config.stop is not None
    assert config.stop.required_metrics == ("all",)
    assert config.search is not None
    assert (config.search.name, config.search.options) == (
        "gepa",
        {
            "candidate_selection_strategy": "pareto",
            "module_selector": "round_robin",
            "frontier_type": "instance",
            "reflection_history_top_k": 2,
            "perfect_score": 1.0,
            "skip_perfect_score": True,
            "use_merge": False,
            "max_merge_invocations": 5,
            "merge_val_overlap_floor": 5,
            "cache_evaluation": False,
            "track_best_outputs": False,
            "reflection_model": "m",
        },
    )


def test_stop_conditions_become_stop_policies_and_a_budget(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "max_metric_calls": 30,
        "max_iterations_without_improvement": 3,
        "timeout_seconds": 90.0,
        "score_threshold": 0.9,
        "max_candidate_proposals": 7,
        "max_tracked_candidates": 5,
    }
    assert set(given) == set(STOPPERS)
    config = read(tmp_path, make(optimize={"stop": {"required_metrics": ["exact_match"]}}, **given))
    assert config.stop is not None
    assert config.stop.model_dump(exclude_none=True) == {
        "required_metrics": ("exact_match",),
        "target_score": 0.9,
        "patience": 3,
        "minutes": 1.5,
    }
    assert config.budget.max_metric_calls == 30
    assert config.search is not None
    assert config.search.options["max_candidate_proposals"] == 7
    assert config.search.options["max_tracked_candidates"] == 5


@pytest.mark.parametrize("given", [None, []])
def test_no_required_metrics_means_no_such_stop(tmp_path: Path, given: Any) -> None:
    config = read(tmp_path, make(optimize={"stop": {"required_metrics": given}}))
    assert config.stop is not None
    assert config.stop.required_metrics is None


def test_a_reflection_model_has_its_address_key_and_options(tmp_path: Path) -> None:
    model = {
        "model_name": "${MODEL}",
        "base_url": "${URL}",
        "api_key": "${KEY}",
        "generation_config": {"max_tokens": 4096, "temperature": 0.6},
        "extra_fields": {"top_k": 3},
        "think": False,
    }
    config = read(tmp_path, make(reflection_lm=model))
    settings = config.models.settings["openai/gpt"]
    assert settings.api_base == "http://localhost:1"
    assert settings.api_key is not None
    assert settings.api_key.reveal() == "sk-very-secret"
    assert settings.options == {
        "max_tokens": 4096,
        "temperature": 0.6,
        "reasoning_effort": "none",
        "extra_body": {"top_k": 3},
    }
    assert config.search is not None
    assert config.search.options["reflection_model"] == "openai/gpt"
    assert "very-secret" not in repr(config)


def test_a_provider_is_part_of_the_name() -> None:
    found = convert(make(reflection_lm={"model_name": "m", "provider_name": "anthropic"}))
    assert found["search"]["options"]["reflection_model"] == "anthropic/m"


def test_any_registered_search_can_be_the_algorithm(tmp_path: Path) -> None:
    config = read(tmp_path, make(name="backprop", minibatch=4, maxCandidateProposals=...))
    assert config.search is not None
    assert (config.search.name, config.search.options) == ("backprop", {"minibatch": 4})
    assert config.stages.models == {"stages": "m"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            make(name="gepa_reflectiv"),
            "unknown algorithm: 'gepa_reflectiv' (did you mean 'gepa_reflective'?); known",
        ),
        (make(name="annealing"), "backprop"),
        (make(max_metric_calls=...), "has no stop condition; give at least one of max_metric_calls"),
        (make(reflection_lm=...), "optimize.algorithm.reflection_lm: is missing"),
        (make(reflection_lm={"model_name": ""}), "model_name: must not be empty"),
        (make(reflection_lm={"model_name": "${NOBODY}"}), "the environment variable 'NOBODY' is not set"),
        (
            make(reflection_lm={"model_name": "m", "api_key": "${NOBODY}"}),
            "optimize.algorithm.reflection_lm.api_key: the environment variable 'NOBODY' is not set; export it",
        ),
        (make(reflection_lm={"model_name": "m", "num_samples": 3}), "num_samples is 3, which is not supported"),
        (make(reflection_lm={"model_name": "m", "weight": 2.0}), "weight is 2.0, which is not supported"),
        (make(reflection_lm={"model_name": "m", "variant": "hunyuan"}), "variant is 'hunyuan', which is not supported"),
        (make(reflection_lm={"model_name": "m", "modelname": "x"}), "unknown key 'modelname'"),
        (make(frontier_type="casewise"), "frontier_type: must be 'instance', 'objective', 'hybrid' or 'cartesian'"),
        (make(module_selector="robin"), "module_selector: must be 'round_robin'"),
        (make(reflection_history_top_k=6), "reflection_history_top_k: must be at most 5, not 6"),
        (make(skip_perfect=True), "unknown key 'skip_perfect' (did you mean 'skip_perfect_score'?)"),
        (make(optimize={"stop": {"required": []}}), "unknown key 'required'"),
        (make(optimize={"parallelism": 3}), "unknown key 'parallelism'"),
        ({"evaluate": EVALUATE}, "optimize: is missing"),
        ({"optimize": make()["optimize"]}, "evaluate: is missing"),
        ({**make(), "evaluation": {}}, "unknown key 'evaluation'"),
    ],
)
def test_mistakes_are_refused(document: Mapping[str, Any], message: str) -> None:
    with pytest.raises(SetupError) as caught:
        convert(document)
    assert message in str(caught.value)
    assert str(caught.value).startswith("optimizer.json: ")


def in_camel_case(value: Any) -> Any:
    if isinstance(value, dict):
        return {to_camel(key): in_camel_case(each) for key, each in value.items()}
    return value


def test_keys_may_be_in_camel_case() -> None:
    document = make(
        optimize={"eval_case_parallelism": 2, "stop": {"required_metrics": ["exact_match"]}},
        **{
            **OTHER_VALUES[GepaAlgorithm],
            "name": "gepa_reflective",
            "reflection_lm": {"model_name": "m", "generation_config": {"max_tokens": 5}},
        },
    )
    other = {"evaluate": document["evaluate"], "optimize": in_camel_case(document["optimize"])}
    assert "evalCaseParallelism" in other["optimize"]
    assert convert(other) == convert(document)


OTHER_VALUES: dict[type, dict[str, Any]] = {
    OptimizerFile: {"evaluate": {"criteria": {"exact_match": 0.5}}, "optimize": None},
    OptimizeSection: {"eval_case_parallelism": 3, "stop": {"required_metrics": []}, "algorithm": None},
    RequiredMetricsSection: {"required_metrics": ["exact_match"]},
    GepaAlgorithm: {
        "name": "backprop",
        "reflection_lm": {"model_name": "other"},
        "seed": 7,
        "max_metric_calls": 31,
        "max_iterations_without_improvement": 3,
        "timeout_seconds": 3.0,
        "score_threshold": 0.5,
        "max_candidate_proposals": 3,
        "max_tracked_candidates": 3,
        "candidate_selection_strategy": "current_best",
        "module_selector": "all",
        "frontier_type": "hybrid",
        "reflection_minibatch_size": 3,
        "reflection_history_top_k": 0,
        "perfect_score": 0.9,
        "skip_perfect_score": False,
        "use_merge": True,
        "max_merge_invocations": 3,
        "merge_val_overlap_floor": 3,
        "cache_evaluation": True,
        "track_best_outputs": True,
    },
    ReflectionModel: {
        "model_name": "other",
        "base_url": "http://localhost:2",
        "api_key": "sk-another",
        "generation_config": {"temperature": 0.1},
        "provider_name": "anthropic",
        "extra_fields": {"top_k": 1},
        "think": True,
        "variant": "hunyuan",
        "num_samples": 2,
        "weight": 0.5,
    },
}
"""Another value than the default for every field of the file."""


def list_changes() -> Iterator[Any]:
    """The file with one field set to another value, for each field."""
    places: dict[type, tuple[str, ...]] = {
        OptimizeSection: ("optimize",),
        RequiredMetricsSection: ("optimize", "stop"),
        GepaAlgorithm: ("optimize", "algorithm"),
        ReflectionModel: ("optimize", "algorithm", "reflection_lm"),
    }
    for section, keys in places.items():
        for name, value in OTHER_VALUES[section].items():
            if value is None:
                continue
            document: Any = copy.deepcopy(make(optimize={"stop": {}}))
            target = document
            for key in keys:
                target = target[key]
            target[name] = value
            yield pytest.param(document, id=".".join((*keys, name)))


def test_the_walk_covers_every_field_of_the_file() -> None:
    for section, values in OTHER_VALUES.items():
        assert set(values) == set(section.model_fields), section  # type: ignore[attr-defined]
    assert set(Algorithm.model_fields) < set(GepaAlgorithm.model_fields)


@pytest.mark.parametrize("document", list(list_changes()))
def test_no_field_is_ignored(document: Mapping[str, Any]) -> None:
    """Each field changes the run, or is refused by an error that names it."""
    default = convert(make())
    try:
        changed: object = convert(document)
    except SetupError as error:
        changed = str(error) if "not supported" in str(error) else default
    assert changed != default


@pytest.mark.parametrize(
    "change",
    [
        {"metrics": [{"metric_name": "response_match_score", "threshold": 0.5}]},
        {"metrics": None, "criteria": {"exact_match": 0.5}},
        {"metrics": None, "criteria": {"exact_match": {"threshold": 0.5, "criterion": {}}}},
        {"num_runs": 3},
        {"user_simulator_config": {"model": "simulated", "max_turns": 4}},
    ],
    ids=["metrics", "criteria", "criteria with settings", "num_runs", "user_simulator_config"],
)
def test_no_field_of_the_evaluate_block_is_ignored(change: Mapping[str, Any]) -> None:
    documents = make(), make(evaluate={**EVALUATE, **change})
    default, changed = (parse_eval_config(each, environ=ENVIRON) for each in documents)
    assert changed != default
