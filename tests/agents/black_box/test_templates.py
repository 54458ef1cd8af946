from __future__ import annotations

import pytest

from promptiter.agents.black_box.templates import Placeholder, fill_json, fill_text, list_texts, parse_template
from promptiter.errors import SetupError
from traces.model import Json

IDS = {"note": "note#instruction", "note#instruction": "note#instruction"}


def parse(text: str) -> list[str | Placeholder]:
    return parse_template(text, IDS, place="stdin", kinds=("prompt", "file"))


def look_up(placeholder: Placeholder) -> Json:
    return ["a", 1] if placeholder.kind == "history" else str(placeholder)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", []),
        ("--text={input}", ["--text=", Placeholder("input")]),
        ("{file:note}{prompt:note#instruction}", [Placeholder(each, IDS["note"]) for each in ("file", "prompt")]),
        ("{{input}} {{prompt:note}}", ["{input}", " ", "{prompt:note}"]),
        ('{"a": {}} { input } {A}', ['{"a": {}} { input } {A}']),
    ],
)
def test_placeholders_are_found_and_other_braces_are_text(text: str, parts: list[str | Placeholder]) -> None:
    assert parse(text) == parts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{imput}", "stdin: {imput} is not a placeholder; known are {input}, .* write {{imput}}"),
        ("{input:note}", "{input:note} is not a placeholder"),
        ("{prompt}", "{prompt} is not a placeholder"),
        ("{prompt:nota}", "there is no prompt 'nota' for {prompt:nota}.*'note'"),
    ],
)
def test_an_unknown_placeholder_is_refused(text: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        parse(text)


@pytest.mark.parametrize("value", ["{input}", "{{key}}", "{prompt:note}", "a\nb", ""])
def test_a_value_is_filled_in_as_it_is(value: str) -> None:
    assert fill_text(parse("{input}"), lambda _: value) == value


def test_a_text_of_json_that_is_only_a_placeholder_becomes_its_value() -> None:
    body = {"past": "{history}", "all": ["so far: {history}", "{prompt:note}", 2, None]}
    assert list(list_texts(body)) == ["{history}", "so far: {history}", "{prompt:note}"]
    assert fill_json(body, IDS, look_up) == {
        "past": ["a", 1],
        "all": ['so far: ["a",1]', "{prompt:note#instruction}", 2, None],
    }
