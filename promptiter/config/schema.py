"""The JSON Schema of promptiter.yaml, with which editors complete and check the file.

It is generated from the models of the configuration, and shipped as promptiter.schema.json, which `promptiter init`
writes beside promptiter.yaml. `make schema` generates it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import orjson
from pydantic import BaseModel

from promptiter.config.descriptions import read_descriptions
from promptiter.config.fields import Section
from promptiter.config.file import WITH_NULLS, RunConfig
from promptiter.config.model_sections import Models
from promptiter.evaluation.metrics.metric_files import MetricEntry, MetricOptions, MetricsFile, UserSimulatorEntry
from promptiter.registry import DEFAULT_MODEL, EXECUTORS, MODELS, SEARCHES
from promptiter.user_files import list_spellings
from traces.model import Json

FILE_NAME = "promptiter.schema.json"


def read_schema() -> bytes:
    """The schema as it was shipped."""
    return files(__package__).joinpath(FILE_NAME).read_bytes()


def build_schema() -> bytes:
    """Generate the schema. Every key has the description that its field has."""
    schema = RunConfig.model_json_schema()
    definitions = schema["$defs"]
    definitions[Models.__name__]["properties"] = {DEFAULT_MODEL: MODELS.get(DEFAULT_MODEL).Settings.model_json_schema()}
    for section in _list_sections(Section):
        found = schema if section is RunConfig else definitions.get(section.__name__, {})
        for name, text in read_descriptions(section).items():
            if name in found.get("properties", {}):
                found["properties"][name]["description"] = text
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "promptiter.yaml",
        **{key: value for key, value in schema.items() if key != "title"},
    }
    whole = _allow_missing(whole)
    keys = whole["properties"]
    keys |= {key: _allow_null(schema["properties"][key]) for key in WITH_NULLS}
    keys["metrics"]["anyOf"] = [*_METRICS, _NULL]
    whole["$defs"] |= _describe_metrics()
    for key, registry in (("search", SEARCHES), ("executor", EXECUTORS)):
        keys[key]["anyOf"] = _offer_names(keys[key]["anyOf"], registry.built_in_names)
    return orjson.dumps(_tidy(whole), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _describe_metrics() -> dict[str, Json]:
    """The definitions of a metric file, whose keys may be spelled in several ways."""
    whole = MetricsFile.model_json_schema()
    found = {**whole.pop("$defs"), MetricsFile.__name__: whole}
    sections = (MetricsFile, MetricEntry, MetricOptions, UserSimulatorEntry)
    return {each.__name__: _list_all_spellings(found[each.__name__], each) for each in sections}


def _list_all_spellings(schema: dict[str, Json], section: type[BaseModel]) -> dict[str, Json]:
    """The schema with a null for keys that may be missing. Editors only offer the first spelling of a key."""
    texts = read_descriptions(section)
    needed = schema.pop("required", [])
    keys: dict[str, Json] = {}
    others: dict[str, Json] = {}
    present: list[Json] = []
    for name, (first, *rest) in list_spellings(section).items():
        rules = schema["properties"][first]
        rules = rules if first in needed else _allow_null(rules)
        keys[first] = {**rules, "description": texts[name]}
        others |= {f"^{spelling}$": rules for spelling in rest}
        if first in needed:
            present.append({"oneOf": [{"required": [spelling]} for spelling in (first, *rest)]})
    known = {**schema, "properties": keys, "patternProperties": others}
    return {**known, "allOf": present} if present else known


_METRICS: list[Json] = [
    {"type": "string", "format": "path"},
    {"type": "array", "items": {"$ref": f"#/$defs/{MetricEntry.__name__}"}},
    {"$ref": f"#/$defs/{MetricsFile.__name__}"},
    {
        "type": "object",
        "required": ["evaluate"],
        "properties": {"evaluate": {"$ref": f"#/$defs/{MetricsFile.__name__}"}},
    },
]


def _offer_names(choices: list[Json], names: Sequence[str]) -> list[Json]:
    """The choices of a part with names for editors to offer, of which none has to be chosen."""
    offered = {"anyOf": [{"enum": list(names)}, {"type": "string"}]}
    mapping = {"properties": {"name": offered}}
    return [{"enum": list(names)}, *({**each, **mapping} if "$ref" in each else each for each in choices)]


def _allow_missing(value: Json) -> Json:
    """The schema with null, which counts as missing, for every key that may be missing."""
    if isinstance(value, list):
        return [_allow_missing(each) for each in value]
    if not isinstance(value, dict):
        return value
    schema = {key: _allow_missing(each) for key, each in value.items()}
    if isinstance(table := schema.get("properties"), dict):
        needed = schema.get("required", ())
        schema["properties"] = {key: each if key in needed else _allow_null(each) for key, each in table.items()}
    if isinstance(others := schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _allow_null(others)
    return schema


def _allow_null(schema: dict[str, Json]) -> dict[str, Json]:
    rules = {key: value for key, value in schema.items() if key not in ("title", "description", "default")}
    notes = {key: value for key, value in schema.items() if key not in rules}
    choices = rules.get("anyOf", [rules])
    return schema if _NULL in choices else {"anyOf": [*choices, _NULL], **notes}


_NULL: dict[str, Json] = {"type": "null"}


def _list_sections(section: type[BaseModel]) -> list[type[BaseModel]]:
    below = section.__subclasses__()
    return [*below, *(each for one in below for each in _list_sections(one))]


def _tidy(value: Json, *, is_table: bool = False) -> Json:
    """The schema without what pydantic adds for programs: titles of properties, and defaults of whole sections."""
    if isinstance(value, list):
        return [_tidy(each) for each in value]
    if not isinstance(value, dict):
        return value
    dropped = () if is_table else [key for key in ("title", "default") if _is_noise(key, value)]
    return {
        key: _tidy(each, is_table=key in ("properties", "$defs")) for key, each in value.items() if key not in dropped
    }


def _is_noise(key: str, schema: dict[str, Json]) -> bool:
    if key == "title":
        return "$schema" not in schema
    return schema.get(key) in (None, [], "") or isinstance(schema.get(key), dict)


if __name__ == "__main__":
    (Path(__file__).parent / FILE_NAME).write_bytes(build_schema())
