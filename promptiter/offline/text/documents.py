"""JSON documents in texts."""

from __future__ import annotations

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from traces.model import Json


def read_document(text: str) -> dict[str, Json] | list[Json] | None:
    """The JSON object or list that a text is, also inside a code fence; None if it is neither."""
    try:
        value = parse_json(text)
    except NotJsonError:
        return None
    return value if isinstance(value, dict | list) else None
