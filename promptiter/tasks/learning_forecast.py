"""What learning from traces will cost, before anything is spent: calls of the stages, from the length of the traces."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from promptiter.backprop.step_text import snapshot_text
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.costs import NO_COST, Cost, Range
from promptiter.forecast.unit_costs import STAGE_PROMPT_TOKENS, guess_call
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import estimate_tokens
from promptiter.structure import TEXT_TYPES
from promptiter.tasks.learning import FailedRuns
from traces import ExecutionTrace

RUNS_PER_CALL = 8
"""Short traces share a call, about this many."""


def forecast_learning(found: FailedRuns, stages: Mapping[str, Any], gateway: Gateway) -> Cost:
    """The cost of blaming the sampled failures and of writing patches. Stages without a model cost nothing."""
    traces = [found.runs[case_id].trace for case_id in sorted(found.sample)]
    if not traces:
        return NO_COST
    count = len(traces)
    tokens = sum(map(_count_tokens, traces)) / count
    steps = sum(len(trace.steps) for trace in traces) / count
    texts = sum(surface.type in TEXT_TYPES for surface in found.structure.surfaces)
    blamed = Range(1, min(2, texts), texts)
    total = NO_COST
    if (model := _find_model(stages.get("backwarder"))) is not None:
        prompt = STAGE_PROMPT_TOKENS + tokens
        calls = Range(ceil(count / RUNS_PER_CALL), count, count * max(1.0, steps))
        total += guess_call(gateway, model, prompt).times(calls)
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
