"""Random documents, written by the usual libraries: after a replacement, their own parsers see one changed value."""

from __future__ import annotations

import ast
import json
import pprint
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.sources import json_field, python_literal, yaml_field
from promptiter.sources.field import Field, split_path
from promptiter.sources.json_field import JsonField
from promptiter.sources.python_literal import PythonLiteral
from promptiter.sources.yaml_field import YamlField
from tests.sources.test_round_trip import TEXT
from traces.model import Json

pytestmark = pytest.mark.slow

KEYS = st.one_of(st.sampled_from(["a", "b", "prompt", "x.y", "1", "yes", "é", "a b"]), st.text(min_size=1, max_size=3))
LEAVES = st.one_of(TEXT, st.integers(-9, 9), st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False))
TREES = st.dictionaries(
    KEYS,
    st.recursive(
        LEAVES,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
        max_leaves=8,
    ),
    min_size=1,
    max_size=4,
)
List = Callable[[str], Iterator[tuple[str, str]]]
FEW = settings(max_examples=3 * settings().max_examples, suppress_health_check=list(HealthCheck))


def set_value(tree: Json, path: str, value: Json) -> Json:
    """The tree with another value at a path."""
    changed = deepcopy(tree)
    holder: Any = changed
    *names, last = split_path(path)
    for name in names:
        holder = holder[int(name)] if isinstance(holder, list) else holder[name]
    holder[int(last) if isinstance(holder, list) else last] = value
    return changed


def check(
    text: str,
    data: st.DataObject,
    value: Json,
    *,
    fields: List,
    field: Callable[[str], Field],
    load: Callable[[str], Json],
) -> None:
    tree, found = load(text), list(fields(text))
    assume(found)
    path, old = data.draw(st.sampled_from(found))
    assert field(path).read(text) == old
    changed = field(path).replace(text, value)
    assert load(changed) == set_value(tree, path, value)
    assert field(path).read(field(path).replace(changed, old)) == old


@FEW
@given(TREES, TEXT, st.data(), st.sampled_from([None, '"', "'", "|", ">"]), st.sampled_from([True, False, None]))
def test_yaml(tree: Json, value: str, data: st.DataObject, style: str | None, flow: bool | None) -> None:
    text = yaml.safe_dump(
        tree, default_style=style, default_flow_style=flow, allow_unicode=data.draw(st.booleans()), width=40
    )
    assume(yaml.safe_load(text) == tree)  # a style of PyYAML may not hold every text
    check(text, data, value, fields=yaml_field.list_strings, field=YamlField, load=yaml.safe_load)


@FEW
@given(TREES, st.one_of(TEXT, LEAVES, TREES), st.data(), st.sampled_from([None, 1, 4, "\t"]), st.booleans())
def test_json(tree: Json, value: Json, data: st.DataObject, indent: int | str | None, is_ascii: bool) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=is_ascii)
    check(text, data, value, fields=json_field.list_strings, field=JsonField, load=json.loads)


@FEW
@given(TREES, TEXT, st.data(), st.integers(10, 120))
def test_python(tree: Json, value: str, data: st.DataObject, width: int) -> None:
    text = f"# -*- coding: utf-8 -*-\nX = {pprint.pformat(tree, width=width)}  # the end\n"

    def load(source: str) -> Json:
        [assigned] = ast.parse(source).body
        assert isinstance(assigned, ast.Assign)
        return ast.literal_eval(assigned.value)

    found = [path for path, _ in python_literal.list_strings(text)]
    assert all(path.startswith("X.") for path in found)
    assume(found)
    before = load(text)
    path = data.draw(st.sampled_from(found))
    try:
        changed = PythonLiteral(path).replace(text, value)
    except SetupError:
        raise AssertionError(path) from None
    assert changed.endswith("  # the end\n")
    if "~" not in path:
        assert load(changed) == set_value(before, path.removeprefix("X."), value)
