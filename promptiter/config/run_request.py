"""Builds the request of a run from a configuration, and checks it together with the agent and the evaluator."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import or_

from promptiter.agents.base import Agent
from promptiter.agents.runner import Runner, load_runner
from promptiter.config.eval_sets import SetsByKey
from promptiter.config.file import RunConfig
from promptiter.config.parts import build_scorer
from promptiter.config.policies import build_acceptance, build_edit_limits, build_final_test, build_goal, build_stop
from promptiter.config.problems import Problems
from promptiter.config.search import find_models_of_stages
from promptiter.config.task_yaml.conversion import SCORER as TASK_SCORER
from promptiter.config.task_yaml.document import read_task_file
from promptiter.config.task_yaml.parts import build_task_scorer
from promptiter.engine.model_checks import check_models
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest, check_request
from promptiter.engine.round_limits import complete_limits, find_own_limit
from promptiter.errors import SetupError, UnknownSurfaceError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.scorer import Scorer
from promptiter.policies.acceptance import AnyGain
from promptiter.policies.callback_stop import CallbackStop
from promptiter.profile import Profile
from promptiter.references import is_reference
from promptiter.stages.losses import LossHint, LossPlacement


def load_profile(problems: Problems, *, place: str = "initial_profile") -> Profile | None:
    """The initial profile of a configuration, if it names one."""
    path = problems.parsed.config.initial_profile
    return problems.attempt(partial(Profile.load, path), place=place) if path else None


def load_teacher(problems: Problems) -> Runner | str | None:
    """The teacher of a configuration: a function that it names, or the name of a model."""
    teacher = problems.parsed.config.teacher
    if teacher is None or not is_reference(teacher):
        return teacher
    return problems.attempt(partial(load_runner, teacher, what="teacher"))


def build_request(
    problems: Problems,
    sets: SetsByKey,
    *,
    search: object,
    stoppers: Sequence[CallbackStop] = (),
    targets: Sequence[str] | None = None,
) -> RunRequest:
    """The request of a configuration with these eval sets. `stoppers` end the search, besides its stop policies.

    `targets` are the surfaces that may change if the configuration names none.
    """
    config = problems.parsed.config
    goal = build_goal(config.goal)
    has_patience = find_own_limit(search) is None
    stop = build_stop(config.stop, objective=config.objective, goal=goal, has_patience=has_patience)
    if stoppers and not hasattr(search, "extra_stop_callbacks"):  # GEPA asks them itself, with its state
        stop = reduce(or_, stoppers if stop is None else (stop, *stoppers))
    accepts = partial(build_acceptance, config.acceptance, goal)
    request = RunRequest(
        train=sets.get("train"),
        validation=sets.get("validation"),
        cases=sets.get("cases"),
        test=sets.get("test"),
        scorer=problems.attempt(partial(_build_scorer, config)),
        initial_profile=load_profile(problems),
        teacher=load_teacher(problems),
        judge=config.judge,
        acceptance=problems.attempt(accepts, place="acceptance") or AnyGain(),
        edit_limits=build_edit_limits(config.edit_limits),
        final_test=build_final_test(config.final_test),
        alpha=config.alpha,
        stop=stop,
        max_rounds=config.max_rounds,
        max_metric_calls=config.budget.max_metric_calls,
        targets=targets if config.targets is None else config.targets,
        objective=config.objective,
        goal=goal,
        loss_placements=tuple(LossPlacement(**each.model_dump()) for each in config.loss_placements),
        hints=tuple(LossHint(**each.model_dump()) for each in config.hints),
        protected=frozenset(config.acceptance.protected),
        seed=config.seed,
    )
    return complete_limits(request, search)


def _build_scorer(config: RunConfig) -> Scorer | None:
    if config.scorer is None:
        return None
    if config.scorer.name != TASK_SCORER:
        return build_scorer(config.scorer)
    if config.agent.task is None:
        raise SetupError("scorer: 'task' is that of a task.yaml; name the file as agent: {task: task.yaml}")
    return build_task_scorer(config.agent.task)


def check_configured_request(
    problems: Problems,
    request: RunRequest,
    *,
    agent: Agent | None,
    evaluator: Evaluator,
    search: object,
    is_complete: bool,
) -> CheckedRequest | None:
    """Check the request, and add what the engine would refuse later, so that all problems are in one list."""
    config = problems.parsed.config
    problems.found.extend(evaluator.gateway.find_unpriced_models(find_models_of_stages(config).values()))
    if config.review and request.goal.kind != "score":
        problems.add(f"review: only patches for the score are reviewed, but the goal is {request.goal.kind}; remove it")
    if agent is None:
        return None
    if "models" not in problems.parsed.broken:  # the check would guess their settings, and report the same twice
        problems.attempt(lambda: _check_models(problems, request, agent, evaluator))
    problems.attempt(lambda: _check_sources(problems, agent), place="sources")
    if is_complete:
        return problems.attempt(lambda: check_request(request, agent.describe(), evaluator, search, agent=agent))
    known = agent.describe().surface_ids
    unknown = [target for target in request.targets or () if target not in known]
    problems.found.extend(str(UnknownSurfaceError(target, known=known)) for target in unknown)
    return None


def _check_sources(problems: Problems, agent: Agent) -> None:
    if sources := problems.parsed.config.sources:
        known = agent.describe().surface_ids
        for name in sources:
            if name not in known:
                raise UnknownSurfaceError(name, known=known)


def _check_models(problems: Problems, request: RunRequest, agent: Agent, evaluator: Evaluator) -> None:
    config = problems.parsed.config
    teacher = request.teacher if isinstance(request.teacher, str) else None
    judges = () if config.agent.task is None else read_task_file(config.agent.task).task.judges
    others = {
        "teacher": teacher,
        **{f"judges.{each.metric}": each.model for each in judges if not is_reference(each.model)},
        **find_models_of_stages(config),
    }
    if request.judge is not None:
        evaluator = evaluator.with_judge(request.judge)
    check_models(agent, evaluator, profile=request.initial_profile, others=others)
