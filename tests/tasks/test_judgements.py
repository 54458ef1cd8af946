"""What spans say about a run themselves is feedback, too."""

from __future__ import annotations

from typing import Any

import orjson

from promptiter.tasks.feedback import Feedback, list_trace_ids, read_judgements
from traces import ExecutionTrace, read_otel


def read_span(*, events: Any = (), **attributes: Any) -> ExecutionTrace:
    span = {
        "traceId": "a" * 32,
        "spanId": "b" * 16,
        "name": "chat m",
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "2",
        "attributes": write({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", **attributes}),
        "events": [{"name": name, "attributes": write(values)} for name, values in events],
    }
    request = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
    [trace] = read_otel(orjson.dumps(request))
    return trace


def write(values: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", float: "doubleValue"}
    return [{"key": key, "value": {kinds[type(value)]: value}} for key, value in values.items()]


def test_an_evaluation_event_is_feedback() -> None:
    said = {
        "gen_ai.evaluation.name": "tone",
        "gen_ai.evaluation.score.value": 0.2,
        "gen_ai.evaluation.explanation": "too rude",
    }
    trace = read_span(events=[("gen_ai.evaluation.result", said)])
    assert read_judgements(trace) == Feedback(trace_id="a" * 32, is_good=False, comment="tone: too rude")


def test_an_annotation_is_feedback_and_its_label_counts_more_than_its_score() -> None:
    named = {"annotation.name": "helpfulness", "annotation.label": "helpful", "annotation.score": 0.1}
    trace = read_span(**{f"annotations.0.{name}": value for name, value in named.items()})
    said = read_judgements(trace)
    assert said is not None
    assert said.is_good is True


def test_a_run_without_a_judgement_has_no_feedback() -> None:
    trace = read_span()
    assert read_judgements(trace) is None
    assert list_trace_ids(trace) == ["a" * 32]
