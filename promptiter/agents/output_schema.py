"""Structured output of a model node: its JSON schema, the descriptions of its fields, and checks of answers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from promptiter.errors import SetupError
from promptiter.json_schemas import check_schema
from promptiter.patterns import find_violation
from promptiter.wording import shorten
from traces.model import Json

if TYPE_CHECKING:
    from pydantic import BaseModel, TypeAdapter

OutputSchema: TypeAlias = "Mapping[str, Json] | type[BaseModel]"
"""A JSON schema, or a pydantic model that has one."""


def load_schema(schema: OutputSchema, *, node_name: str) -> dict[str, Json]:
    """The JSON schema with its references replaced by what they refer to. Raises SetupError if it is not valid."""
    from jsonschema.exceptions import SchemaError

    if not isinstance(schema, Mapping) and not hasattr(schema, "model_json_schema"):
        raise SetupError(
            f"node {node_name!r}: schema is {shorten(schema)}; give a JSON schema as a dict, or a pydantic model"
        )
    root = dict(schema) if isinstance(schema, Mapping) else schema.model_json_schema()
    try:
        check_schema(root)
    except SchemaError as error:
        raise SetupError(f"the schema of node {node_name!r} is not a JSON schema: {error.message}") from error
    inlined: dict[str, Json] = _inline(root, root, frozenset())
    return inlined


def list_descriptions(schema: Mapping[str, Json]) -> dict[str, str]:
    """The description of each field by its path (`order.city`), empty if it has none."""
    found: dict[str, str] = {}
    for path, part in _walk(schema, ""):
        found[path] = found.get(path) or str(part.get("description", ""))
    return found


def set_descriptions(schema: Mapping[str, Json], descriptions: Mapping[str, str]) -> dict[str, Json]:
    """The schema with other descriptions of its fields."""
    changed: dict[str, Json] = copy.deepcopy(dict(schema))
    for path, part in _walk(changed, ""):
        part.pop("description", None)
        if descriptions.get(path):
            part["description"] = descriptions[path]
    return changed


def build_validator(schema: Mapping[str, Json]) -> TypeAdapter[Json]:
    """The validator of an answer that must fit the schema."""
    from pydantic import AfterValidator, TypeAdapter, WithJsonSchema

    def check(value: Json) -> Json:
        if (found := find_violation(schema, value)) is not None:
            raise ValueError(found.message)
        return value

    return TypeAdapter(Annotated[Any, AfterValidator(check), WithJsonSchema(dict(schema))])


def _walk(schema: Mapping[str, Json], path: str) -> Iterator[tuple[str, dict[str, Json]]]:
    """The schemas of all fields, with their paths. The items of an array have the path of the array."""
    for name, part in schema.get("properties", {}).items():
        if isinstance(part, dict):
            yield f"{path}{name}", part
            yield from _walk(part, f"{path}{name}.")
    below = [schema.get("items"), *(each for key in ("anyOf", "oneOf", "allOf") for each in schema.get(key, ()))]
    for part in below:
        if isinstance(part, dict):
            yield from _walk(part, path)


def _inline(part: Json, root: Mapping[str, Json], inside: frozenset[str]) -> Json:
    """A part of a schema without references, except where the schema contains itself."""
    if isinstance(part, list):
        return [_inline(each, root, inside) for each in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in inside:
        found: Json = root
        for key in reference.removeprefix("#/").split("/"):
            found = found[key.replace("~1", "/").replace("~0", "~")]
        others = {key: value for key, value in part.items() if key != "$ref"}
        return _inline({**found, **others}, root, inside | {reference})
    inlined = {key: _inline(value, root, inside) for key, value in part.items() if part is not root or key != "$defs"}
    if part is root and "$defs" in part and '"$ref"' in _dump(inlined):
        inlined["$defs"] = part["$defs"]
    return inlined


def _dump(value: Json) -> str:
    import orjson

    return orjson.dumps(value).decode()
