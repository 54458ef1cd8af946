"""Finds models that certainly cannot be called, before anything is paid: no key, or an unknown provider or name.

Programs that are missing are found with them.

Once the baseline has run, it also finds agents whose calls no budget limits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from promptiter.agents.base import Agent, NeedsProgram
from promptiter.agents.graph import GraphAgent
from promptiter.agents.runner import Runner
from promptiter.engine.outline import ModelCallingSearch
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.result import Evaluation
from promptiter.grouping import group_by
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.wording import join_names

MAX_PLACES = 3
UNCOUNTED_CALLS = (
    "the budget does not limit the agent: it made no model or tool call through promptiter; if it calls a model "
    "itself, its calls and costs are not counted"
)


def check_models(
    agent: Agent,
    evaluator: Evaluator,
    *,
    profile: Profile | None = None,
    others: Mapping[str, str | None] | None = None,
    search: object = None,
) -> None:
    """Raise a RequestError with one line for each model that cannot be called: of agent, metrics, search, and `others`.

    A program of the agent or of a stage that is missing is such a line, too.
    `others` are models by the place that names them. An agent that is not a GraphAgent may call models without the
    gateway, so its models are not checked.
    """
    named = [*list_models_of_agent(agent, profile), *list_models_of_evaluator(evaluator), *(others or {}).items()]
    gateway, places = evaluator.gateway, group_by(named, lambda each: each[1])
    found = (
        f"{join_names(list(dict.fromkeys(place for place, _ in places[model])), limit=MAX_PLACES)}: {problem}"
        for model in sorted(each for each in places if each is not None)
        for problem in gateway.find_setup_problems([model])
    )
    of_search = search.find_setup_problems(gateway) if isinstance(search, ModelCallingSearch) else []
    program = agent.find_setup_problem() if isinstance(agent, NeedsProgram) else None
    of_agent = [] if program is None else [f"agent: {program}"]
    if problems := list(dict.fromkeys((*of_agent, *found, *of_search))):
        raise RequestError(problems)


def find_uncounted_calls(evaluation: Evaluation, gateway: Gateway) -> str | None:
    """A warning if there is a budget and no run of an agent made a call that it covers; None otherwise."""
    has_calls = any(row.measured.paid_calls or row.measured.cache_hits for row in evaluation.rows)
    if gateway.budget is None or has_calls or not any(row.error is None for row in evaluation.rows):
        return None
    return UNCOUNTED_CALLS


def list_models_of_agent(agent: Runner, profile: Profile | None = None) -> Iterator[tuple[str, str]]:
    """The nodes of an agent that call a model, each with its name."""
    if not isinstance(agent, GraphAgent):
        return
    snapshot = agent.describe()
    current = profile or Profile.baseline(snapshot)
    surface_ids = (f"{node.id}#model" for node in snapshot.nodes if node.kind == "llm")
    for name in surface_ids:
        if name in snapshot.surface_ids:
            yield name, str(current.value(name, snapshot))


def list_models_of_evaluator(evaluator: Evaluator) -> Iterator[tuple[str, str]]:
    """The models of judges and of the simulated user, each with its place."""
    for metric in evaluator.metrics:
        for judge in metric.judges if isinstance(metric, JudgeMetric) else ():
            of_agent = [] if judge.runner is None else list_models_of_agent(judge.runner)
            models = [judge.model] if judge.runner is None else [model for _, model in of_agent]
            yield from ((f"the judge of {metric.name}", model) for model in models)
    if evaluator.user_simulator is not None:
        yield "the simulated user", evaluator.user_simulator.model
