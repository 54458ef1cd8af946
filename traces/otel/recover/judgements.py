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
_LISTS = {
    "annotations.": "annotation",
    "evaluations.": "evaluation",
    "trace.annotations.": "annotation",
    "trace.evaluations.": "evaluation",
}
_FIRST_KEYS = frozenset(f"{prefix}0.{each}.{name}" for prefix, each in _LISTS.items() for name in _FIELDS)
"""A span without events judges only if it has one of these."""


def list_judgements(nodes: Iterable[SpanNode]) -> list[Json]:
    """The judgements of a run, in the order of its spans."""
    found = (each for node in nodes if _may_judge(node.span) for each in _read_judgements(node.span))
    return [each for each in found if len(each) > ("name" in each)]


def _may_judge(span: Span) -> bool:
    return bool(span.events) or not _FIRST_KEYS.isdisjoint(span.attributes)


def _read_judgements(span: Span) -> Iterator[dict[str, Json]]:
    for event in span.events:
        if event.name == "gen_ai.evaluation.result":
            yield {name: event.attributes[key] for name, key in _FIELDS.items() if key in event.attributes}
    for prefix, item in _LISTS.items():
        if any(key.startswith(prefix) for key in span.attributes):
            for each in unflatten(span.attributes, prefix):
                if isinstance(inner := each.get(item), Mapping):
                    yield {name: inner[name] for name in _FIELDS if inner.get(name) is not None}
