"""Checks of a run request: all problems are found together, before anything is spent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent
from promptiter.engine.metric_calls import MetricCalls, count_final_test_calls
from promptiter.engine.outline import TargetChoosingSearch, find_kept_targets
from promptiter.engine.price_checks import find_price_problems
from promptiter.engine.request import SETS, RunRequest
from promptiter.engine.type_checks import check_request_type, check_structure, find_wrong_types
from promptiter.errors import RequestError, SetupError, UnknownSurfaceError, nearest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import find_overlaps
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import TrajectoryMetric
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.scorer import NO_AGENT, SCORER_SET, DescribedAgent, ScoredAgent, as_scorer
from promptiter.numbers import is_number
from promptiter.policies.acceptance import Protected
from promptiter.policies.combine import describe_policy, iter_policies
from promptiter.policies.constraints import check_figures
from promptiter.policies.goals import list_other_models
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.stopping import RequiredMetrics, TargetScore, check_metrics, check_target
from promptiter.runlog.results import RunShape
from promptiter.stages.losses import check_hints, check_placements
from promptiter.structure import StructureSnapshot, Surface
from promptiter.wording import join_names, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A valid request for one engine: one eval set of each kind, and the targets by name.

    `evaluator` is the engine's, with the options, the seed and the judge of the request, or the metrics of its scorer.
    Unless the `shape` is two sets, train and validation are the same.
    """

    request: RunRequest
    snapshot: StructureSnapshot
    evaluator: Evaluator
    shape: RunShape
    train: EvalSet
    validation: EvalSet
    test: EvalSet | None
    targets: tuple[str, ...]

    def choose_agent(self, agent: Agent) -> Agent:
        """The agent, or the scorer of the request in its place."""
        return agent if self.request.scorer is None else ScoredAgent(agent, as_scorer(self.request.scorer))

    def count_metric_calls(self) -> MetricCalls:
        """A new counter of the metric calls of this request, with what is reserved for its final test."""
        request = self.request
        reserved = (
            0 if request.final_test is None else count_final_test_calls(self.validation, self.test, shape=self.shape)
        )
        return MetricCalls(request.max_metric_calls, reserved=reserved if request.round_limit > 0 else 0)

    def with_run_id(self, run_id: str) -> CheckedRequest:
        """The same request for a run with this id."""
        return replace(self, request=replace(self.request, run_id=run_id))


def check_request_for(
    agent: Agent, request: RunRequest | CheckedRequest, evaluator: Evaluator, search: object
) -> CheckedRequest:
    """Check a request of an engine with this agent and evaluator. One that was checked is returned as it is."""
    if isinstance(request, CheckedRequest):
        return request
    check_request_type(request)
    if isinstance(agent, DescribedAgent) and request.scorer is None:
        raise RequestError([NO_AGENT])
    snapshot = agent.describe()
    check_structure(snapshot, agent)
    return check_request(request, snapshot, evaluator, search, agent=agent)


def check_request(
    request: RunRequest,
    snapshot: StructureSnapshot,
    evaluator: Evaluator,
    search: object = None,
    *,
    agent: Agent | None = None,
) -> CheckedRequest:
    """Return the inputs of a request, or raise a RequestError that lists every problem.

    What a call of a node may cost is only checked with the `agent`.
    """
    if wrong := [*_shape_problems(request), *find_wrong_types(request)]:
        raise RequestError(wrong)
    given = {name: sets for name in SETS if (sets := getattr(request, name)) is not None}
    sets = {name: merge_eval_sets(each, name=name) for name, each in given.items()} or _build_scorer_sets(request)
    shape, train_name, validation_name = _find_shape(sets)
    targets = _select_targets(request, snapshot, search)
    known = [target for target in targets if target in snapshot.surface_ids]
    changeable = set(known).difference(find_kept_targets(search, snapshot, known, shape=shape))
    evaluator = _configure_evaluator(evaluator, request)
    problems = [
        *([] if evaluator.metrics else ["the evaluator has no metrics; give it at least one, or the request a scorer"]),
        *(problem for name, each in sets.items() for problem in _case_problems(each, name, request, evaluator)),
        *_judge_problems(request, evaluator),
        *_overlap_problems(sets),
        *_surface_problems(request, snapshot, targets),
        *_policy_problems(request, sets[validation_name], validation_name, evaluator),
        *_metric_call_problems(request, sets[validation_name], sets.get("test"), shape),
        *_hint_problems(request, snapshot, evaluator, sets[train_name]),
        *find_price_problems(request, snapshot, evaluator, targets=changeable, agent=agent),
        *_goal_problems(request, snapshot, targets, evaluator),
    ]
    if problems:
        raise RequestError(problems)
    return CheckedRequest(
        request=request,
        snapshot=snapshot,
        evaluator=evaluator,
        shape=shape,
        train=sets[train_name],
        validation=sets[validation_name],
        test=sets.get("test"),
        targets=targets,
    )


def _configure_evaluator(evaluator: Evaluator, request: RunRequest) -> Evaluator:
    """The evaluator with the options, the seed and the judge of a request, or the metrics of its scorer."""
    if request.scorer is not None:
        evaluator = evaluator.with_metrics(as_scorer(request.scorer).metrics)
    if request.evaluation is not None:
        evaluator = evaluator.with_options(request.evaluation)
    if request.seed is not None:
        evaluator = evaluator.with_options(replace(evaluator.options, seed=request.seed))
    return evaluator if request.judge is None else evaluator.with_judge(request.judge)


def _build_scorer_sets(request: RunRequest) -> dict[str, EvalSet]:
    """The one case of a scorer, and the cases of its hold-out as the test set."""
    holdout = None if request.scorer is None else as_scorer(request.scorer).holdout_set
    return {"scorer": SCORER_SET} | ({} if holdout is None else {"test": holdout})


def _find_shape(sets: Mapping[str, EvalSet]) -> tuple[RunShape, str, str]:
    """The shape of a run, and the names of the sets that it learns from and validates on."""
    if "scorer" in sets:
        return "scorer", "scorer", "scorer"
    return ("one_set", "cases", "cases") if "cases" in sets else ("two_sets", "train", "validation")


def _shape_problems(request: RunRequest) -> Iterator[str]:
    """Find sets that are missing, or that do not go together."""
    given = [name for name in SETS if getattr(request, name) is not None]
    if request.scorer is not None:
        if given:
            yield f"a scorer scores without cases, but {_say_given(given)}, too; give one or the other"
        if request.teacher is not None:
            yield "a scorer has no cases that a teacher could answer; leave the teacher out"
        return
    both = [name for name in given if name in ("train", "validation")]
    if "cases" in given and both:
        yield f"cases are for learning and validation, but {_say_given(both)}, too; give one or the other"
    elif "cases" not in given and not both:
        yield "there are no cases; give train and validation, or one set as cases, or a scorer"
    elif "cases" not in given and len(both) == 1:
        missing = "validation" if both == ["train"] else "train"
        yield (
            f"{missing} is missing; give it, or give the {both[0]} set as cases, if the search may validate on the "
            "cases it learns from"
        )


def _say_given(names: Sequence[str]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 and names != ['cases'] else 'are'} given"


def merge_eval_sets(eval_sets: EvalSet | Sequence[EvalSet], *, name: str) -> EvalSet:
    """Merge eval sets into one, whose cases name the set they came from, also in an id that occurs in several."""
    if isinstance(eval_sets, EvalSet):
        return eval_sets
    if len(eval_sets) == 1:
        return eval_sets[0]
    seen = Counter(case.id for each in eval_sets for case in each.cases)
    cases = tuple(
        replace(
            case, id=f"{each.id}/{case.id}" if seen[case.id] > 1 else case.id, eval_set_id=case.eval_set_id or each.id
        )
        for each in eval_sets
        for case in each.cases
    )
    return EvalSet(id="+".join(each.id for each in eval_sets) or name, cases=cases)


def _select_targets(request: RunRequest, snapshot: StructureSnapshot, search: object) -> tuple[str, ...]:
    """The targets of the request, else those that its search is for, else those that its goal is for."""
    if request.targets is not None:
        return tuple(sorted(set(request.targets)))
    if isinstance(search, TargetChoosingSearch) and (chosen := set(search.choose_targets(snapshot))):
        return tuple(sorted(chosen))
    return tuple(sorted(surface.id for surface in snapshot.surfaces if surface.type in request.goal.surface_types))


def _case_problems(eval_set: EvalSet, name: str, request: RunRequest, evaluator: Evaluator) -> Iterator[str]:
    name = "eval" if name == "cases" else name
    if not eval_set.cases:
        yield f"the {name} set has no cases"
    counts = Counter(case.id for case in eval_set.cases)
    if repeated := sorted(case_id for case_id, count in counts.items() if count > 1):
        yield f"the {name} set has case ids that occur twice: {_quote(repeated)}"
    if recorded := [case.id for case in eval_set.cases if case.mode == "trace"]:
        yield (
            f"the {name} set has recorded conversations, which cannot be run again: {_quote(recorded)}; "
            "score them with `promptiter evaluate`, or take them out"
        )
    if evaluator.user_simulator is None and (
        scenarios := [case.id for case in eval_set.cases if case.scenario is not None]
    ):
        yield f"scenarios of the {name} set need a simulated user: {_quote(scenarios)}; set user_simulator_config"
    yield from _reference_problems(eval_set, name, request, evaluator)


def _reference_problems(eval_set: EvalSet, name: str, request: RunRequest, evaluator: Evaluator) -> Iterator[str]:
    """Find cases without the expected answers or tool calls that a metric compares with. A teacher writes answers."""
    needing = [metric for metric in evaluator.metrics if metric.needs_reference]
    of_calls = [metric.name for metric in needing if isinstance(metric, TrajectoryMetric)]
    of_answers = [metric.name for metric in needing if metric.name not in of_calls]
    cases = [case for case in eval_set.cases if case.scenario is None]
    bare = [case.id for case in cases if all(turn.expected is None for turn in case.turns)]
    if of_answers and bare and request.teacher is None:
        yield (
            f"metric {of_answers[0]!r} needs a reference, and the {name} set has cases without one: {_quote(bare)}; "
            "write the expected answers, or name a teacher"
        )
    bare = [case.id for case in cases if all(turn.expected_tool_calls is None for turn in case.turns)]
    if of_calls and bare:
        yield (
            f"metric {of_calls[0]!r} needs tool_calls, and the {name} set has cases without them: {_quote(bare)}; "
            "write the expected calls, or `tool_calls: []` if none is expected"
        )


def _judge_problems(request: RunRequest, evaluator: Evaluator) -> Iterator[str]:
    if request.judge is not None and not any(isinstance(metric, JudgeMetric) for metric in evaluator.metrics):
        yield f"judge is {shorten(request.judge)}, but no metric has a judge; add one that has, or leave the judge out"


def _overlap_problems(sets: Mapping[str, EvalSet]) -> Iterator[str]:
    if found := find_overlaps(sets):
        advice = "keep each case in one of the sets"
        if any(each.startswith("train and validation") for each in found):
            advice += ", or give one set as cases, if the search may validate on the cases it learns from"
        yield f"{'; '.join(found)}; {advice}"


def _surface_problems(request: RunRequest, snapshot: StructureSnapshot, targets: Sequence[str]) -> Iterator[str]:
    if not targets:
        what = "a model" if request.goal.kind == "cheaper" else "an instruction"
        if request.targets is not None:
            yield "targets is an empty list, so no surface may change; name some, or leave targets out"
        else:
            yield f"no surface may change: name targets, or give the agent {what} that can be edited"
    for target in targets:
        if target not in snapshot.surface_ids:
            yield str(UnknownSurfaceError(target, known=snapshot.surface_ids))
    if request.initial_profile is not None:
        try:
            request.initial_profile.check(snapshot)
        except SetupError as error:
            yield f"initial profile: {error}"


def _policy_problems(request: RunRequest, validation: EvalSet, name: str, evaluator: Evaluator) -> Iterator[str]:
    if request.round_limit < 0:
        yield f"max_rounds is {request.round_limit}; give 0 (only validate the baseline) or more"
    if request.stop is not None:
        try:
            check_metrics(request.stop, [metric.name for metric in evaluator.metrics])
        except SetupError as error:
            yield str(error)
        yield from check_target(request.stop, request.objective)
    if not is_number(request.alpha) or not 0 < request.alpha < 1:
        yield f"alpha is {request.alpha!r}; give a false-positive rate above 0 and below 1, such as 0.05"
    if request.scorer is None:  # a scorer may record others, which is known once the baseline has run
        yield from check_figures(request.acceptance, [metric.name for metric in evaluator.metrics])
    known = [case.id for case in validation.cases]
    own = (part.case_ids for part in iter_policies(request.acceptance) if isinstance(part, Protected))
    for case_id in sorted(request.protected.union(*own).difference(known)):
        where = "one of the cases" if name == "cases" else f"in the {name} set"
        yield f"protected case {case_id!r} is not {where}{nearest(case_id, known)}"


def _metric_call_problems(
    request: RunRequest, validation: EvalSet, test: EvalSet | None, shape: RunShape
) -> Iterator[str]:
    """Find a cap that leaves nothing for the search, besides the baseline and the final test."""
    cap = request.max_metric_calls
    if cap is None or request.final_test is None or request.round_limit <= 0:
        return
    baseline, final_test = len(validation.cases), count_final_test_calls(validation, test, shape=shape)
    if cap <= baseline + final_test:
        yield (
            f"max_metric_calls is {cap}, but the baseline takes {baseline} and the final test {final_test}, which "
            f"leaves none for a candidate; give more than {baseline + final_test}, or fewer cases"
        )


def _hint_problems(
    request: RunRequest, snapshot: StructureSnapshot, evaluator: Evaluator, train: EvalSet
) -> Iterator[str]:
    metrics = [metric.name for metric in evaluator.metrics]
    yield from check_placements(request.loss_placements, metrics=metrics, node_ids=[node.id for node in snapshot.nodes])
    yield from check_hints(request.hints, metrics=metrics, case_ids=[case.id for case in train.cases])


def _goal_problems(
    request: RunRequest, snapshot: StructureSnapshot, targets: Sequence[str], evaluator: Evaluator
) -> Iterator[str]:
    """Find what a goal other than the score lacks: its policy, something to change, prices."""
    goal = request.goal
    if goal.kind == "score":
        return
    if not any(
        isinstance(part, NonInferior) and part.figure == goal.figure for part in iter_policies(request.acceptance)
    ):
        wanted = NonInferior(goal.margin, goal.figure or "tokens")
        yield f"the goal is {goal.kind!r}, but acceptance is {describe_policy(request.acceptance)}; give {wanted!r}"
    for part in iter_policies(request.stop):
        if isinstance(part, TargetScore | RequiredMetrics):
            yield f"the goal is {goal.kind!r}, but stop is about the score: {describe_policy(part)}; leave it out"
    surfaces = [snapshot.surface(target) for target in targets if target in snapshot.surface_ids]
    fitting = [surface for surface in surfaces if surface.type in goal.surface_types]
    if surfaces and not fitting:
        types = ", ".join(sorted(goal.surface_types))
        yield f"the goal is {goal.kind!r}, but no target has a type that it can change: {types}"
    if goal.kind == "cheaper":
        yield from _cheaper_problems(request, fitting, evaluator)


def _cheaper_problems(request: RunRequest, surfaces: Sequence[Surface], evaluator: Evaluator) -> Iterator[str]:
    values = {} if request.initial_profile is None else request.initial_profile.overrides
    current = {surface.id: values.get(surface.id, surface.value) for surface in surfaces}
    others = {surface.id: list_other_models(request.goal, surface, current[surface.id]) for surface in surfaces}
    if surfaces and not any(others.values()):
        yield "there is no other model to try; name some as models of the goal, or give the nodes choices"
    asked = {str(model) for name, models in others.items() if models for model in (current[name], *models)}
    for model in sorted(asked):
        if evaluator.gateway.price(model) is None:
            yield f"the price of model {model!r} is unknown, so it cannot be compared; give it under prices"


def _quote(names: Iterable[str]) -> str:
    return join_names([repr(name) for name in names], limit=5)
