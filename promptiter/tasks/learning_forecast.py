"""What learning from traces will cost, before anything is spent: calls of judges and stages, by the length of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

from promptiter.backprop.step_text import snapshot_text
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.unit_costs import STAGE_PROMPT_TOKENS, guess_call
from promptiter.forecast.workload import list_judge_models
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import estimate_tokens
from promptiter.runs.cost_ranges import NO_COST, Cost, Range
from promptiter.structure import TEXT_TYPES, StructureSnapshot
from promptiter.tasks.failed_runs import FailedRuns, RunsToJudge
from traces import ExecutionTrace

RUNS_PER_CALL = 8
"""Short traces share a call, about this many."""


def forecast_judging(selected: RunsToJudge, gateway: Gateway) -> Cost:
    """The cost of judging runs. Metrics without a judge cost nothing, and judges are asked about complete runs only."""
    asked = [each.as_case() for each in selected.runs if each.error is None]
    answers = sum(estimate_tokens(each.run.answer) for each in selected.runs if each.error is None)
    total = NO_COST
    for metric in selected.metrics:
        cases = [case for case in asked if case.turns[-1].expected is not None or not metric.needs_reference]
        for each in list_judge_models([metric], cases) if cases else ():
            tokens = (sum(estimate_tokens(case.turns[-1].user) for case in cases) + answers) / len(cases)
            call = guess_call(gateway, each.model, STAGE_PROMPT_TOKENS + tokens)
            total += call.times(Range.exactly(each.calls * len(cases)))
    return total.round()


def forecast_blame(selected: RunsToJudge, stages: Mapping[str, Any], gateway: Gateway, *, most: int) -> Cost:
    """The cost of blame and patches before it is known how many runs failed: none of them, half of them, or all."""
    runs = selected.runs
    step = max(1, len(runs) // most)
    failed = Range(0, len(runs) / 2, len(runs)).at_most(most)
    return _forecast([each.trace for each in runs[::step]], selected.structure, stages, gateway, failed=failed)


def forecast_learning(found: FailedRuns, stages: Mapping[str, Any], gateway: Gateway) -> Cost:
    """The cost of blaming the sampled failures and of writing patches. Stages without a model cost nothing."""
    traces = [found.runs[case_id].trace for case_id in sorted(found.sample)]
    return _forecast(traces, found.structure, stages, gateway, failed=Range.exactly(len(traces)))


def _forecast(
    traces: Sequence[ExecutionTrace],
    structure: StructureSnapshot,
    stages: Mapping[str, Any],
    gateway: Gateway,
    *,
    failed: Range,
) -> Cost:
    """The cost of blaming `failed` runs of the average length of these traces, and of writing patches."""
    if not traces or not failed.high:
        return NO_COST
    tokens = sum(map(_count_tokens, traces)) / len(traces)
    steps = sum(len(trace.steps) for trace in traces) / len(traces)
    texts = sum(surface.type in TEXT_TYPES for surface in structure.surfaces)
    blamed = Range(min(1, failed.low), min(2, texts), texts)
    total = NO_COST
    if (model := _find_model(stages.get("backwarder"))) is not None:
        calls = Range(ceil(failed.low / RUNS_PER_CALL), failed.typical, failed.high * max(1.0, steps))
        total += guess_call(gateway, model, STAGE_PROMPT_TOKENS + tokens).times(calls)
    for name in ("aggregator", "optimizer"):
        if (model := _find_model(stages.get(name))) is not None:
            total += guess_call(gateway, model, STAGE_PROMPT_TOKENS).times(blamed)
    return total.round()


def _find_model(stage: object) -> str | None:
    """The model that a stage asks; None if it asks none."""
    if stage is None:
        return None
    for part in (stage, getattr(stage, "whole", None), getattr(stage, "walk", None)):
        if isinstance(model := getattr(part, "model", None), str):
            return model
    return UNKNOWN_MODEL


def _count_tokens(trace: ExecutionTrace) -> float:
    texts = (snapshot_text(each) for step in trace.steps for each in (step.input, step.output))
    return sum(map(estimate_tokens, texts))
