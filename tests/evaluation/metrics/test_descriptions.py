"""What metrics say that they look at, for the models that explain failures."""

from __future__ import annotations

from functools import partial

import pytest

from promptiter.agents.base import AgentRun
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric import describe_metric
from promptiter.llm.gateway import Gateway
from traces.model import Json

RUBRICS = {
    "rubrics": [{"id": "1", "content": {"text": "Is it polite?"}}, {"id": "2", "content": {"text": "Is it short?"}}]
}


@pytest.mark.parametrize(
    ("metric", "described"),
    [
        ({"metric_name": "exact_match", "threshold": 1}, "the whole text"),
        ({"metric_name": "contains", "threshold": 1}, "text that contains the expected one"),
        (
            {
                "metric_name": "json_match",
                "threshold": 0.8,
                "criterion": {"only_tree": {"a": True, "b": {"*": {"c": True}}}},
            },
            "JSON, only a, b.*.c; passes at 0.8",
        ),
        ({"metric_name": "json_match", "threshold": 1, "criterion": {"ignore_tree": {"a": True}}}, "JSON, without a"),
        ({"metric_name": "rouge", "threshold": 0.5}, "words shared with the expected answer (rouge1); passes at 0.5"),
        ({"metric_name": "numeric", "threshold": 1}, "the last number in the text"),
        ({"metric_name": "tool_trajectory", "threshold": 1}, "the tool calls, in any order"),
    ],
)
def test_metrics_of_files_say_what_they_compare(metric: dict[str, Json], described: str) -> None:
    [built] = build_metrics([metric])
    assert describe_metric(built) == described


def score(case: EvalCase, run: AgentRun, *, words: int) -> float:
    """Whether the answer has few
    words.

    Internal remarks stay out.
    """
    return float(case.id == run.output and words > 0)


def test_a_function_says_so_in_its_docstring_and_one_without_says_nothing() -> None:
    assert (
        describe_metric(FunctionMetric(name="m", function=partial(score, words=3)))
        == "Whether the answer has few words."
    )
    assert describe_metric(FunctionMetric(name="m", function=lambda _case, _run: 1.0)) == ""


def test_a_judge_says_what_it_asks() -> None:
    entry = {"metric_name": "llm_rubric_response", "threshold": 1, "criterion": {"llm_judge": RUBRICS}}
    [judge] = build_metrics([entry], gateway=Gateway(), judge=lambda _: "yes")
    assert describe_metric(judge) == "a judge asks: Is it polite? / Is it short?"
