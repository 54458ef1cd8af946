"""What a field refuses, and what the message says to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.sources import CallbackSource, FileSource
from promptiter.sources.field import FieldSource, join_path, split_path
from promptiter.sources.place import open_place, parse_place
from promptiter.sources.whitespace import find_readers, refit

REFUSED = [
    ("a.yaml:b", "a: &x hi\nb: *x\n", "'b' is an alias (*) of a value elsewhere; name that place instead"),
    ("a.yaml:a", "a: &x hi\nb: *x\n", "has an anchor and is used in other places as well; copy it"),
    ("a.yaml:a.k", "a: &x {k: hi}\nb:\n  <<: *x\n", "or what holds it, has an anchor and is used in other places"),
    ("a.yaml:l.1", "l: [&x hi, *x]\n", "'1' in l is an alias (*)"),
    ("a.yaml:bot.k", "base: &b {k: hi}\nbot:\n  <<: *b\n", "there is no key 'k' in bot; keys that are merged with <<"),
    ("a.yaml:promt", "prompt: hi\n", "there is no key 'promt' (did you mean 'prompt'?)"),
    ("a.yaml:a", "a: hi\na: ho\n", "the key 'a' is there 2 times; remove all but one"),
    ("a.yaml:a.b", "a: hi\n", "there is no 'b' in a, because that is neither a mapping nor a list"),
    ("a.yaml:a.2", "a: [x, y]\n", "there is no item '2' in a; its 2 items are numbered from 0"),
    ("a.yaml:a", "a: [\n", "the file is not valid YAML"),
    ("a.yaml:a", "a: x\n---\na: y\n", "the file has 2 YAML documents, and one is needed"),
    ("a.yaml:a", "a: 2024-05-01\n", "the value is a date; write it in quotes to make it text"),
    ("a.yaml:a", "a:\n  - x # note\n  - y\n", "the value has comments or aliases in it, which would be lost"),
    ("a.json:a", '{"a": 1, "a": 2}', "the key 'a' is there 2 times"),
    ("a.json:b", '{"a": 1}', "there is no key 'b'"),
    ("a.json:a.x", '{"a": [1]}', "there is no item 'x' in a; its 1 items are numbered from 0"),
    ("a.json:a", "{'a': 1}", "the file is not valid JSON"),
    ("a.json:a", '// x\n{"a": 1}', "the file is not valid JSON"),
    ("a.md#B", "# A\nx\n", "there is no heading 'B'"),
    ("a.md#A", "# X\n## A\nx\n# Y\n## A\n", "2 headings are called 'A'; name the one above it as well"),
    ("a.py:A", "A = f'x {y}'\n", "the value is an f-string; write it as a plain string"),
    ("a.py:A", "A = 'x' + y\n", "the value is a concatenation or another operation, not a literal"),
    ("a.py:A", "A = load('x')\n", "the value is a call, not a literal"),
    ("a.py:A", "A = OTHER\n", "the value is a variable, not a literal"),
    ("a.py:A", "A = b'x'\n", "which JSON cannot hold"),
    ("a.py:A", "A = ('x'  # one\n     'y')\n", "there are comments between the strings of the literal"),
    ("a.py:PROMT", "PROMPT = 'x'\n", "there is no 'PROMT' in this module (did you mean 'PROMPT'?)"),
    ("a.py:A", "A = (\n", "the file is not valid Python"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "text", "problem"), REFUSED, ids=[each[0] + each[2][:30] for each in REFUSED])
def test_what_cannot_be_replaced_is_refused_with_advice(tmp_path: Path, place: str, text: str, problem: str) -> None:
    source = open_place(place, folder=tmp_path)
    assert isinstance(source, FieldSource)
    value = ["z"] if "# note" in text else "new text"
    with pytest.raises(SetupError) as refused:
        source.replace_value(text.encode(), value)
    assert str(refused.value).startswith(f"{tmp_path}/{place}: ")
    assert problem in str(refused.value)


def test_values_that_a_format_does_not_have_are_refused(tmp_path: Path) -> None:
    for place, text in (("a.json:a", '{"a": 1}'), ("a.yaml:a", "a: 1\n"), ("a.py:a", "a = 1\n")):
        source = open_place(place, folder=tmp_path)
        assert isinstance(source, FieldSource)
        with pytest.raises(SetupError):
            source.replace_value(text.encode(), float("nan"))
    section = open_place("a.md#A", folder=tmp_path)
    assert isinstance(section, FieldSource)
    with pytest.raises(SetupError, match="a section holds text, and the value is 5"):
        section.replace_value(b"# A\nx\n", 5)


@pytest.mark.parametrize(
    ("place", "file", "field"),
    [
        ("prompts/bot.md", "prompts/bot.md", ""),
        ("prompts.md#The Planner", "prompts.md", "#The Planner"),
        ("c.yaml:a.b", "c.yaml", ":a.b"),
        ("c.json:a#b", "c.json", ":a#b"),
        ("src/bot.py:Bot.prompt", "src/bot.py", ":Bot.prompt"),
        ("notes#1.txt", "notes#1.txt", ""),
        ("my_store:key", None, ""),
    ],
)
def test_places_are_told_apart_by_the_ending_of_the_file(place: str, file: str | None, field: str) -> None:
    found, inside = parse_place(place)
    assert found == file
    assert ("" if inside is None else inside.name) == field


@pytest.mark.parametrize("place", ["", " ", "bot.md#", "c.yaml:"])
def test_what_is_not_a_place_is_refused(place: str) -> None:
    with pytest.raises(SetupError, match="is not a place; write a file"):
        parse_place(place)


def test_paths_with_dots_are_quoted() -> None:
    assert split_path('models."gpt-4.1".0') == ("models", "gpt-4.1", "0")
    assert join_path(("models", "gpt-4.1", "0")) == 'models."gpt-4.1".0'
    for wrong in ("a..b", "", 'a."b', '"a"b'):
        with pytest.raises(SetupError, match="the path"):
            split_path(wrong)


store = CallbackSource(lambda: "x", lambda _: None)


def test_a_source_of_your_own_is_named_by_module_and_attribute() -> None:
    assert open_place("tests.sources.test_field_errors:store", folder=Path()) is store
    with pytest.raises(SetupError, match="not a source; use CallbackSource"):
        open_place("tests.sources.test_field_errors:REFUSED", folder=Path())


def test_the_encoding_of_a_place_is_used(tmp_path: Path) -> None:
    source = open_place("bot.txt", folder=tmp_path, encoding="latin-1")
    assert isinstance(source, FileSource)
    assert source.replace_value("Grüße".encode("latin-1"), "Größe") == "Größe".encode("latin-1")


@pytest.mark.parametrize(
    ("stored", "value", "new", "written"),
    [
        ("Be brief.\n", "Be brief.", "Be kind.", "Be kind.\n"),
        ("\n  Be brief.\n  Always.\n  ", "Be brief.\nAlways.", "One.\n\nTwo.", "\n  One.\n\n  Two.\n  "),
        ("Search.\n\n    Args: x\n    ", "Search.\n\nArgs: x", "Find.\n\nArgs: y", "Find.\n\n    Args: y\n    "),
        ("Be brief.\n", "Be brief.", " Be kind.", None),
    ],
)
def test_whitespace_around_a_value_stays(stored: str, value: str, new: str, written: str | None) -> None:
    readers = find_readers(stored, value)
    assert readers
    assert refit(stored, new, readers) == written
