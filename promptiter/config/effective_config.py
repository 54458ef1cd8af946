"""The effective configuration: the file, options and defaults together, ready to be saved as promptiter.yaml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from promptiter.config.agent_section import AgentSection
from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.policies import PATIENCE
from promptiter.evaluation.result import get_best_value
from promptiter.llm.redaction import MASK
from promptiter.runs.header import mask_secrets
from traces.model import Json


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A configuration without secrets: `${VAR}` stays, and `left_out` names the keys with a literal secret."""

    document: dict[str, Json]
    left_out: tuple[str, ...] = ()


def build_effective_config(run: ConfiguredRun) -> EffectiveConfig:
    """The whole configuration of a run. Paths are absolute."""
    config, evaluator = run.config, run.engine.evaluator
    document: dict[str, Json] = {} if run.configuration is None else run.configuration.document
    values: dict[str, Json] = config.model_dump(mode="json", by_alias=True, exclude={"models", "metrics"})
    values["metrics"] = str(config.metrics) if isinstance(config.metrics, Path) else document.get("metrics")
    values["models"] = document.get("models")
    values["agent"] = _describe_agent(config.agent)
    values["stages"] = {key: _describe_stage(each) for key, each in values["stages"].items()}
    values["evaluation"]["repeats"] = evaluator.options.repeats
    values["targets"] = list(run.checked.targets)
    if config.stop is None and run.request.goal.kind == "score":
        values["stop"] = {"target_score": get_best_value(config.objective), "patience": PATIENCE}
    if not config.data:
        del values["split"]
    if not any(values["penalties"].values()):
        del values["penalties"]
    if config.final_test is None:
        values["final_test"] = False
    kept = {key: each for key in _ORDER if (each := _drop_empty(values.get(key))) not in (None, [], {}, "")}
    left_out: list[str] = []
    document = _drop_masked(mask_secrets(kept, evaluator.gateway.redactor), "", left_out)
    return EffectiveConfig(document, tuple(left_out))


def _describe_agent(section: AgentSection) -> Json:
    """The agent as it is written: only the keys that are given."""
    if section.kinds == ("python",):
        return section.python
    return section.model_dump(mode="json", exclude_unset=True)


def _describe_stage(value: Json) -> Json:
    """A stage without the keys of commands if it is not one. Other keys of the section stay as they are."""
    if not isinstance(value, dict) or value["command"]:
        return value
    return {key: value[key] for key in ("name", "options")}


def _drop_masked(value: Json, place: str, left_out: list[str]) -> Json:
    """A document without the values that hold a masked secret; their places are added to `left_out`."""
    if isinstance(value, dict):
        places = {key: f"{place}.{key}" if place else str(key) for key in value}
        kept = {key: _drop_masked(each, places[key], left_out) for key, each in value.items()}
        return {key: each for key, each in kept.items() if places[key] not in left_out}
    if isinstance(value, list):
        return [_drop_masked(each, f"{place}.{number}", left_out) for number, each in enumerate(value)]
    if isinstance(value, str) and MASK in value:
        left_out.append(place)
    return value


_ORDER = (
    *("agent", "python_path", "train", "validation", "cases", "scorer", "test", "data", "split", "metrics", "weights"),
    "penalties",
    *("models", "stages", "search", "teacher", "judge", "layout", "output_dir"),
    *("targets", "initial_profile", "objective", "goal", "acceptance", "final_test", "alpha", "stop", "max_rounds"),
    *(
        "budget",
        "evaluation",
        "executor",
        "observers",
        "loss_placements",
        "hints",
        "seed",
        "cache",
        "runs",
        "sources",
        "apply",
        "keep_traces",
        "keep_best_only",
    ),
)


def _drop_empty(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _drop_empty(each) for key, each in value.items() if each not in (None, [], {})}
    return value
