"""What spans say about how good a run was: results of evaluations, and annotations of people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from traces.model import Json
from traces.otel.recover.forest import SpanNode
from traces.otel.recover.parts import unflatten
from traces.otel.spans import Span

JUDGEMENTS = "promptiter.judgements"
"""Trace attribute: what was said about the run, each with name, score, label and explanation, as far as given."""

_FIELDS = {
    "name": "gen_ai.evaluation.name",
    "score": "gen_ai.evaluation.score.value",
    "label": "gen_ai.evaluation.score.label",
    "explanation": "gen_ai.evaluation.explanation",
}
_LISTS = ("annotations.", "evaluations.", "trace.annotations.", "trace.evaluations.")


def list_judgements(nodes: Iterable[SpanNode]) -> list[Json]:
    """The judgements of a run, in the order of its spans."""
    found = (each for node in nodes if _may_judge(node.span) for each in _read_judgements(node.span))
    return [each for each in found if len(each) > ("name" in each)]


def _may_judge(span: Span) -> bool:
    keys = " ".join(span.attributes)
    return "annotations." in keys or "evaluations." in keys or bool(span.events)


def _read_judgements(span: Span) -> Iterator[dict[str, Json]]:
    for event in span.events:
        if event.name == "gen_ai.evaluation.result":
            yield {name: event.attributes[key] for name, key in _FIELDS.items() if key in event.attributes}
    for prefix in _LISTS:
        if any(key.startswith(prefix) for key in span.attributes):
            for each in unflatten(span.attributes, prefix):
                inner = next(iter(each.values()), None)
                if isinstance(inner, Mapping):
                    yield {name: inner[name] for name in _FIELDS if inner.get(name) is not None}
