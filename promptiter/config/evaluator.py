"""Builds how a configuration's cases are run and scored: gateway, executor and evaluator with its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from promptiter.config.loading import build_evaluator
from promptiter.config.models import build_budget, build_gateway
from promptiter.config.parts import build_part
from promptiter.config.problems import Problems
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import Executor
from promptiter.evaluation.metrics.eval_config import EvalConfig
from promptiter.evaluation.metrics.metric_config import load_eval_config, parse_eval_config
from promptiter.evaluation.penalties import Penalties
from promptiter.llm.cache.cache import open_cache
from promptiter.llm.gateway import Gateway
from promptiter.stages.roles import EXECUTOR

TRACE_METRICS = ("tool_trajectory_avg_score", "llm_rubric_knowledge_recall")
"""Metrics that look at tool calls."""
_NO_METRICS = EvalConfig(metrics=())


def open_gateway(problems: Problems, environ: Mapping[str, str], *, base: Gateway | None = None) -> Gateway:
    """The gateway of a configuration, with the cache that it names. `base` has its models and its cache already."""
    config = problems.parsed.config
    if base is not None:
        return base.for_configuration(budget=build_budget(config), seed=config.seed)
    where = config.cache
    shared = None if where == "memory" else problems.attempt(lambda: open_cache(where), place="cache")
    return build_gateway(config, shared, environ=environ)


def build_configured_metrics(
    problems: Problems, gateway: Gateway, environ: Mapping[str, str], *, is_black_box: bool
) -> Evaluator | None:
    """The evaluator of a configuration; None if something is wrong with it.

    A black box has no tool calls that a metric could look at.
    """
    config = problems.parsed.config
    how, executor, metrics = config.evaluation, _build_executor(problems), _NO_METRICS
    if config.scorer is None:
        if not problems.require("metrics", wanted="name a metrics file, or list metrics here"):
            return None
        place = "metrics" if isinstance(config.metrics, Path) else ""
        metrics = problems.attempt(partial(_load_metrics, problems, environ), place=place) or _NO_METRICS
        if not metrics.metrics:
            return None
        if is_black_box:
            problems.found.extend(_find_trace_metrics(metrics))
    options = EvaluationOptions(
        repeats=how.repeats or metrics.num_runs,
        concurrency=how.concurrency,
        case_timeout_s=how.case_timeout_s,
        max_errored_fraction=how.max_errored_fraction,
        seed=config.seed,
    )
    evaluator = problems.attempt(
        lambda: build_evaluator(metrics, gateway, options, judge=config.judge, executor=executor), place="metrics"
    )
    if evaluator is None:
        return None
    penalties = Penalties(**config.penalties.model_dump())
    if penalties and config.objective != "weighted_loss":
        problems.add(f"penalties: the objective is {config.objective}, which has none; set objective: weighted_loss")
    evaluator = evaluator.with_penalties(penalties)
    weighed = problems.attempt(lambda: evaluator.with_weights(config.weights), place="weights")
    return weighed or evaluator  # without the weights if they are wrong, so that other checks can be made


def _build_executor(problems: Problems) -> Executor | None:
    config = problems.parsed.config
    if config.executor is None:
        return None
    return problems.attempt(
        partial(
            build_part,
            config.executor,
            EXECUTOR,
            place="executor",
            supplied={"concurrency": config.evaluation.concurrency},
            supplied_by={"concurrency": "evaluation.concurrency"},
        )
    )


def _find_trace_metrics(metrics: EvalConfig) -> Iterator[str]:
    """Find metrics that an agent that is a function cannot have."""
    for each in metrics.metrics:
        if each.evaluator in TRACE_METRICS:
            yield (
                f"{each.place}: {each.evaluator} looks at tool calls, and an agent that is a function has none; "
                "use a metric of the response, such as final_response_avg_score or llm_rubric_response"
            )


def _load_metrics(problems: Problems, environ: Mapping[str, str]) -> EvalConfig:
    given = problems.parsed.config.metrics
    if isinstance(given, Path):
        return load_eval_config(given, environ=environ)
    return parse_eval_config(given, source="metrics", environ=environ)
