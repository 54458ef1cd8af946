"""Metrics that look at tool calls, which an agent that is only a function from query to answer does not have."""

from __future__ import annotations

from collections.abc import Iterator

from promptiter.evaluation.metrics.eval_config import EvalConfig

TRACE_METRICS = ("tool_trajectory_avg_score", "llm_rubric_knowledge_recall")


def find_trace_metrics(metrics: EvalConfig) -> Iterator[str]:
    """Find metrics that need tool calls, for an agent that is a function."""
    for each in metrics.metrics:
        if each.evaluator in TRACE_METRICS:
            yield (
                f"{each.place}: {each.evaluator} looks at tool calls, and an agent that is a function has none; "
                "use a metric of the response, such as final_response_avg_score or llm_rubric_response"
            )
