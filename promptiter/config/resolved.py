"""A configuration as it was understood: with what was left out filled in, ready to be saved as promptiter.yaml."""

from __future__ import annotations

from typing import cast

from promptiter.config.build import ConfiguredRun
from promptiter.config.policies import PATIENCE
from promptiter.engine.request_checks import check_request
from promptiter.evaluation.result import get_best_value
from promptiter.runs.header import without_secrets
from traces.model import Json


def resolved(run: ConfiguredRun) -> dict[str, Json]:
    """The whole configuration without secrets: `${VAR}` stays, what was written out is masked. Paths are absolute."""
    config, evaluator = run.config, run.engine.evaluator
    document: dict[str, Json] = {} if run.configuration is None else run.configuration.document
    values: dict[str, Json] = config.model_dump(mode="json", by_alias=True, exclude={"models", "metrics"})
    values["metrics"] = document.get("metrics") if isinstance(config.metrics, list | dict) else str(config.metrics)
    values["models"] = document.get("models")
    values["evaluation"]["repeats"] = evaluator.options.repeats
    values["targets"] = list(check_request(run.request, run.engine.describe(), evaluator).targets)
    if config.stop is None and run.request.goal.kind == "score":
        values["stop"] = {"target_score": get_best_value(config.objective), "patience": PATIENCE}
    if not config.data:
        del values["split"]
    if config.final_test is None:
        values["final_test"] = False
    kept = {key: each for key in _ORDER if (each := _without_gaps(values.get(key))) not in (None, [], {}, "")}
    return cast("dict[str, Json]", without_secrets(kept, evaluator.gateway.redactor))


_ORDER = (
    *("agent", "python_path", "train", "validation", "test", "data", "split", "metrics", "models", "teacher", "judge"),
    *("targets", "initial_profile", "objective", "goal", "acceptance", "final_test", "alpha", "stop", "max_rounds"),
    *("budget", "evaluation", "loss_placements", "hints", "seed", "cache", "runs", "keep_traces"),
)


def _without_gaps(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _without_gaps(each) for key, each in value.items() if each not in (None, [], {})}
    return value
