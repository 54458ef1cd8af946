"""Converts agent.yaml to the keys of promptiter.yaml: `promptiter run agent.yaml` and `promptiter test optimize`.

The agent is built from the file itself (`agent: {yaml: agent.yaml}`), and its axes are the targets of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from promptiter.config.agent_yaml.agent import DEFAULT_OPTIONS, OWN_MODEL, find_setting, name_model
from promptiter.config.agent_yaml.document import AgentDocument, parse_agent_file
from promptiter.config.agent_yaml.metrics import convert_metrics, name_metric
from promptiter.config.agent_yaml.sections import OptimizerBlock
from promptiter.config.agent_yaml.subagents import ROLES, Subagent, read_subagent
from promptiter.errors import SetupError
from promptiter.registry import MODELS
from traces.model import Json

SEARCH = "coordinate_descent"
RESULTS = Path("results") / "optimizer"
"""Where the artifacts of runs are, in the folder of agent.yaml."""

STARTER = """\
evaluations:
  optimizer:
    loss:
      {metric}: 1.0
    train_cases_file: data/train.yaml
    holdout_cases_file: data/holdout.yaml
    repeats: 3
    axes:
      numeric:
        - path: model.temperature
          range: [0.0, 1.0]
      textual:
        - path: instructions.{instructions}
          max_chars: 4000
    budget:
      global: {{max_cycles: 4}}
      numeric_phase: {{max_trials: 15, patience: 5}}
      textual_phase: {{max_trials: 10, patience: 4}}
"""
"""The block of a file that has none."""


def convert_agent_yaml(document: Mapping[str, Json], *, file: Path) -> dict[str, Json]:
    """The run of an agent.yaml as a document of promptiter.yaml, without what is wrong: the checks report that."""
    found = parse_agent_file(document, file=file)
    metrics, _ = convert_metrics(found.given.evaluations.metrics)
    converted: dict[str, Json] = {
        "agent": {"yaml": str(file.absolute())},
        "python_path": [str(found.folder)],
        "metrics": metrics,
        "models": _convert_models(found),
        "evaluation": _convert_execution(found),
        "runs": str(found.folder / "runs"),
    }
    if found.optimizer is not None:
        converted |= _convert_optimizer(found, found.optimizer)
    elif found.given.test_cases_file is not None:
        converted["validation"] = str(found.folder / found.given.test_cases_file)
    return {key: value for key, value in converted.items() if value not in ({}, []) or key == "stop"}


def write_starter(found: AgentDocument) -> str:
    """An optimizer block to start from, for a file that has none."""
    names = [name_metric(each) for each in found.given.evaluations.metrics]
    kind = "inline" if found.prompt_file is None else "file"
    return STARTER.format(metric=names[0] if names else "numeric", instructions=kind)


def find_fields(found: AgentDocument) -> dict[str, tuple[str, ...]]:
    """The keys of the surfaces that the file holds, whether or not they are there yet."""
    node = found.given.name
    fields: dict[str, tuple[str, ...]] = {f"{node}#model": ("model", "name")}
    if found.prompt_file is None:
        fields[f"{node}#instruction"] = ("instructions", "inline")
    for name in DEFAULT_OPTIONS:
        fields[f"{node}#parameter.{name}"] = ("model", name)
    for number, tool in enumerate(found.given.tools):
        fields[f"{node}#tool.{tool.name}"] = ("tools", str(number), "description")
        paths = [axis.path for axis in found.axes.numeric]
        settings = [*tool.others, *(each for path in paths if (each := find_setting(path, tool.name)) is not None)]
        for name in dict.fromkeys(settings):
            fields[f"{node}#parameter.{tool.name}.{name}"] = ("tools", str(number), name)
    return fields


def _convert_optimizer(found: AgentDocument, block: OptimizerBlock) -> dict[str, Json]:
    names = [each["metric_name"] for each in convert_metrics(found.given.evaluations.metrics)[0]]
    whole = block.budget.whole
    converted: dict[str, Json] = {
        **_convert_cases(found, block),
        "weights": {**{name: block.loss.get(name, 0.0) for name in names}, **block.loss} if block.loss else {},
        "objective": "weighted_loss",
        "search": {"name": SEARCH, "options": _convert_search(found, block)},
        "acceptance": {
            "sigma_gain": {
                "accept_sigma": block.accept_sigma,
                "repeats": block.repeats,
                "holdout": block.holdout_eval_policy,
                "folds": block.k,
                "seed": block.seed,
            }
        },
        "final_test": {"ablate": False},
        "stop": {} if whole.max_minutes is None else {"minutes": whole.max_minutes},
        "seed": block.seed,
    }
    penalties = block.penalties.model_dump()
    if any(penalties.values()):
        converted["penalties"] = penalties
    if whole.max_usd is not None:
        converted["budget"] = {"max_usd": whole.max_usd, "allow_unknown_price": True}
    return converted


def _convert_cases(found: AgentDocument, block: OptimizerBlock) -> dict[str, Json]:
    """The files of the cases. With the policy `skip` the hold-out is never run: the train cases are all cases."""
    train, holdout = block.train_cases_file, block.holdout_cases_file
    files = {"cases": train} if block.holdout_eval_policy == "skip" else {"train": train, "validation": holdout}
    return {key: str(found.folder / name) for key, name in files.items() if name is not None}


def _convert_search(found: AgentDocument, block: OptimizerBlock) -> dict[str, Json]:
    budget = block.budget
    options: dict[str, Json] = {
        "max_cycles": budget.whole.max_cycles,
        "dry_cycles": 1,
        "numeric_max_trials": budget.numeric_phase.max_trials,
        "numeric_patience": budget.numeric_phase.patience,
        "textual_max_trials": budget.textual_phase.max_trials,
        "textual_patience": budget.textual_phase.patience,
        "batch_size": block.batch_size,
        "startup_trials": block.n_startup_trials,
        "count_startup": True,
        "ei_candidates": block.n_ei_candidates,
        "multivariate": block.multivariate,
        "convergence": block.numeric_convergence_eps,
        "min_confidence": block.min_confidence,
    }
    if block.co_optimize:
        options["co_optimize"] = [list(group) for group in block.co_optimize]
    for each in _read_subagents(found) if block.axes.textual else ():
        if each.model is not None:
            options[each.role] = each.model
            options[f"{each.role}_prompt"] = str(each.file)
            if each.options:
                options[f"{each.role}_options"] = each.options
    return options


def _convert_execution(found: AgentDocument) -> dict[str, Json]:
    block, execution = found.optimizer, found.given.execution
    return {
        "concurrency": execution.parallel_test_cases,
        "repeats": 1 if block is None else block.repeats,
        **({} if execution.llm_timeout is None else {"case_timeout_s": execution.llm_timeout}),
        **({} if block is None else {"max_errored_fraction": block.max_errored_fraction}),
    }


def _convert_models(found: AgentDocument) -> dict[str, Json]:
    """The addresses and keys of the models of critic, applier and agent."""
    subagents = () if found.optimizer is None else _read_subagents(found)
    models = [*(each.given for each in subagents), found.given.model]
    converted = {}
    for model in models:
        settings = {"api_base": model.endpoint, "api_key": model.api_key}
        given = {key: value for key, value in settings.items() if value}
        if given and model.provider != OWN_MODEL and model.name not in MODELS:
            converted[name_model(model)] = given
    return converted


def _read_subagents(found: AgentDocument) -> Iterator[Subagent]:
    """The critic and the applier, except for one that cannot be read: the checks report it."""
    for role in ROLES:
        with suppress(SetupError):
            yield read_subagent(role, found.folder, found.given.model)
