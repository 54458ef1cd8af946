"""Graders: metrics in Python that agent.yaml names, `type: code` with `grader: module:function`.

A grader takes one GraderContext per turn, or, as any metric here, the case and the run. It returns a number, a boolean,
a pair of value and reason, or an object with `score` and `reason`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from promptiter.agents.base import AgentRun
from promptiter.concurrency import call_any
from promptiter.errors import MetricError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.metrics.criteria import Options
from promptiter.evaluation.metrics.eval_config import MetricConfig
from promptiter.evaluation.metrics.metric import Metric, describe_failure, leave_unscored, mean, report_exception
from promptiter.evaluation.score import Score
from promptiter.references import load_reference
from promptiter.signatures import find_misfit, read_docstring
from promptiter.wording import shorten
from traces.model import Json, ToolCall

BUILDER = f"{__name__}:build_grader"
"""The metric of a grader, as `evaluator_name` in a metric file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvocation:
    """A tool call of a turn."""

    name: str
    args: Mapping[str, Json] = field(default_factory=dict)
    result: Json = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderContext:
    """What a grader sees of one turn. `turn_config` is what the case file has under this key."""

    turn_input: str
    agent_response: str
    ground_truth: str | None = None
    tool_invocations: tuple[ToolInvocation, ...] = ()
    retrieval_context: tuple[str, ...] | None = None
    turn_index: int = 0
    test_case_name: str | None = None
    turn_config: Mapping[str, Any] = field(default_factory=dict)


def build_grader(config: MetricConfig) -> Metric:
    """The metric of a grader, which its criterion names."""
    reference = config.criterion.values.get("grader") if isinstance(config.criterion, Options) else None
    function: Any = load_reference(str(reference), what="grader")
    if find_misfit(function, None) is None:
        return GraderMetric(name=config.name, function=function, threshold=config.threshold)
    if problem := find_misfit(function, None, None):
        raise MetricError(f"the grader {reference!r} takes neither a GraderContext nor (case, run): {problem}")
    return FunctionMetric(name=config.name, function=function, threshold=config.threshold)


@dataclass(frozen=True, slots=True, kw_only=True)
class GraderMetric:
    """A function of a GraderContext. The score of a case is the mean over its turns."""

    name: str
    function: Callable[[GraderContext], Any]
    threshold: float = 1.0
    needs_reference: bool = False

    @property
    def description(self) -> str:
        return " ".join(read_docstring(self.function).partition("\n\n")[0].split())

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        if problem := describe_failure(run):
            return leave_unscored(self, problem)
        judged = []
        for number, turn in enumerate(run.by_turn):
            try:
                judged.append(_read_grade(await call_any(self.function, _describe_turn(case, turn, number))))
            except Exception as error:  # noqa: BLE001 - a user's function may raise anything
                return report_exception(self, error)
        reasons = [reason for _, reason in judged]
        return Score(
            metric=self.name,
            value=mean([value for value, _ in judged]),
            threshold=self.threshold,
            reason="; ".join(dict.fromkeys(filter(None, reasons))),
            turn_reasons=tuple(reasons) if len(reasons) > 1 else (),
        )


def _describe_turn(case: EvalCase, run: AgentRun, number: int) -> GraderContext:
    turn, configs = case.find_turn(number), case.metadata.get("turn_config")
    config: Json = configs[number] if isinstance(configs, list) and number < len(configs) else None
    return GraderContext(
        turn_input=case.find_question(number) or "",
        agent_response=run.output,
        ground_truth=None if turn is None else turn.expected,
        tool_invocations=tuple(map(_describe_call, run.tool_calls)),
        turn_index=number,
        test_case_name=case.id,
        turn_config=config if isinstance(config, dict) else {},
    )


def _describe_call(call: ToolCall) -> ToolInvocation:
    return ToolInvocation(
        name=call.name,
        args=call.arguments if isinstance(call.arguments, dict) else {},
        result=call.result,
        error=None if call.error is None else call.error.message,
    )


def _read_grade(answer: Any) -> tuple[float, str]:
    value, reason = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
    if hasattr(value, "score"):
        value, reason = value.score, getattr(value, "reason", "") or ""
    if not isinstance(value, int | float):
        raise MetricError(f"a grader returned {shorten(answer)}; return a number, a bool, or an object with a score")
    return float(value), str(reason)
