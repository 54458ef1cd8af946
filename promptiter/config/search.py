"""Builds the search of promptiter.yaml with its stages: those that ask a model, and your own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from promptiter.config.fields import PartEntry
from promptiter.config.file import RunConfig
from promptiter.config.model_sections import Models
from promptiter.config.parts import build_part, list_parameters, read_options
from promptiter.config.policies import build_goal
from promptiter.config.stages_section import StageEntry, Stages
from promptiter.engine.engine import DEFAULT_SEARCH
from promptiter.errors import RequestError, SetupError
from promptiter.llm.secret import reveal
from promptiter.references import is_reference
from promptiter.registry import OFFLINE_STAGES
from promptiter.stages.roles import SEARCH, STAGES

if TYPE_CHECKING:
    from promptiter.engine.session import Search


def build_search(config: RunConfig, *, given: Mapping[str, Any] | None = None) -> Search:
    """Build the search of the file, by default the one for its goal, with the stages that it takes.

    `given` are more arguments, which a file cannot hold: `extra_stop_callbacks` are left out if it does not take them.
    """
    goal = build_goal(config.goal).kind
    entry = config.search or PartEntry(name=DEFAULT_SEARCH if goal == "score" else goal)
    stages = build_stages(config.stages, config.models)
    if config.search is not None:
        _check_stages(config, entry)
        entry = _complete_options(entry, config.models)
    given = given or {}
    if "extra_callbacks" in given and "extra_callbacks" not in list_parameters(SEARCH.load(entry.name)):
        raise SetupError(f"search: {entry.name!r} has no events of gepa; remove extra_gepa_callbacks")
    search: Search = build_part(entry, SEARCH, place="search", supplied={**stages, **given}, supplied_by=_KEYS)
    return search


def find_models_of_stages(config: RunConfig) -> dict[str, str]:
    """The models that the stages and the search ask, by key. Searches for other goals than the score have no stages."""
    is_used = config.search is not None or build_goal(config.goal).kind == "score"
    own = {f"search.options.{name}": model for name, model in _find_own_models(config.search).items()}
    return {**config.stages.models, **own} if is_used else {}


def build_stages(stages: Stages, models: Models) -> dict[str, Any]:
    """Build the stages of the file as arguments of a search: `backwarder`, `aggregator`, `optimizer`, `check`."""
    from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
    from promptiter.search.gradient_check import MOST_CHECKED, GradientCheck

    built = {role: _build_stage(role, entry, models) for role, entry in stages.given.items()}
    walk, whole, corrector = (built.get(role) for role in ("backwarder", "attributor", "corrector"))
    blaming = walk or whole
    if walk is not None and whole is not None:
        both = [stages.given[role] for role in ("backwarder", "attributor")]
        if any(each.command or is_reference(each.name) for each in both):
            raise SetupError("stages: backwarder and attributor both blame; give one of them, or a model for each")
        blaming = CheapestAttributor(whole, walk)
    arguments = {"backwarder": blaming, "aggregator": built.get("aggregator"), "optimizer": built.get("optimizer")}
    arguments = {name: stage for name, stage in arguments.items() if stage is not None}
    if stages.check_gradients == "off":
        return {**arguments, "check": None}
    if corrector is None and stages.check_gradients == "auto":
        return arguments
    most = MOST_CHECKED if stages.check_gradients == "auto" else stages.check_gradients
    correctors = (OFFLINE_STAGES.get("corrector")(), *([corrector] if corrector else []))
    return {**arguments, "check": GradientCheck(*correctors, most=most)}


def _complete_options(entry: PartEntry, models: Models) -> PartEntry:
    """The entry of a search with the options that `models` has for its own models, as for a stage."""
    options = dict(entry.options)
    for name, model in _find_own_models(entry).items():
        if model in models.settings and models.settings[model].options:
            key = OWN_MODELS[name]
            options[key] = {**models.settings[model].options, **(options.get(key) or {})}
    return entry.model_copy(update={"options": options})


def _find_own_models(entry: PartEntry | None) -> dict[str, str]:
    """The models that a search itself asks, such as GEPA, by the option that names them."""
    given = {} if entry is None else {name: entry.options.get(name) for name in OWN_MODELS}
    return {
        name: model for name, model in given.items() if isinstance(model, str) and model and not is_reference(model)
    }


OWN_MODELS = {"reflection_model": "reflection_options", "critic": "critic_options", "applier": "applier_options"}
"""Options of searches that name a model, and those that have the options of its calls."""


def _build_stage(role: str, entry: StageEntry, models: Models) -> Any:
    """A stage of one's own, a command, or the stage of this role that asks a model."""
    place = f"stages.{role}"
    if bool(entry.name) == bool(entry.command):
        raise SetupError(f"{place}: needs exactly one of name and command")
    if entry.command:
        return _build_command(role, entry)
    if unused := [key for key in _ONLY_FOR_COMMANDS if key in entry.model_fields_set]:
        raise SetupError(f"{place}.{unused[0]}: is only for commands; remove it")
    if is_reference(entry.name):
        return build_part(PartEntry(name=entry.name, options=entry.options), STAGES[role], place=place)
    kind = _load_model_stage(role)
    others = [name for name in list_parameters(kind) if name not in ("model_options", "max_prompt_tokens")]
    options = read_options(kind, reveal(entry.options), place=f"{place}.options", without=others)
    settings = models.settings[entry.name].options if entry.name in models.settings else {}
    try:
        return kind(entry.name, **{**options, "model_options": {**settings, **(options.get("model_options") or {})}})
    except SetupError as error:
        raise SetupError(f"{place}: {error}") from error


def _build_command(role: str, entry: StageEntry) -> Any:
    from promptiter.backprop.command.stages import (
        CommandAggregator,
        CommandAttributor,
        CommandBackwarder,
        CommandOptimizer,
    )

    kinds = {
        "backwarder": CommandBackwarder,
        "attributor": CommandAttributor,
        "aggregator": CommandAggregator,
        "optimizer": CommandOptimizer,
    }
    if role not in kinds:
        raise SetupError(f"stages.{role}: cannot be a command; name a model, or your own stage as module:attr")
    if entry.options:
        raise SetupError(f"stages.{role}.options: a command has none; give it arguments, or variables as environment")
    stage = kinds[role](
        command=entry.command,
        environment=reveal(entry.environment),
        inherit=entry.inherit,
        cwd=entry.cwd,
        timeout_s=entry.timeout_s,
        concurrency=entry.concurrency,
    )
    if problem := stage.find_setup_problem():
        raise SetupError(f"stages.{role}: {problem}")
    return stage


_ONLY_FOR_COMMANDS = ("environment", "inherit", "cwd", "timeout_s", "concurrency")


def _load_model_stage(role: str) -> Callable[..., Any]:
    from promptiter.backprop.llm.aggregator import LLMAggregator
    from promptiter.backprop.llm.attributor import LLMAttributor
    from promptiter.backprop.llm.backwarder import LLMBackwarder
    from promptiter.backprop.llm.corrector import LLMCorrector
    from promptiter.backprop.llm.optimizer import LLMOptimizer

    return {
        "backwarder": LLMBackwarder,
        "attributor": LLMAttributor,
        "aggregator": LLMAggregator,
        "optimizer": LLMOptimizer,
        "corrector": LLMCorrector,
    }[role]


def _check_stages(config: RunConfig, entry: PartEntry) -> None:
    """Refuse stages that the search of the file would not use. `stages: MODEL` is for those that it takes."""
    try:
        taken = list_parameters(SEARCH.load(entry.name))
    except SetupError:
        return  # building the search reports it
    unused = {role: name for role in config.stages.given if (name := _ARGUMENTS.get(role, role)) not in taken}
    if config.stages.is_one_model and len(unused) < len(config.stages.given):
        return
    if unused:
        raise RequestError(
            f"stages.{role}: the search {entry.name!r} has no parameter {name!r}; remove the stage, or "
            "choose another search"
            for role, name in unused.items()
        )


_ARGUMENTS = {"attributor": "backwarder", "corrector": "check"}
"""The argument of a search that a stage is given as, if it does not have the name of the stage."""

_KEYS = {
    "backwarder": "stages.backwarder",
    "aggregator": "stages.aggregator",
    "optimizer": "stages.optimizer",
    "check": "stages.check_gradients",
}
"""The key that gives each argument of a search."""
