"""A JSON schema as an example of what it asks for, which models read more easily than the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping

from traces.model import Json

MOST_CHOICES = 8
"""Choices of a value that an example names."""
DEEPEST = 8
"""Schemas inside schemas that an example follows; a schema may refer to itself."""


def render_example(schema: Mapping[str, Json]) -> str:
    """Render an answer that has the shape of a schema, such as `{"reason": "...", "edits": [{"find": "..."}]}`."""
    return json.dumps(_build_example(schema, schema, DEEPEST), ensure_ascii=False)


def _build_example(schema: Json, root: Mapping[str, Json], depth: int) -> Json:
    if not isinstance(schema, Mapping) or depth == 0:
        return "..."
    if isinstance(reference := schema.get("$ref"), str):
        return _build_example(_resolve(reference, root), root, depth - 1)
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("enum"):
        return _name_choices(choices)
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return _build_example(schema[several][0], root, depth - 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "object" or "properties" in schema:
        parts = schema.get("properties", {})
        return {name: _build_example(part, root, depth - 1) for name, part in parts.items()}
    if kind == "array":
        return [_build_example(schema.get("items"), root, depth - 1)]
    plain: Mapping[Json, Json] = {"integer": 1, "number": 0.5, "boolean": True, "null": None}
    return plain.get(kind, "...")


def _name_choices(choices: list[Json]) -> Json:
    """The only choice, or all of them in one text."""
    if len(choices) == 1 or not all(isinstance(each, str) for each in choices):
        return choices[0]
    more = ["..."] if len(choices) > MOST_CHOICES else []
    return " or ".join([*choices[:MOST_CHOICES], *more])


def _resolve(reference: str, root: Mapping[str, Json]) -> Json:
    found: Json = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
