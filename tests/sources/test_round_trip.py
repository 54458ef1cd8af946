"""Round trips through files of real shapes: only the value differs, or the value is refused and nothing changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from promptiter.errors import AgentError, SetupError
from promptiter.sources.field import is_same
from promptiter.sources.file import FileSource
from promptiter.sources.place import open_place
from tests.sources.shapes import SHAPES, Shape
from traces.model import Json

pytestmark = pytest.mark.slow

TEXTS = (
    "Be very brief.",
    "One.\nTwo.\n\nThree.",
    "Ends in a line break.\n",
    "It's \"quoted\", 'both' ways \\ and \\n.",
    "  indented\n    more\nless",
    "yes",
    "",
    "key: value # not a comment",
    "trailing  \nspaces ",
    'ends in a quote"',
    '"""',
    "'''\"\"\"\\",
    "tab\there",
    "Grüße, 你好, 🙂👩‍👩‍👧, \u00a0",
    "- item\n- item\n",
    "{braces} [brackets], commas",
    "nel\x85 ls\u2028 ps\u2029 bell\x07",
    "carriage\rreturn\r\n",
    "# A heading\n\ntext",
    "```\nopen fence",
    "\n\nleading and trailing\n\n\n",
    "word " * 60 + "end",
    "---",
    "*alias",
)
TEXT = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(["a", " ", "\n", "\t", "'", '"', "\\", "#", ":", "-", "\r", "é", "|", "`", "\x85"])).map(
        "".join
    ),
)


def open_shape(shape: Shape) -> FileSource:
    source = open_place(shape.place, folder=Path("/nowhere"))
    assert isinstance(source, FileSource)
    return source


def check(shape: Shape, value: Json) -> bool:
    """Replace the value; False if it is refused. Everything around it must stay, byte for byte."""
    source, (before, _, after) = open_shape(shape), shape.parts
    try:
        written = source.replace_value(shape.raw, value)
    except (SetupError, AgentError):
        return False
    assert is_same(source.read_value(written), value)
    assert written.startswith(before)
    assert written.endswith(after)
    assert len(written) >= len(before) + len(after)
    return True


def test_there_are_enough_shapes() -> None:
    assert len(SHAPES) >= 150
    assert len({each.name for each in SHAPES}) == len(SHAPES)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_field_is_read_and_written_back_and_nothing_else_changes(shape: Shape) -> None:
    source = open_shape(shape)
    assert is_same(source.read_value(shape.raw), shape.value)
    changed = "Be very brief and kind." if isinstance(shape.value, str | None) else [1, "x"]
    assert check(shape, changed)
    written = source.replace_value(shape.raw, changed)
    if shape.value is not None and ">" not in shape.marked:
        back = source.replace_value(written, shape.value)
        assert is_same(source.read_value(back), shape.value)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_any_value_is_held_exactly_or_refused(shape: Shape) -> None:
    values = [*TEXTS, 7, -0.5, 1e-07, True, None, ["a", {"b": [1, "ü"]}], {"k": "v"}, []]
    held = sum(check(shape, value) for value in values)
    if shape.file in ("bot.yaml", "bot.json", "bot.py") and "cleandoc" not in shape.name:
        assert held >= len(TEXTS) - 8


@pytest.mark.parametrize(
    "name", ["py: constant", "py: triple quotes", "py: raw", "py: adjacent strings", "py: u prefix"]
)
@given(text=TEXT)
@example(text="\x00")
def test_python_holds_any_text(name: str, text: str) -> None:
    assert check(next(each for each in SHAPES if each.name == name), text)


@pytest.mark.parametrize(
    "name",
    ["yaml: plain", "yaml: literal", "yaml: folded", "yaml: single quotes", "yaml: double quotes", "json: escapes"],
)
@given(text=TEXT)
def test_yaml_and_json_hold_any_text(name: str, text: str) -> None:
    assert check(next(each for each in SHAPES if each.name == name), text)


@settings(max_examples=6 * settings().max_examples)
@given(shape=st.sampled_from(SHAPES), text=TEXT)
def test_a_text_is_held_exactly_or_refused(shape: Shape, text: str) -> None:
    check(shape, text)
