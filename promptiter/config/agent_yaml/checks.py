"""What must hold for an agent.yaml besides what is checked for every run: its block, its hold-out, its subagents.

All problems are reported together with those of the run: files and cases that cannot be read, cases in both sets, a
loss with unknown metrics, axes that the agent does not have, models without a key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from promptiter.config.agent_yaml.conversion import write_starter
from promptiter.config.agent_yaml.document import FILE_NAME, AgentDocument
from promptiter.config.agent_yaml.metrics import convert_metrics
from promptiter.config.agent_yaml.subagents import ROLES, read_subagent
from promptiter.config.fields import PartEntry
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.wording import plural

if TYPE_CHECKING:
    from promptiter.config.sections import Acceptance

_PLACES = {
    "weights": "evaluations.optimizer.loss",
    "train": "evaluations.optimizer.train_cases_file",
    "cases": "evaluations.optimizer.train_cases_file",
    "validation": "evaluations.optimizer.holdout_cases_file",
    "metrics": "evaluations.metrics",
}
"""Keys of agent.yaml, by those that they become."""

_MODEL_KEYS = {"api_key": "api_key", "api_base": "endpoint"}
_MODEL_KEY = re.compile(r"models\.\S+\.(api_key|api_base) in promptiter\.yaml")

NO_HOLDOUT = (
    "Optimizer requires both train_cases_file and holdout_cases_file. To run without a holdout, set "
    "holdout_eval_policy: skip and acknowledge the overfit risk."
)


def find_key_problems(found: AgentDocument) -> Iterator[str]:
    """What is wrong with the keys of a file, whatever it is used for."""
    yield from found.problems
    for each in convert_metrics(found.given.evaluations.metrics)[1]:
        yield f"{found.file}: {each}"


def find_problems(found: AgentDocument) -> Iterator[str]:
    """What is wrong with a file that is to be optimized."""
    block, place = found.optimizer, "evaluations.optimizer"
    if block is None:
        yield f"{place}: is missing; add a block such as this one:\n\n{write_starter(found)}"
        return
    if block.train_cases_file is None or (block.holdout_cases_file is None and block.holdout_eval_policy != "skip"):
        yield f"{place}: {NO_HOLDOUT}"
    elif block.holdout_cases_file is not None and block.holdout_eval_policy != "skip":
        yield from _check_holdout(found, block.holdout_cases_file, block.min_holdout_cases)
    if not block.axes.numeric and not block.axes.textual:
        yield f"{place}.axes: is empty; list what may change, or see `promptiter test optimize --suggest-axes`"
    if block.loss and not any(block.loss.values()):
        yield f"{place}.loss: all weights are 0; give one metric more"
    paths = {axis.path for axis in block.axes.textual}
    for group in block.co_optimize:
        for path in group:
            if path not in paths:
                yield f"{place}.co_optimize: {path!r} is not one of the textual axes; add it there"
    for role in ROLES:
        try:
            read_subagent(role, found.folder, found.given.model)
        except SetupError as error:
            yield str(error)


def find_warnings(search: PartEntry | None, acceptance: Acceptance, *, is_numeric: bool = True) -> Iterator[str]:
    """What a user should know before anything is spent. `is_numeric` says whether there are numeric axes."""
    options = {} if search is None else search.options
    sigma = acceptance.sigma_gain
    if sigma is not None and sigma.repeats == 1:
        yield (
            "repeats is 1: a candidate has no measured spread of its own, so that the noise bar is only that of the "
            "accepted one; use at least 2, unless the agent always answers the same"
        )
    if sigma is not None and sigma.holdout == "skip":
        yield (
            "holdout_eval_policy is skip: hold-out cases are never run, and the train cases alone decide, so the "
            "result may be overfitted"
        )
    trials, startup = options.get("numeric_max_trials"), options.get("startup_trials")
    if is_numeric and isinstance(trials, int) and isinstance(startup, int) and trials < startup:
        yield (
            f"numeric_phase.max_trials is {trials}, below the {plural(startup, 'start-up trial')} of a study: every "
            "numeric phase is a random search"
        )


def name_surfaces(search: PartEntry | None, axes: Mapping[str, str]) -> PartEntry | None:
    """The search of a run with the surfaces of the axes that are to change together, instead of their paths."""
    groups = None if search is None else search.options.get("co_optimize")
    if search is None or not axes or not isinstance(groups, list):
        return search
    named = [[axes.get(path, path) for path in group] for group in groups]
    return search.model_copy(update={"options": {**search.options, "co_optimize": named}})


def name_keys(problem: str) -> str:
    """A problem of a run with the keys of agent.yaml, instead of those that they become."""
    place, colon, text = problem.partition(": ")
    files = " and ".join(f"{role}.yaml" for role in ROLES if f"search.options.{role}" in place) or FILE_NAME
    text = _MODEL_KEY.sub(lambda found: f"model.{_MODEL_KEYS[found[1]]} in {files}", text)
    return f"{_PLACES.get(place, place.replace('search.options.', ''))}{colon}{text}"


def _check_holdout(found: AgentDocument, name: str, least: int) -> Iterator[str]:
    try:
        count = len(load_eval_set(found.folder / name).cases)
    except SetupError:
        return  # loading the cases of the run reports it
    if count < least:
        yield (
            f"evaluations.optimizer.holdout_cases_file: {name} has {plural(count, 'case')}, and min_holdout_cases is "
            f"{least}: the noise cannot be measured with fewer; add cases"
        )
