"""The JSON Schemas of the protocol, generated from its messages and shipped with the package.

`python -m promptiter.agents.remote.schemas` generates them again.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema

from promptiter.agents.remote.messages import RunAnswer, RunDocument, StructureAnswer
from traces.model import Json

SCHEMAS: dict[str, type[BaseModel]] = {
    "structure_answer.schema.json": StructureAnswer,
    "run_request.schema.json": RunDocument,
    "run_answer.schema.json": RunAnswer,
}
"""The files of the schemas, and the messages that they describe."""


def read_schema(name: str) -> bytes:
    """A schema as it was shipped."""
    return files(__package__).joinpath(name).read_bytes()


def build_schema(name: str) -> bytes:
    """Generate a schema."""
    schema = SCHEMAS[name].model_json_schema()
    whole = {"$schema": GenerateJsonSchema.schema_dialect, **schema}
    return orjson.dumps(_drop_titles(whole), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _drop_titles(schema: Any, *, is_named: bool = False) -> Json:
    """The schema without the titles that only repeat the name of a field, and with descriptions on one line."""
    if isinstance(schema, list):
        return [_drop_titles(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = schema if is_named else {name: value for name, value in schema.items() if name != "title"}
    if not is_named and isinstance(text := kept.get("description"), str):
        kept = {**kept, "description": " ".join(text.split())}
    return {name: _drop_titles(value, is_named=name in ("properties", "$defs")) for name, value in kept.items()}


if __name__ == "__main__":
    for each in SCHEMAS:
        Path(__file__).with_name(each).write_bytes(build_schema(each))
