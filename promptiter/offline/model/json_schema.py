"""Structured output of the simulated model: JSON that fits a JSON schema, filled from the task and the answer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from promptiter.offline.model.answers import REASON_KEYS, SOURCE_KEYS, Draft
from promptiter.offline.model.content import choose_label
from promptiter.offline.model.field_descriptions import find_described_field, read_description
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.style import ValueStyle, plain_text
from promptiter.offline.model.task import split_words
from promptiter.offline.text.dates import find_dates, rewrite_dates
from traces.model import Json

MAX_DEPTH = 8
"""How deep optional fields are filled; a schema may refer to itself."""


class SchemaWriter:
    """Fills one schema for one draft: fields by name, enumerations from the task's words, texts from the answer.

    The description of a field says what it holds and how its values are written. It is followed with a `chance`.
    """

    def __init__(
        self, schema: Mapping[str, Json], draft: Draft, *, knowledge: Mapping[str, str], chance: float, rng: Random
    ) -> None:
        self._root = schema
        self._draft = draft
        self._knowledge = knowledge
        self._chance = chance
        self._rng = rng
        self._seen = f"{draft.task.topic} {' '.join(map(plain_text, draft.task.fields.values()))}".lower()

    def write(self) -> Json:
        return self._fill("answer", self._root, depth=0)

    def _fill(self, name: str, schema: Mapping[str, Json], *, depth: int) -> Json:
        description = str(schema.get("description", ""))
        schema = self._resolve(schema, depth)
        if "const" in schema:
            return schema["const"]
        kind = "enum" if schema.get("enum") else _kind_of(schema)
        if kind == "object":
            return self._fill_object(schema, depth)
        field = self._read_field(name, description or str(schema.get("description", "")))
        match kind:
            case "enum":
                return self._choose(schema["enum"], field)
            case "array":
                return self._fill_array(name, schema, field, depth)
            case "integer" | "number" as kind:
                return self._fill_number(field, schema, is_whole=kind == "integer")
            case "boolean":
                return field.given if isinstance(field.given, bool) else self._draft.finding.kind in ("fact", "label")
            case "null":
                return None
            case _:
                return self._fill_string(name, schema, field)

    def _read_field(self, name: str, description: str) -> _Field:
        """What the description asks for, if the model follows it, else what the task has under the field's name."""
        task = self._draft.task
        is_followed = bool(description) and self._rng.random() < self._chance
        described = find_described_field(description, task) if is_followed else None
        source = described or next(iter(task.find(name)), None)
        book = read_description(description) if is_followed else RuleBook(())
        return _Field(book, None if source is None else task.fields[source])

    def _resolve(self, schema: Mapping[str, Json], depth: int) -> Mapping[str, Json]:
        """The schema behind references and alternatives; of alternatives, the first that is not null."""
        for _ in range(MAX_DEPTH):
            if "$ref" in schema:
                target: Json = self._root
                for part in str(schema["$ref"]).removeprefix("#").strip("/").split("/"):
                    target = target[part.replace("~1", "/").replace("~0", "~")] if part else target
                schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
            elif options := schema.get("anyOf") or schema.get("oneOf"):
                by_preference = sorted(options, key=lambda option: option.get("type") == "null")
                is_deep = depth >= MAX_DEPTH and by_preference[-1].get("type") == "null"
                schema = by_preference[-1 if is_deep else 0]
            else:
                break
        return schema

    def _fill_object(self, schema: Mapping[str, Json], depth: int) -> dict[str, Json]:
        required = set(schema.get("required", ()))
        return {
            name: self._fill(name, part, depth=depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in required or depth < MAX_DEPTH
        }

    def _fill_array(self, name: str, schema: Mapping[str, Json], field: _Field, depth: int) -> list[Json]:
        item = self._resolve(schema.get("items") or {}, depth)
        least, most = int(schema.get("minItems", 0)), int(schema.get("maxItems", 1_000))
        given = field.given
        is_text = _kind_of(item) == "string" and "enum" not in item
        if isinstance(given, list) and least <= len(given) <= most and is_text:
            return [plain_text(value) for value in given]
        count = min(max(least, 1 if depth < MAX_DEPTH else 0), most)
        items = [self._fill(name, item, depth=depth + 1) for _ in range(count)]
        for key, part in item.get("properties", {}).items():
            options = self._resolve(part, depth).get("enum", ())
            if count > 1 and len(options) == count:  # as many names as items: each item has another one
                for each, option in zip(items, options, strict=True):
                    each[key] = option
        return items

    def _choose(self, options: list[Json], field: _Field) -> Json:
        """The option that the field asks for, that is the answer, or that the task mentions; else the first."""
        labels = {str(option).lower(): option for option in options}
        if field.given is not None and plain_text(field.given).lower() in labels:
            return labels[plain_text(field.given).lower()]
        if "label_when" in field.book:
            return labels[self._choose_label(tuple(map(str, options)), field.book).lower()]
        if self._draft.finding.value.lower() in labels:
            return labels[self._draft.finding.value.lower()]
        named = (
            option for label, option in labels.items() if re.search(rf"(?<!\w){re.escape(label)}(?!\w)", self._seen)
        )
        return next(named, options[0])

    def _choose_label(self, labels: tuple[str, ...], book: RuleBook) -> str:
        return choose_label(self._draft.task, book, labels=labels, knowledge=self._knowledge, rng=self._rng)

    def _fill_number(self, field: _Field, schema: Mapping[str, Json], *, is_whole: bool) -> int | float:
        step = 1 if is_whole else 1e-6
        low: float = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf) + step)
        high: float = schema.get("maximum", schema.get("exclusiveMaximum", math.inf) - step)
        known = (_read_number(field.given), _read_number(self._draft.finding.value), 0.0)
        number = min(max(next(each for each in known if each is not None), low), high)
        return round(number) if is_whole else number

    def _fill_string(self, name: str, schema: Mapping[str, Json], field: _Field) -> str:
        draft, given = self._draft, field.given
        if schema.get("format") == "date":
            found = find_dates(plain_text(given)) or find_dates(self._seen)
            return rewrite_dates(found[0].text, "YYYY-MM-DD") if found else "2000-01-01"
        words = set(split_words(name))
        text = draft.sentence
        if labels := field.book.items("choose"):
            text = self._choose_label(labels, field.book)
        elif given is not None:
            text = self._style_of(field.book).text(name, given)
        elif words & SOURCE_KEYS and draft.source:
            text = draft.source
        elif words & REASON_KEYS and draft.finding.sentence:
            text = draft.finding.sentence
        text = text.upper() if "upper_case" in field.book else text
        text = text.ljust(int(schema.get("minLength", 0)), ".")
        return text[: int(schema["maxLength"])] if "maxLength" in schema else text

    def _style_of(self, book: RuleBook) -> ValueStyle:
        """How the values of a field are written: as its description says, else as the instruction does."""
        style = self._draft.style
        return ValueStyle(
            date_format=book.word("date_format") or style.date_format,
            decimals=style.decimals if book.number("decimals") is None else book.number("decimals"),
            verbatim="verbatim" in book or (style.verbatim and "date_format" not in book),
        )


@dataclass(frozen=True, slots=True)
class _Field:
    """The rules of a field's description, and what the task gives for the field."""

    book: RuleBook
    given: Json


def _kind_of(schema: Mapping[str, Json]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((option for option in kind if option != "null"), "null")
    if kind is None:
        return "object" if "properties" in schema else "array" if "items" in schema else "string"
    return str(kind)


def _read_number(value: Json) -> float | None:
    if isinstance(value, int | float):
        return float(value)
    found = re.search(r"-?\d+(?:\.\d+)?", value.replace(",", "")) if isinstance(value, str) else None
    return float(found[0]) if found else None
