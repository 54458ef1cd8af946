"""The built-in metrics that need no model, and `build_metrics`.

The backward pass starts from the findings of a metric: what was expected, what the agent answered, and where they
differ.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, Protocol, SupportsFloat, TypeAlias, TypeVar

from promptiter.agents.base import AgentRun
from promptiter.agents.runner import Runner
from promptiter.concurrency import call_any, run_in_thread
from promptiter.errors import MetricError, nearest
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.metrics.criteria import JUDGE_METRICS, FinalResponseCriterion, Limit, Options
from promptiter.evaluation.metrics.eval_config import EvalConfig, MetricBuilder, MetricConfig
from promptiter.evaluation.metrics.json_match import compare_json_text
from promptiter.evaluation.metrics.metric import (
    Metric,
    TurnScore,
    blame_metric,
    describe_failure,
    leave_unscored,
    report_exception,
    score_by_turn,
)
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.metrics.text_match import (
    NumericCriterion,
    RougeCriterion,
    compare_number,
    compare_text,
    find_word_differences,
    rouge_f1,
)
from promptiter.evaluation.metrics.trajectory import TrajectoryCriterion, compare_tool_calls
from promptiter.evaluation.score import Finding, Score
from promptiter.llm.gateway import Gateway
from promptiter.llm.secret import reveal
from promptiter.registry import METRICS, Registry
from promptiter.signatures import find_misfit, read_docstring
from promptiter.wording import shorten
from traces import Usage
from traces.model import Json

Judgement: TypeAlias = float | bool | Score | tuple[float | bool, str]
ScoreFunction: TypeAlias = Callable[..., Judgement | Awaitable[Judgement]]


class TurnCriterion(Protocol):
    """A criterion that judges one turn."""

    @property
    def needs_reference(self) -> bool: ...

    @property
    def has_patterns(self) -> bool:
        """Whether it may match regular expressions, which takes time."""
        ...

    @property
    def description(self) -> str: ...


C = TypeVar("C", bound=TurnCriterion)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetric(Generic[C]):
    """A metric that judges each turn by a criterion."""

    name: str
    criterion: C
    threshold: float = 1.0

    @property
    def needs_reference(self) -> bool:
        return self.criterion.needs_reference

    @property
    def description(self) -> str:
        return self.criterion.description

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        if self.criterion.has_patterns:
            return await run_in_thread(lambda: self._score(case, run))
        return self._score(case, run)

    def _score(self, case: EvalCase, run: AgentRun) -> Score:
        return score_by_turn(self, case, run, judge=self._judge)

    def _judge(self, turn: Turn | None, run: AgentRun) -> TurnScore:
        raise NotImplementedError


class FinalResponseMetric(TurnMetric[FinalResponseCriterion]):
    """1 for a turn whose answer matches the criterion, otherwise 0."""

    def _judge(self, turn: Turn | None, run: AgentRun) -> TurnScore:
        reference = turn.expected if turn else None
        findings: tuple[Finding, ...] = ()
        if self.criterion.text is not None:
            findings += compare_text(run.output, reference, self.criterion.text)
        if self.criterion.json is not None:
            findings += compare_json_text(run.output, reference, self.criterion.json, data=run.data)
        if (rouge := self.criterion.rouge) is not None and reference is not None:
            is_near = rouge_f1(run.output, reference, rouge.type) >= rouge.threshold
            findings += () if is_near else find_word_differences(run.output, reference, rouge.type)
        return TurnScore(0.0 if findings else 1.0, findings)


class RougeMetric(TurnMetric[RougeCriterion]):
    """The ROUGE F1 of each answer."""

    def _judge(self, turn: Turn | None, run: AgentRun) -> TurnScore:
        reference = (turn.expected if turn else None) or ""
        value = rouge_f1(run.output, reference, self.criterion.type)
        is_enough = value >= self.threshold
        return TurnScore(value, () if is_enough else find_word_differences(run.output, reference, self.criterion.type))


class NumericMetric(TurnMetric[NumericCriterion]):
    """1 for a turn whose number equals that of the reference within the tolerance, otherwise 0."""

    def _judge(self, turn: Turn | None, run: AgentRun) -> TurnScore:
        findings = compare_number(run.output, turn.expected if turn else None, self.criterion)
        return TurnScore(0.0 if findings else 1.0, findings)


class TrajectoryMetric(TurnMetric[TrajectoryCriterion]):
    """1 for a turn whose tool calls match the expected ones, otherwise 0. A run without a trace is unscored."""

    def _score(self, case: EvalCase, run: AgentRun) -> Score:
        return score_by_turn(
            self, case, run, judge=self._judge, has_reference=lambda turn: turn.expected_tool_calls is not None
        )

    def _judge(self, turn: Turn | None, run: AgentRun) -> TurnScore:
        if run.trace is None:
            raise MetricError("the run has no trace, so its tool calls are unknown; use an agent that records one")
        expected = (turn.expected_tool_calls if turn else None) or ()
        findings = compare_tool_calls(run.tool_calls, expected, self.criterion)
        return TurnScore(0.0 if findings else 1.0, findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitMetric:
    """1 for a run within a limit of duration or cost, otherwise limit / actual. Unscored if the figure is unknown."""

    name: str
    predicate: Literal["max_duration_s", "max_cost_usd"]
    limit: float
    threshold: float = 1.0
    needs_reference: bool = False

    @property
    def description(self) -> str:
        return f"{self.predicate} of {self.limit:g}"

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:  # noqa: ARG002 - part of the protocol
        if problem := describe_failure(run):
            return leave_unscored(self, problem)
        actual = _find_duration_s(run) if self.predicate == "max_duration_s" else _find_cost_usd(run)
        if actual is None:
            return leave_unscored(self, f"{self.predicate} cannot be judged because the run does not report it")
        if actual <= self.limit:
            reason = f"{actual:g} is within {self.predicate} {self.limit:g}"
            return Score(metric=self.name, value=1.0, threshold=self.threshold, reason=reason)
        return Score(
            metric=self.name,
            value=self.limit / actual,
            threshold=self.threshold,
            reason=f"{actual:g} is above {self.predicate} {self.limit:g}",
            findings=(Finding(kind="violated", expected=self.limit, actual=actual, predicate=self.predicate),),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionMetric:
    """Any function `(case, run) -> float | bool | Score | (value, reason)`, sync (run in a thread) or async.

    If the function raises, the run is unscored, with the type and message of the exception.
    """

    name: str
    function: ScoreFunction = field(repr=False)  # its options may hold secrets
    threshold: float = 1.0
    needs_reference: bool = False

    def __post_init__(self) -> None:
        if problem := find_misfit(self.function, None, None):
            what = f"metric {self.name!r} needs a function of (case, run), not {shorten(self.function)}"
            raise MetricError(f"{what}: {problem}")

    @property
    def description(self) -> str:
        """The first paragraph of the function's docstring."""
        return " ".join(read_docstring(self.function).partition("\n\n")[0].split())

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        if problem := describe_failure(run):
            return leave_unscored(self, problem)
        if self.needs_reference and not any(turn.expected is not None for turn in case.turns):
            return leave_unscored(self, f"{self.name} needs a reference and case {case.id!r} has none")
        try:
            return self._score(await call_any(self.function, case, run))
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return report_exception(self, error)

    def _score(self, answer: Any) -> Score:
        if isinstance(answer, Score):
            return replace(answer, metric=self.name, threshold=self.threshold)
        value, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        if not isinstance(value, (int, float, SupportsFloat)) or not math.isfinite(float(value)):
            return blame_metric(self, f"returned {shorten(answer)}; return a finite number, a bool or a Score")
        return Score(metric=self.name, value=float(value), threshold=self.threshold, reason=str(reason))


def build_metrics(
    config: EvalConfig | Sequence[Mapping[str, Any] | MetricConfig] | Mapping[str, Any],
    *,
    gateway: Gateway | None = None,
    judge: Runner | str | None = None,
    registry: Registry[Any] = METRICS,
) -> tuple[Metric, ...]:
    """The metrics of a configuration, or of a list as in a metric file, which may also hold MetricConfigs.

    LLM judges need the `gateway` that answers their calls, usually the evaluator's. `judge`, a model, an agent or a
    function, is for those that name none. Names are looked up among the built-in metrics, the `evaluators` of the
    configuration, and the registry, which also takes `module:attr`. Raises one UnknownNameError with all unknown names.
    """

    def build_judged(metric: MetricConfig) -> Metric:
        from promptiter.evaluation.metrics.judge import build_judge_metric

        return build_judge_metric(metric, gateway=gateway, default=judge)

    if not isinstance(config, EvalConfig):
        config = _read_list(config) if isinstance(config, list | tuple) else parse_eval_config(config)
    given = {**_BUILDERS, **dict.fromkeys(JUDGE_METRICS, build_judged)}
    known = {*given, *config.evaluators}
    if taken := [name for name in config.evaluators if name in given]:
        raise MetricError(f"evaluators: {taken[0]!r} is the name of a built-in metric; choose another")
    paths = {
        metric.evaluator: config.evaluators.get(metric.evaluator, metric.evaluator)
        for metric in config.metrics
        if metric.evaluator not in given
    }
    items = registry.resolve([*paths.values(), *config.evaluators.values()], also_known=known)
    return tuple(
        given[metric.evaluator](metric)
        if metric.evaluator in given
        else _build_user_metric(items[paths[metric.evaluator]], metric)
        for metric in config.metrics
    )


def _read_list(given: Sequence[Mapping[str, Any] | MetricConfig]) -> EvalConfig:
    documents = [each for each in given if not isinstance(each, MetricConfig)]
    read = iter(parse_eval_config(documents).metrics if documents or not given else ())
    return EvalConfig(metrics=tuple(each if isinstance(each, MetricConfig) else next(read) for each in given))


def _build_user_metric(item: Any, config: MetricConfig) -> Metric:
    """Build a user's metric from a function `(case, run, **options)`, or a builder that takes the MetricConfig."""
    try:
        parameters = inspect.signature(item).parameters.values()
    except (TypeError, ValueError) as error:
        raise MetricError(f"{config.place}: {config.evaluator!r} is {shorten(item)}, which cannot be called") from error
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
    ]
    if len(needed) == 1:
        metric: Metric = item(config)
        return metric
    options = reveal(config.criterion.values) if isinstance(config.criterion, Options) else {}
    _check_options(item, options, config)
    if problem := find_misfit(item, None, None, **options):
        raise MetricError(
            f"{config.place}: {config.evaluator!r} does not take (case, run) and the criterion as options: {problem}"
        )
    return FunctionMetric(name=config.name, function=partial(item, **options), threshold=config.threshold)


def _check_options(function: Callable[..., Any], options: Mapping[str, Json], config: MetricConfig) -> None:
    """Raise MetricError for a key of the criterion that a user's function does not take."""
    parameters = inspect.signature(function).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in list(parameters)[2:]]
    if unknown := [name for name in options if name not in known]:
        takes = f"takes {', '.join(known)}" if known else "takes no options"
        raise MetricError(
            f"{config.place}: unknown key {unknown[0]!r} in the criterion{nearest(unknown[0], known)}; "
            f"{config.evaluator!r} {takes}"
        )


def _find_duration_s(run: AgentRun) -> float | None:
    """The recorded duration. A run that reports 0 did not measure it; then the turns and the trace are used."""
    if duration := run.duration_s or math.fsum(turn.duration_s for turn in run.turns):
        return duration
    recorded = run.trace.duration_ns if run.trace is not None else None
    return None if recorded is None else recorded / 1e9


def _find_cost_usd(run: AgentRun) -> float | None:
    """The recorded cost; None if a part of it is unknown."""
    steps = [step.usage for turn in run.by_turn if turn.trace is not None for step in turn.trace.steps]
    for usages in ([turn.usage for turn in run.turns], [usage for usage in steps if usage is not None]):
        if any(usage.cost_usd is not None for usage in usages) and any(map(_is_unpriced, usages)):
            return None
    return run.usage.cost_usd


def _is_unpriced(usage: Usage) -> bool:
    return usage.tokens > 0 and usage.cost_usd is None


def _require_criterion(config: MetricConfig, kind: type[Any]) -> Any:
    if not isinstance(config.criterion, kind):
        raise MetricError(f"{config.place}: {config.evaluator} takes a {kind.__name__}, not {config.criterion!r}")
    return config.criterion


def _make_builder(metric: type[Any], criterion: type[Any]) -> MetricBuilder:
    return lambda config: metric(
        name=config.name, criterion=_require_criterion(config, criterion), threshold=config.threshold
    )


def _build_limit(predicate: Literal["max_duration_s", "max_cost_usd"], config: MetricConfig) -> Metric:
    limit: Limit = _require_criterion(config, Limit)
    return LimitMetric(name=config.name, predicate=predicate, limit=limit.value, threshold=config.threshold)


_FINAL_RESPONSE = _make_builder(FinalResponseMetric, FinalResponseCriterion)
_ROUGE = _make_builder(RougeMetric, RougeCriterion)
_TRAJECTORY = _make_builder(TrajectoryMetric, TrajectoryCriterion)
_BUILDERS: Mapping[str, MetricBuilder] = {
    "final_response_avg_score": _FINAL_RESPONSE,
    "exact_match": _FINAL_RESPONSE,
    "contains": _FINAL_RESPONSE,
    "regex": _FINAL_RESPONSE,
    "length": _FINAL_RESPONSE,
    "json_match": _FINAL_RESPONSE,
    "response_match_score": _ROUGE,
    "rouge": _ROUGE,
    "numeric": _make_builder(NumericMetric, NumericCriterion),
    "tool_trajectory_avg_score": _TRAJECTORY,
    "tool_trajectory": _TRAJECTORY,
    "latency": partial(_build_limit, "max_duration_s"),
    "cost": partial(_build_limit, "max_cost_usd"),
}
