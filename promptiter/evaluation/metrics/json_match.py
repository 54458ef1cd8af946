"""JSON comparison by structure: number tolerance, ignored or selected parts, and JSON schemas.

Findings have paths such as `$.a[2].b`. Values may be deeply nested, so nothing here is recursive.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import orjson

from promptiter.errors import MetricError
from promptiter.evaluation.score import Finding
from promptiter.json_schemas import SchemaCheckError, check_schema
from promptiter.patterns import list_violations
from promptiter.wording import join_names, shorten
from traces.model import Json

Tree: TypeAlias = Mapping[str, Any]
"""Nested objects with `true` at the selected parts; `*` is any key or list item: `{"items": {"*": {"id": true}}}`."""

DEFAULT_NUMBER_TOLERANCE = 1e-6

MOST_NAMED = 12
"""Maximum number of keys in a description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonCriterion:
    """How a JSON value is compared with its reference.

    `ignore_tree` selects parts to skip, `only_tree` the only parts to compare. `number_tolerance` is absolute. `schema`
    is a JSON schema for the value; with `ignore`, only the schema is checked.
    """

    ignore_tree: Tree | None = None
    only_tree: Tree | None = None
    number_tolerance: float = DEFAULT_NUMBER_TOLERANCE
    schema: Mapping[str, Json] | None = None
    ignore: bool = False

    def __post_init__(self) -> None:
        _check_tree("ignore_tree", self.ignore_tree)
        _check_tree("only_tree", self.only_tree)
        if self.schema is not None:
            _check_schema(dict(self.schema))

    @property
    def needs_reference(self) -> bool:
        return not self.ignore

    @property
    def has_patterns(self) -> bool:
        return self.schema is not None

    @property
    def description(self) -> str:
        if self.ignore:
            return "JSON of a schema"
        parts = [
            f"{word} {join_names(_list_paths(tree), limit=MOST_NAMED)}"
            for word, tree in (("only", self.only_tree), ("without", self.ignore_tree))
            if tree is not None
        ]
        return ", ".join(["JSON", *parts, *(["of a schema"] if self.schema is not None else [])])


class NotJsonError(ValueError):
    """A text that is not JSON, not even inside a code fence."""


def parse_json(text: str) -> Json:
    """Parse a text as JSON, or else the last code fence in it that holds JSON."""
    bare = text.strip().removeprefix("\ufeff")
    try:
        return orjson.loads(bare)
    except orjson.JSONDecodeError as error:
        for fence in reversed(_FENCE.findall(bare) or _ONE_LINE_FENCE.findall(bare)):
            try:
                return orjson.loads(fence)
            except orjson.JSONDecodeError:
                continue
        raise NotJsonError(str(error)) from error


def compare_json_text(
    actual: str, reference: str | None, criterion: JsonCriterion, *, data: Json = None
) -> tuple[Finding, ...]:
    """Compare a JSON text with its reference. `data` is used if the text is not JSON."""
    try:
        value = parse_json(actual)
    except NotJsonError as error:
        if data is None:
            return (Finding(kind="violated", expected=str(error), actual=actual, where="$", predicate="valid_json"),)
        value = data
    if criterion.ignore:
        return check_against_schema(value, criterion)
    try:
        expected = parse_json(reference or "")
    except NotJsonError as error:
        raise MetricError(f"the reference {shorten(reference)} is not JSON: {error}") from error
    if criterion.only_tree is not None and not _reaches(expected, criterion.only_tree):
        raise MetricError(
            f"only_tree {shorten(criterion.only_tree)} selects nothing in the reference {shorten(reference)}"
        )
    return compare_json(value, expected, criterion)


def compare_json(actual: Json, expected: Json, criterion: JsonCriterion) -> tuple[Finding, ...]:
    """Compare two JSON values. Findings are in the order of the reference."""
    findings: list[Finding] = []
    waiting = [_Pair("$", actual, expected, ignore=criterion.ignore_tree, only=criterion.only_tree)]
    if criterion.ignore:
        waiting.clear()
    while waiting:
        pair = waiting.pop()
        if pair.can_descend:
            waiting += reversed(pair.children())
        elif (finding := pair.finding(criterion.number_tolerance)) is not None:
            findings.append(finding)
    return (*findings, *check_against_schema(actual, criterion))


def check_against_schema(actual: Json, criterion: JsonCriterion) -> tuple[Finding, ...]:
    """Violations of the criterion's schema, with the keyword that failed: `{"required": ["city"]}`."""
    if criterion.schema is None:
        return ()
    try:
        violations = list_violations(dict(criterion.schema), actual)
    except SchemaCheckError as error:
        raise MetricError(str(error)) from error
    findings = [
        Finding(
            kind="violated",
            expected={each.keyword: each.wanted},
            actual=each.value,
            where=format_json_path(each.path),
            predicate="json_schema",
        )
        for each in violations
    ]
    return tuple(sorted(findings, key=lambda finding: (finding.where, str(finding.expected))))


def _list_paths(tree: Tree) -> list[str]:
    """The selected parts, such as `items.*.id`."""
    found: list[str] = []
    waiting = [(str(key), inner) for key, inner in tree.items()]
    while waiting:
        path, value = waiting.pop(0)
        if isinstance(value, Mapping) and value:
            waiting += [(f"{path}.{key}", inner) for key, inner in value.items()]
        else:
            found.append(path)
    return found


def format_json_path(parts: Iterable[str | int]) -> str:
    """Format a path as `$.a[2].b`. A key that is not an identifier is quoted: `$['odd key']`."""
    return "$" + "".join(_format_path_part(part) for part in parts)


# Prefer fences on lines of their own: a JSON string may contain three backticks.
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n`]*\n(.*?)^[ \t]*(?:```|~~~)[ \t]*$", re.MULTILINE | re.DOTALL)
_ONE_LINE_FENCE = re.compile(r"```(?:json[c5]?)?\s*(.*?)```", re.DOTALL | re.IGNORECASE)


class _Absent:
    """Marks a value that is absent, since None is a JSON value."""


_ABSENT = _Absent()


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two values at one path. `ignore` and `only` are a mapping (look below), True (all), None or False (nothing)."""

    path: str
    actual: Json
    expected: Json
    ignore: Json
    only: Json

    @property
    def can_descend(self) -> bool:
        """Whether they are compared part by part: both are containers, or one is and only some of its parts count."""
        if _is_container(self.actual) and _is_container(self.expected):
            return isinstance(self.actual, Mapping) == isinstance(self.expected, Mapping)
        if self.actual is _ABSENT or self.expected is _ABSENT:
            present = self.expected if self.actual is _ABSENT else self.actual
            return _is_container(present) and (isinstance(self.ignore, Mapping) or isinstance(self.only, Mapping))
        return False

    def children(self) -> list[_Pair]:
        ours, theirs = _list_parts(self.expected), _list_parts(self.actual)
        pairs = []
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            ignore, only = _descend(self.ignore, key), _descend(self.only, key)
            is_picked = not isinstance(self.only, Mapping) or only not in (None, False)
            if ignore is True or not is_picked:
                continue
            actual, expected = theirs.get(key, _ABSENT), ours.get(key, _ABSENT)
            pairs.append(_Pair(self.path + _format_path_part(key), actual, expected, ignore=ignore, only=only))
        return pairs

    def finding(self, tolerance: float) -> Finding | None:
        if self.actual is _ABSENT:
            return Finding(kind="missing", expected=self.expected, where=self.path, predicate="json")
        if self.expected is _ABSENT:
            return Finding(kind="unexpected", actual=self.actual, where=self.path, predicate="json")
        if isinstance(self.only, Mapping) and not _is_container(self.expected):
            return None  # the selected parts are below, where the reference has nothing
        if _are_equal(self.actual, self.expected, tolerance):
            return None
        return Finding(kind="wrong", expected=self.expected, actual=self.actual, where=self.path, predicate="json")


def _are_equal(actual: Json, expected: Json, tolerance: float) -> bool:
    """Compare two values that are not both objects or both lists."""
    if _is_number(actual) and _is_number(expected):
        return _are_near(actual, expected, tolerance)
    return type(actual) is type(expected) and not _is_container(actual) and bool(actual == expected)


def _are_near(actual: float, expected: float, tolerance: float) -> bool:
    if actual == expected:
        return True
    if isinstance(actual, int) and isinstance(expected, int):
        return abs(actual - expected) <= tolerance
    try:
        is_finite = math.isfinite(actual) and math.isfinite(expected)
    except OverflowError:  # an integer too large for a float
        return False
    # Compared as written: 1.1 is within 0.1 of 1, though not in binary.
    return is_finite and abs(Decimal(repr(actual)) - Decimal(repr(expected))) <= Decimal(repr(tolerance))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_container(value: Json) -> bool:
    return isinstance(value, Mapping | list | tuple)


def _list_parts(value: Json) -> dict[Any, Json]:
    if isinstance(value, Mapping):
        return dict(value)
    return dict(enumerate(value)) if isinstance(value, list | tuple) else {}


def _descend(tree: Json, key: str | int) -> Json:
    if not isinstance(tree, Mapping):
        return None
    return tree[str(key)] if str(key) in tree else tree.get("*")


def _format_path_part(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if key.isidentifier() else f"[{key!r}]"


def _reaches(value: Json, tree: Tree) -> bool:
    """Whether a tree selects any part of a value."""
    waiting: list[tuple[Json, Json]] = [(value, tree)]
    while waiting:
        value, marks = waiting.pop()
        if marks is True:
            return True
        if isinstance(marks, Mapping):
            waiting.extend((part, _descend(marks, key)) for key, part in _list_parts(value).items())
    return False


def _check_tree(name: str, tree: Json) -> None:
    waiting = [(name, tree)] if tree is not None else []
    while waiting:
        place, node = waiting.pop()
        if isinstance(node, Mapping):
            waiting.extend((f"{place}.{key}", below) for key, below in node.items())
        elif not isinstance(node, bool):
            raise MetricError(
                f"{place} is {shorten(node)}; a tree consists of objects, with true at the selected parts"
            )


def _check_schema(schema: dict[str, Json]) -> None:
    from jsonschema.exceptions import SchemaError

    try:
        check_schema(schema)
    except SchemaError as error:
        raise MetricError(
            f"the JSON schema is not valid at {format_json_path(error.absolute_path)}: {error.message}"
        ) from error
