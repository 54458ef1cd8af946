"""Finds models that certainly cannot be called, before anything is paid: no key, or an unknown provider or name.

Once the baseline has run, it also finds agents whose calls no budget limits.
"""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.agents.base import Agent
from promptiter.agents.graph import GraphAgent
from promptiter.agents.runner import Runner
from promptiter.engine.outline import ModelCallingSearch
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.result import Evaluation
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile


def check_models(
    agent: Agent,
    evaluator: Evaluator,
    *,
    profile: Profile | None = None,
    others: Iterable[str] = (),
    search: object = None,
) -> None:
    """Raise a RequestError with one line for each model that cannot be called: of agent, metrics, search, and `others`.

    An agent that is not a GraphAgent may call models without the gateway, so its models are not checked.
    """
    names = {*_models_of_agent(agent, profile), *_models_of_evaluator(evaluator), *others}
    gateway = evaluator.gateway
    of_search = search.find_setup_problems(gateway) if isinstance(search, ModelCallingSearch) else []
    if problems := list(dict.fromkeys((*gateway.find_setup_problems(names), *of_search))):
        raise RequestError(problems)


def find_uncounted_calls(evaluation: Evaluation, gateway: Gateway) -> str | None:
    """A warning if there is a budget and no run of an agent made a call that it covers; None otherwise."""
    has_calls = any(row.measured.paid_calls or row.measured.cache_hits for row in evaluation.rows)
    if gateway.budget is None or has_calls or not any(row.error is None for row in evaluation.rows):
        return None
    return (
        "the budget does not limit the agent: it made no model or tool call through promptiter; if it calls a model "
        "itself, its calls and costs are not counted"
    )


def _models_of_agent(agent: Runner, profile: Profile | None) -> set[str]:
    if not isinstance(agent, GraphAgent):
        return set()
    snapshot = agent.describe()
    current = profile or Profile.baseline(snapshot)
    surface_ids = (f"{node.id}#model" for node in snapshot.nodes if node.kind == "llm")
    return {str(current.value(name, snapshot)) for name in surface_ids if name in snapshot.surface_ids}


def _models_of_evaluator(evaluator: Evaluator) -> set[str]:
    metrics = [metric for metric in evaluator.metrics if isinstance(metric, JudgeMetric)]
    names = set()
    for judge in (judge for metric in metrics for judge in metric.judges):
        names |= {judge.model} if judge.runner is None else _models_of_agent(judge.runner, None)
    return names if evaluator.user_simulator is None else {*names, evaluator.user_simulator.model}
