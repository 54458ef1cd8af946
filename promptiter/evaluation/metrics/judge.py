"""LLM judges: metrics that ask one or more models for verdicts, once or several times.

If a judge fails, the score is unscored. A spent budget ends the evaluation.

The values that several models give a turn are combined so that the result reaches the threshold exactly if the rule of
the aggregator holds: the lowest value if all must pass, the highest if any must, and the value that more than half of
the models reach if the majority must.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum
from typing import TypeVar

from promptiter.agents.base import AgentRun
from promptiter.agents.runner import Runner
from promptiter.errors import MetricError, ModelError, RunnerError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.metrics.criteria import (
    JUDGE_METRICS,
    JudgeConfig,
    JudgeKind,
    ModelsAggregator,
    Rubric,
)
from promptiter.evaluation.metrics.eval_config import MetricConfig
from promptiter.evaluation.metrics.judge_model import Judge, build_judges, choose_judge
from promptiter.evaluation.metrics.judge_prompts import (
    Exchange,
    mentions_reference,
    render_final_response,
    render_rubrics,
    render_tool_output,
    truncate_middle,
)
from promptiter.evaluation.metrics.judge_replies import VALID_SHAPE, RubricVerdict, make_rubric_shape
from promptiter.evaluation.metrics.metric import (
    TurnScore,
    describe_failure,
    leave_unscored,
    mean,
    pair_turns,
    score_by_turn,
    summarize_findings,
)
from promptiter.evaluation.score import JUDGE_FAILED, Finding, Score
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.outages import is_outage
from traces import digest

T = TypeVar("T")

SHOWN_REASON = 300
"""A finding keeps at most this many characters of a judge's reason."""

_VALID = Rubric(id="valid", text="")
_JUDGE_ERRORS = (ModelError, RunnerError, MetricError)
_NEEDS_REFERENCE: frozenset[JudgeKind] = frozenset(("final_response", "reference_critic"))


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeMetric:
    """The mean verdict over rubrics, or the verdict whether a response is valid, averaged over turns."""

    name: str
    kind: JudgeKind
    config: JudgeConfig
    judges: tuple[Judge, ...]
    gateway: Gateway
    threshold: float = 1.0
    is_reversed: bool = False
    """Whether rubrics are listed from the last to the first, and the reference comes after the response."""

    @property
    def needs_reference(self) -> bool:
        return self.kind in _NEEDS_REFERENCE or (self.config.show_reference is True and self.kind != "knowledge_recall")

    @property
    def shows_reference(self) -> bool:
        """Whether the judge sees the reference of a case that has one."""
        if self.needs_reference or self.kind == "knowledge_recall" or self.config.show_reference is False:
            return self.needs_reference
        return any(map(mentions_reference, self.rubrics))

    @property
    def rubrics(self) -> tuple[Rubric, ...]:
        rubrics = (_VALID,) if self.kind == "final_response" else self.config.rubrics
        return rubrics[::-1] if self.is_reversed else rubrics

    @property
    def description(self) -> str:
        asked = " / ".join(rubric.text for rubric in self.rubrics if rubric.text)
        return f"a judge asks: {asked}" if asked else "a judge compares with the expected answer"

    @property
    def definition(self) -> str:
        """The hash of what makes this judge: its prompt with the rubrics, its models and options, and its threshold."""
        shown = Exchange(question="", response="", reference="" if self.shows_reference else None)
        judges = [[judge.name, judge.model, judge.options, len(judge.repeats), judge.weight] for judge in self.judges]
        config = [self.config.models_aggregator, self.config.knowledge_tool_names, self.threshold]
        return digest([self._render(shown), judges, config])

    def in_other_order(self) -> JudgeMetric | None:
        """The same metric with its rubrics, or reference and response, in the other order; None if nothing has one."""
        has_order = len(self.rubrics) > 1 or self.shows_reference
        return replace(self, is_reversed=not self.is_reversed) if has_order else None

    def with_judge(self, judge: Runner | str) -> JudgeMetric:
        """The same metric with another model, agent or function as the judge, asked once per question."""
        return replace(self, judges=build_judges([choose_judge(judge)], self.gateway, place=f"metric {self.name!r}"))

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
        if problem := describe_failure(run):
            return leave_unscored(self, problem)
        try:
            exchanges = self._collect_exchanges(case, run)
            asked = [partial(self._judge_turn, exchange) for exchange in exchanges.values()]
            judged = await _gather(asked, parallel=self.config.parallel)
        except (ModelError, RunnerError) as error:
            return leave_unscored(self, self._describe_failure(error), is_outage=is_outage(error))
        except MetricError as error:
            return leave_unscored(self, f"case {case.id!r} cannot be judged: {error}")
        answers = iter(judged)
        score = score_by_turn(self, case, run, judge=lambda _turn, _run: next(answers))
        if not score.is_scored:
            return score
        return replace(score, reason=self._write_reason(score, dict(zip(exchanges, judged, strict=True))))

    def _collect_exchanges(self, case: EvalCase, run: AgentRun) -> dict[int, Exchange]:
        """The turns to judge: all but missing ones and those without a reference that this judge needs."""
        earlier = list(case.context)
        exchanges = {}
        for index, (turn, turn_run) in enumerate(pair_turns(case, run)):
            if turn_run is None:
                break
            question = case.find_question(index)
            if question is None and turn_run.trace is not None:
                question = turn_run.trace.steps[0].input.text
            reference = turn.expected if turn is not None and self.shows_reference else None
            if not self.needs_reference or reference is not None:
                exchanges[index] = self._build_exchange(turn_run, question, reference, tuple(earlier))
            earlier += [Message("user", question or ""), Message("assistant", turn_run.output)]
        return exchanges

    def _build_exchange(
        self, run: AgentRun, question: str | None, reference: str | None, earlier: tuple[Message, ...]
    ) -> Exchange:
        if self.kind != "knowledge_recall":
            return Exchange(
                question=question,
                response=run.output,
                reference=reference,
                earlier=earlier,
                is_reference_last=self.is_reversed,
            )
        if run.trace is None:
            raise MetricError("the run has no trace, so its tool calls are unknown; use an agent that records one")
        names = self.config.knowledge_tool_names
        calls = [call for call in run.tool_calls if not names or call.name in names]
        return Exchange(question=question, tool_output=render_tool_output(calls), earlier=earlier)

    async def _judge_turn(self, exchange: Exchange) -> TurnScore:
        if exchange.tool_output == "":
            tools = " or ".join(self.config.knowledge_tool_names) or "any tool"
            return self._build_turn(
                0.0, {rubric.id: f"the agent did not call {tools}" for rubric in self.rubrics}, exchange
            )
        asked = [
            partial(self._ask_verdicts, exchange, judge, repeat) for judge in self.judges for repeat in judge.repeats
        ]
        answers = iter(await _gather(asked, parallel=self.config.parallel))
        by_judge = [[next(answers) for _ in judge.repeats] for judge in self.judges]
        weights = [judge.weight for judge in self.judges]
        value = aggregate(
            self.config.models_aggregator, [self._average_samples(samples) for samples in by_judge], weights
        )
        return self._build_turn(value, self._find_failed_rubrics(value, by_judge), exchange)

    async def _ask_verdicts(self, exchange: Exchange, judge: Judge, repeat: int) -> tuple[RubricVerdict, ...]:
        """Ask for one sample: a verdict on each rubric, in the order of the rubrics."""
        is_valid = self.kind == "final_response"
        shape = VALID_SHAPE if is_valid else make_rubric_shape(tuple(rubric.id for rubric in self.rubrics))
        return await judge.ask_for(shape, self._render(exchange), self.gateway, repeat=repeat, metric=self.name)

    def _render(self, exchange: Exchange) -> tuple[Message, ...]:
        if self.kind == "final_response":
            return render_final_response(exchange)
        return render_rubrics(self.kind, self.rubrics, exchange)

    def _describe_failure(self, error: ModelError | RunnerError) -> str:
        """Names the metric, and judges as the user does: a judge with its own key has another name in the gateway."""
        problem = f"{type(error).__name__}: {error}"
        for judge in self.judges:
            problem = problem.replace(judge.model, judge.name) if judge.model else problem
        return self.gateway.redactor.redact_text(f"{JUDGE_FAILED}{self.name!r} failed: {problem}")

    def _average_samples(self, samples: Sequence[tuple[RubricVerdict, ...]]) -> float:
        """The value of one model: the mean over rubrics and samples, or whether most samples are valid."""
        value = mean([mean([verdict.passed for verdict in verdicts]) for verdicts in zip(*samples, strict=True)])
        return float(value > 0.5) if self.kind == "final_response" else value

    def _find_failed_rubrics(
        self, value: float, by_judge: Sequence[Sequence[tuple[RubricVerdict, ...]]]
    ) -> dict[str, str]:
        """The failed rubrics, each with the first reason given.

        A rubric fails if at most half of the samples pass it. On a turn below the threshold all samples must pass it.
        """
        failed = {}
        for index, rubric in enumerate(self.rubrics):
            given = [[verdicts[index] for verdicts in samples] for samples in by_judge]
            share = mean([mean([verdict.passed for verdict in verdicts]) for verdicts in given])
            reasons = [verdict.reason for verdicts in given for verdict in verdicts if not verdict.passed]
            if reasons and (share <= 0.5 or value < self.threshold):
                failed[rubric.id] = truncate_middle(reasons[0].strip(), SHOWN_REASON)
        return failed

    def _build_turn(self, value: float, failed: Mapping[str, str], exchange: Exchange) -> TurnScore:
        if self.kind == "final_response":
            wrong = Finding(kind="wrong", expected=exchange.reference, actual=exchange.response)
            reasons = tuple(f"invalid: {reason}" for reason in failed.values())
            return TurnScore(value, (wrong,) if failed else (), reasons)
        findings = tuple(
            Finding(kind="violated", predicate=f"rubric:{rubric.id}", expected=rubric.text, actual=failed[rubric.id])
            for rubric in self.rubrics
            if rubric.id in failed
        )
        reasons = tuple(f"rubric {name!r} failed: {reason}" for name, reason in failed.items())
        return TurnScore(value, findings, reasons)

    def _write_reason(self, score: Score, judged: Mapping[int, TurnScore]) -> str:
        """One sentence for people and models: missing and extra turns, then what failed and why."""
        others = [finding for finding in score.findings if finding.predicate == "turn"]
        turns = len(judged) + len(others)
        sentences = [summarize_findings([finding], turns=turns) for finding in others]
        for index, turn in judged.items():
            sentences += (reason + (f" (turn {index})" if turns > 1 else "") for reason in turn.reasons)
        if sentences:
            return "; ".join(sentences)
        count = len(self.rubrics)
        rubrics = "the rubric passed" if count == 1 else f"all {count} rubrics passed"
        passed = "valid" if self.kind == "final_response" else rubrics
        return passed if turns == 1 else f"{passed}, in all {turns} turns"


def aggregate(how: ModelsAggregator, values: Sequence[float], weights: Sequence[float]) -> float:
    """Combine the values of several models. The result reaches a threshold exactly if the rule holds at it."""
    match how:
        case "all_pass":
            return min(values)
        case "any_pass":
            return max(values)
        case "majority_pass":
            return _find_majority_value(values, [1.0] * len(values))
        case "weighted_majority":
            return _find_majority_value(values, weights)
        case "avg":
            return mean(values)
        case "weighted_avg":
            return fsum(value * weight for value, weight in zip(values, weights, strict=True)) / fsum(weights)


def _find_majority_value(values: Sequence[float], weights: Sequence[float]) -> float:
    """The highest value that models with more than half of the weight reach."""
    half = fsum(weights) / 2
    return max(
        reached
        for reached in values
        if fsum(weight for value, weight in zip(values, weights, strict=True) if value >= reached) > half
    )


def build_judge_metric(
    config: MetricConfig, *, gateway: Gateway | None, default: Runner | str | None = None
) -> JudgeMetric:
    """Build one of the JUDGE_METRICS. `default` judges if the configuration names no judge."""
    evaluator, criterion, kind = config.evaluator, config.criterion, JUDGE_METRICS[config.evaluator]
    if not isinstance(criterion, JudgeConfig):
        raise MetricError(f"{config.place}: {evaluator} takes a JudgeConfig, not {criterion!r}")
    if kind == "final_response" and criterion.rubrics:
        raise MetricError(f"{config.place}: {evaluator} takes no rubrics; use llm_rubric_response for them")
    if kind != "final_response" and not criterion.rubrics:
        raise MetricError(f"{config.place}: {evaluator} needs rubrics; list them under llm_judge.rubrics")
    models = criterion.models or ((choose_judge(default),) if default is not None else ())
    if not models:
        raise MetricError(f"{config.place}: {evaluator} has no model; give llm_judge a judge_model")
    if gateway is None:
        raise MetricError(
            f"{config.place}: {evaluator} asks a model; give build_metrics the gateway that answers: gateway=Gateway()"
        )
    return JudgeMetric(
        name=config.name,
        kind=kind,
        config=criterion,
        judges=build_judges(models, gateway, place=config.place),
        gateway=gateway,
        threshold=config.threshold,
    )


async def _gather(asked: Sequence[Callable[[], Awaitable[T]]], *, parallel: bool) -> list[T]:
    """Await all answers, in order. Of several errors, raises the first that is not a judge's, or else the first."""
    if not parallel:
        return [await ask() for ask in asked]
    answers = await asyncio.gather(*(ask() for ask in asked), return_exceptions=True)
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    if errors:
        raise next((error for error in errors if not isinstance(error, _JUDGE_ERRORS)), errors[0])
    return [answer for answer in answers if not isinstance(answer, BaseException)]
