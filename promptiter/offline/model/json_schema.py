"""JSON that fits a JSON schema, filled by the simulated model from what it knows of its task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from promptiter.offline.model.answers import Draft
from promptiter.offline.model.task import words
from promptiter.offline.model.values import DATE, ValueStyle, plain_text
from traces.model import Json

MAX_DEPTH = 8
"""How deep optional parts of a schema are filled; schemas may refer to themselves."""


class SchemaWriter:
    """Fills one schema for one draft: fields by name, enumerations from the task's words, texts from the answer."""

    def __init__(self, schema: Mapping[str, Json], draft: Draft) -> None:
        self._root = schema
        self._draft = draft
        self._seen = f"{draft.task.topic} {' '.join(map(plain_text, draft.task.fields.values()))}".lower()

    def value(self) -> Json:
        return self._fill("answer", self._root, depth=0)

    def _fill(self, name: str, schema: Mapping[str, Json], *, depth: int) -> Json:
        schema = self._resolved(schema, name, depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return self._choice(schema["enum"])
        kind = _kind_of(schema)
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(name, schema, depth)
        if kind in ("integer", "number"):
            return self._number(name, schema, whole=kind == "integer")
        if kind == "boolean":
            given = self._given(name)
            return given if isinstance(given, bool) else self._draft.finding.kind in ("fact", "sum", "label")
        return None if kind == "null" else self._string(name, schema)

    def _resolved(self, schema: Mapping[str, Json], name: str, depth: int) -> Mapping[str, Json]:
        """The schema itself behind references and alternatives; of these, the first that is not null."""
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                target: Json = self._root
                for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
                    target = target[part.replace("~1", "/").replace("~0", "~")] if part else target
                schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            elif schema.get("allOf"):
                merged: dict[str, Json] = {key: value for key, value in schema.items() if key != "allOf"}
                for part in schema["allOf"]:
                    merged |= self._resolved(part, name, depth)
                schema = merged
            elif schema.get("anyOf") or schema.get("oneOf"):
                options = schema.get("anyOf") or schema["oneOf"]
                empty = [option for option in options if option.get("type") == "null"]
                filled = [option for option in options if option.get("type") != "null"]
                schema = empty[0] if empty and (depth >= MAX_DEPTH or not filled) else filled[0]
            else:
                break
        return schema

    def _object(self, schema: Mapping[str, Json], depth: int) -> dict[str, Json]:
        required = set(schema.get("required", ()))
        return {
            name: self._fill(name, part, depth=depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in required or depth < MAX_DEPTH
        }

    def _array(self, name: str, schema: Mapping[str, Json], depth: int) -> list[Json]:
        item = self._resolved(schema.get("items") or {}, name, depth)
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", 1_000))
        given = self._given(name)
        if (
            isinstance(given, list)
            and least <= len(given) <= most
            and _kind_of(item) == "string"
            and "enum" not in item
        ):
            return [plain_text(value) for value in given]
        count = min(max(least, 1 if depth < MAX_DEPTH else 0), most)
        if item.get("enum") and schema.get("uniqueItems"):
            return list(item["enum"])[:count]
        filled = [self._fill(name, item, depth=depth + 1) for _ in range(count)]
        for key, options in self._one_each(item, name, depth, count):
            for each, option in zip(filled, options, strict=True):
                each[key] = option
        return filled

    def _one_each(self, item: Mapping[str, Json], name: str, depth: int, count: int) -> list[tuple[str, list[Json]]]:
        """The fields of a list's items that name things of which there are as many as items: each is meant once."""
        parts = {key: self._resolved(part, name, depth) for key, part in item.get("properties", {}).items()}
        return [(key, part["enum"]) for key, part in parts.items() if count > 1 and len(part.get("enum", ())) == count]

    def _choice(self, options: list[Json]) -> Json:
        answer = self._draft.finding.value.lower()
        for option in options:
            if str(option).lower() == answer:
                return option
        named = (
            option for option in options if re.search(rf"(?<!\w){re.escape(str(option).lower())}(?!\w)", self._seen)
        )
        return next(named, options[0])

    def _number(self, name: str, schema: Mapping[str, Json], *, whole: bool) -> int | float:
        number = _as_number(self._given(name))
        if number is None:
            number = _as_number(self._draft.finding.value)
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is None and "exclusiveMinimum" in schema:
            low = schema["exclusiveMinimum"] + (1 if whole else 1e-6)
        if high is None and "exclusiveMaximum" in schema:
            high = schema["exclusiveMaximum"] - (1 if whole else 1e-6)
        number = 0.0 if number is None else number
        number = number if low is None else max(number, low)
        number = number if high is None else min(number, high)
        return round(number) if whole else number

    def _string(self, name: str, schema: Mapping[str, Json]) -> str:
        given = self._given(name)
        draft = self._draft
        if schema.get("format") in ("date", "date-time"):
            found = re.search(DATE, plain_text(given)) or re.search(DATE, self._seen)
            day = ValueStyle(dates="iso").rewrite_dates(found[0]) if found else "2000-01-01"
            return day if schema["format"] == "date" else f"{day}T00:00:00Z"
        if given is not None:
            text = draft.style.text(name, given)
        elif set(words(name)) & {"source", "citation", "reference"} and draft.source:
            text = draft.source
        elif set(words(name)) & {"reason", "reasoning", "explanation", "step", "thought"}:
            text = draft.finding.steps or draft.finding.sentence or f"{draft.phrases.steps}."
        else:
            text = draft.sentence
        text = text.ljust(int(schema.get("minLength", 0)), ".")
        return text[: int(schema["maxLength"])] if "maxLength" in schema else text

    def _given(self, name: str) -> Json:
        names = self._draft.task.find(name)
        return self._draft.task.all_fields[names[0]] if names else None


def _kind_of(schema: Mapping[str, Json]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((option for option in kind if option != "null"), "null")
    if kind is None:
        return "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def _as_number(value: Json) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    found = re.search(r"-?\d+(?:\.\d+)?", value.replace(",", "")) if isinstance(value, str) else None
    return float(found[0]) if found else None
