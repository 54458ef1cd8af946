"""agent.yaml as a promptiter.yaml: what each key becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from promptiter.config.agent_yaml.sections import OptimizerBlock
from promptiter.config.build import build_run
from promptiter.config.file import RunConfig, read_config
from promptiter.errors import SetupError
from tests.config.agent_yaml.conftest import Write, block


def read(file: Path) -> RunConfig:
    parsed = read_config(file)
    assert not parsed.problems
    return parsed.config


def test_the_block_of_the_document_becomes_a_run(project: Path) -> None:
    config = read(project / "agent.yaml")
    assert config.objective == "weighted_loss"
    assert config.weights == {"numeric": 0.7, "turn_program_equivalence": 0.3}
    assert config.train == (project / "data" / "train.yaml",)
    assert config.validation == (project / "data" / "holdout.yaml",)
    assert config.search is not None
    assert config.search.name == "coordinate_descent"
    assert config.search.options["max_cycles"] == 2
    assert config.search.options["numeric_max_trials"] == 12
    assert (config.search.options["dry_cycles"], config.search.options["count_startup"]) == (1, True)
    assert config.search.options["critic"] == "offline_model:critic"
    assert config.search.options["critic_prompt"].endswith(".holodeck/optimizer/agents/critic.yaml")
    assert config.acceptance.sigma_gain is not None
    assert (config.acceptance.sigma_gain.repeats, config.acceptance.sigma_gain.holdout) == (3, "on_train_improve")
    assert (config.budget.max_usd, config.budget.allow_unknown_price) == (15.0, True)
    assert config.stop is not None  # the patience of other runs would end it early
    assert (config.seed, config.evaluation.repeats, config.evaluation.max_errored_fraction) == (42, 3, 0.25)


def test_the_defaults_are_those_of_the_document() -> None:
    found = OptimizerBlock()
    whole, numeric, textual = found.budget.whole, found.budget.numeric_phase, found.budget.textual_phase
    assert (whole.max_cycles, whole.max_minutes, whole.max_usd) == (4, None, None)
    assert (numeric.max_trials, numeric.patience, textual.max_trials, textual.patience) == (15, 5, 10, 4)
    assert (found.repeats, found.accept_sigma, found.min_holdout_cases, found.max_errored_fraction) == (3, 1.0, 5, 0.25)
    assert (found.n_startup_trials, found.n_ei_candidates, found.multivariate) == (10, 24, True)
    assert (found.seed, found.min_confidence, found.numeric_convergence_eps) == (42, 0.4, 1e-3)


def test_a_metric_without_a_weight_is_only_shown(write: Write) -> None:
    file = write(lambda document: block(document).update(loss={"numeric": 1.0}))
    assert read(file).weights == {"numeric": 1.0, "turn_program_equivalence": 0.0}


def test_penalties_minutes_and_folds_have_keys_of_their_own(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        block(document)["penalties"] = {"cost_per_usd": 0.05, "latency_per_sec": 0.001}
        block(document)["budget"]["global"] = {"max_minutes": 60}
        block(document).update(holdout_eval_policy="k_fold", k=4)

    config = read(write(change))
    assert (config.penalties.cost_per_usd, config.penalties.latency_per_sec) == (0.05, 0.001)
    assert config.stop is not None
    assert config.stop.minutes == 60
    assert config.acceptance.sigma_gain is not None
    assert (config.acceptance.sigma_gain.holdout, config.acceptance.sigma_gain.folds) == ("k_fold", 4)


def test_without_a_hold_out_the_train_cases_are_all_cases(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        block(document)["holdout_eval_policy"] = "skip"
        del block(document)["holdout_cases_file"]

    config = read(write(change))
    assert config.cases == (Path.cwd() / "data" / "train.yaml",)
    assert not config.validation


def test_a_model_of_a_service_has_its_provider_and_address(write: Write) -> None:
    def change(document: dict[str, Any]) -> None:
        document["model"] = {"provider": "azure_openai", "name": "gpt-4o", "endpoint": "http://localhost:1"}

    config = read(write(change))
    assert config.models.settings["azure/gpt-4o"].api_base == "http://localhost:1"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda document: block(document).update(repeats=0), "evaluations.optimizer.repeats"),
        (lambda document: block(document).update(repeat=2), "unknown key 'repeat'"),
        (lambda document: block(document).update(accept_sigma=-1), "evaluations.optimizer.accept_sigma"),
        (lambda document: block(document)["budget"]["numeric_phase"].update(max_trials=0), "max_trials"),
        (lambda document: block(document).update(holdout_eval_policy="never"), "holdout_eval_policy"),
        (lambda document: document.update(instructions={}), "needs exactly one of inline and file"),
        (lambda document: document.update(instructions={"file": "no.md"}), "'no.md' cannot be read"),
        (lambda document: document["evaluations"]["metrics"].append({"metric": "bleu"}), "unknown metric: 'bleu'"),
        (lambda document: document["evaluations"]["metrics"].append({"type": "rag"}), "the type 'rag'"),
        (lambda document: document["evaluations"]["metrics"].append({"type": "code"}), "grader is ''"),
    ],
)
def test_what_cannot_be_read_is_named(write: Write, change: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message.replace("(", r"\(")):
        build_run(read_config(write(change)))
