"""The run of an engine that a request asks for: a RunOverlay on top of the RunRequest of its app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from promptiter.agents.runner import Runner
from promptiter.config.overlay import (
    InlineProfile,
    RunOverlay,
    build_inline_profile,
    choose_sets,
    find_excess,
    look_up,
)
from promptiter.config.policies import build_acceptance, build_stop
from promptiter.config.sections import Stop
from promptiter.engine.engine import Engine
from promptiter.engine.request import SETS, RunRequest
from promptiter.engine.request_checks import CheckedRequest, check_request_for
from promptiter.engine.round_limits import complete_limits
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.amount import Caps
from promptiter.llm.budget import Budget, Budgets
from promptiter.profile import Profile
from traces.model import Json


def check_overlaid_request(
    engine: Engine,
    request: RunRequest,
    overlay: RunOverlay,
    *,
    eval_sets: Mapping[str, EvalSet],
    judges: Mapping[str, Runner | str],
    teachers: Mapping[str, Runner | str],
) -> CheckedRequest:
    """Check a request of an engine with what an overlay changes. A RequestError lists every problem.

    `eval_sets`, `judges` and `teachers` are those that the overlay may name, besides the sets of the request.
    """
    problems: list[str] = []
    given = overlay.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    own = {name: _list_sets(sets) for name in SETS if (sets := getattr(request, name)) is not None}
    sets = choose_sets(overlay, own, eval_sets, problems)
    changes: dict[str, Any] = {name: sets.get(name) for name in SETS}
    changes |= {name: given[name] for name in ("targets", "max_rounds", "seed") if name in given}
    registered = {"judge": judges, "teacher": teachers, "metrics": dict[str, Runner | str]()}
    named = {name: look_up(name, given[name], known, problems) for name, known in registered.items() if name in given}
    changes |= named | _build_policies(request, overlay, problems)
    if overlay.initial_profile is not None:
        changes["initial_profile"] = _build_profile(overlay.initial_profile, engine, problems)
    if evaluation := given.get("evaluation"):
        options = request.evaluation or engine.evaluator.options
        problems += find_excess("evaluation", options, evaluation)
        changes["evaluation"] = replace(options, **evaluation)
    caps = dict(given.get("budget", {}))
    if (calls := caps.pop("max_metric_calls", None)) is not None:
        problems += find_excess("budget", request, {"max_metric_calls": calls})
        changes["max_metric_calls"] = calls
    evaluator = _limit_budget(engine.evaluator, caps, problems)
    if problems:
        raise RequestError(problems)
    changed = complete_limits(replace(request, **changes), engine.search)
    return check_request_for(engine.agent, changed, evaluator, engine.search)


def _build_policies(request: RunRequest, overlay: RunOverlay, problems: list[str]) -> dict[str, Any]:
    """The policies of an overlay, which replace those of the request. Protected cases stay protected."""
    policies: dict[str, Any] = {}
    if overlay.stop is not None:
        conditions = Stop(**overlay.stop.model_dump())
        policies["stop"] = build_stop(conditions, objective=request.objective, goal=request.goal)
    if overlay.acceptance is not None:
        policies["protected"] = request.protected | frozenset(overlay.acceptance.protected)
        try:
            policies["acceptance"] = build_acceptance(overlay.acceptance, request.goal)
        except SetupError as error:
            problems.append(f"acceptance: {error}")
    return policies


def _build_profile(given: InlineProfile, engine: Engine, problems: list[str]) -> Profile | None:
    try:
        return build_inline_profile(given, engine.describe())
    except SetupError as error:
        problems.append(f"initial_profile: {error}")
        return None


def _limit_budget(evaluator: Evaluator, caps: Mapping[str, Json], problems: list[str]) -> Evaluator:
    """The evaluator with the caps of a request, besides those that it has."""
    if not caps:
        return evaluator
    gateway, limit = evaluator.gateway, Budget(**caps)
    allowed = Caps() if gateway.budget is None else gateway.budget.caps
    problems += find_excess("budget", allowed, caps)
    both = limit if gateway.budget is None else Budgets(gateway.budget, limit)
    return evaluator.with_gateway(gateway.for_configuration(budget=both, seed=gateway.seed))


def _list_sets(sets: EvalSet | Sequence[EvalSet]) -> tuple[EvalSet, ...]:
    return (sets,) if isinstance(sets, EvalSet) else tuple(sets)
