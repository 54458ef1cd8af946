"""Agents that are a function from a query to an answer, and read their prompts from the sources of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.in_place.saved_baseline import STATE_FOLDER
from promptiter.config.sections import SourceEntry
from promptiter.evaluation.metrics.eval_config import EvalConfig
from promptiter.sources.place import open_place

TRACE_METRICS = ("tool_trajectory_avg_score", "llm_rubric_knowledge_recall")
"""Metrics that look at tool calls, which such an agent does not record."""


def wrap_prompt_function(
    function: Callable[[str], Any], sources: Mapping[str, SourceEntry], *, folder: Path
) -> InPlaceAgent:
    """An agent that runs each candidate in place: it is written into the sources, which are restored at the end."""
    opened = {name: open_place(entry.place, folder=folder, encoding=entry.encoding) for name, entry in sources.items()}
    return InPlaceAgent(function, opened, state_folder=folder / STATE_FOLDER)


def find_trace_metrics(metrics: EvalConfig) -> Iterator[str]:
    """Find metrics that need tool calls, for an agent that is a function."""
    for each in metrics.metrics:
        if each.evaluator in TRACE_METRICS:
            yield (
                f"{each.place}: {each.evaluator} looks at tool calls, and an agent that is a function records none; "
                "use a metric of the response, such as final_response_avg_score or llm_rubric_response"
            )
