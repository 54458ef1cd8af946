from __future__ import annotations

import traceback
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, Field

from promptiter.errors import SetupError
from promptiter.user_files import FileObject, Location, read_object, spell
from traces.model import Json


def refuse(value: int) -> int:
    raise ValueError(f"{value} is taken; choose another")


class Tool(FileObject):
    tool_name: str
    base_url: str = Field(default="", validation_alias=spell("base_url", "baseURL"))


class Shop(FileObject):
    tools: list[Tool] = Field(default_factory=list)
    by_name: dict[str, Tool] = Field(default_factory=dict)
    max_price: float | None = Field(default=None, gt=0)
    port: Annotated[int, AfterValidator(refuse)] | None = None
    data: dict[str, Any] = Field(default_factory=dict)


def read(value: Json) -> Shop:
    return read_object(Shop, value, Location("shop.json"), error=SetupError)


def problems(value: Json) -> list[str]:
    with pytest.raises(SetupError) as caught:
        read(value)
    return str(caught.value).split("\n")


@pytest.mark.parametrize(
    ("location", "text", "in_file"),
    [
        (Location("a.json"), "a.json", "the whole file"),
        (Location("a.json").below("cases", 2, "id"), "a.json: cases[2].id", "cases[2].id"),
        (Location("a.jsonl", line=3), "a.jsonl, line 3", "line 3"),
        (Location("a.jsonl", line=3).below("turns", 0), "a.jsonl, line 3: turns[0]", "line 3, turns[0]"),
    ],
)
def test_a_location_names_file_line_and_key(location: Location, text: str, in_file: str) -> None:
    assert (str(location), location.in_file) == (text, in_file)


def test_keys_may_be_snake_case_or_camel_case() -> None:
    for url in ("base_url", "baseUrl", "baseURL"):
        for tool in ("tool_name", "toolName"):
            assert read({"tools": [{tool: "x", url: "y"}]}).tools == [Tool.model_validate({"tool_name": "x", url: "y"})]


def test_null_counts_as_left_out_but_an_unknown_key_does_not() -> None:
    assert read({"tools": None, "maxPrice": None, "data": {"a": None}}) == read({"data": {"a": None}})
    assert problems({"tools": [{"tool_name": None}]}) == ["shop.json: tools[0].tool_name: is missing"]
    assert problems({"max_prize": None}) == ["shop.json: unknown key 'max_prize' (did you mean 'max_price'?)"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (7, "shop.json: must be an object, not 7"),
        ({"maxPrice": "high"}, "shop.json: maxPrice: must be a number, not 'high'"),
        ({"max_price": True}, "shop.json: max_price: must be a number, not true"),
        ({"max_price": 0}, "shop.json: max_price: must be above 0, not 0"),
        ({"tools": {"a": 1}}, "shop.json: tools: must be a list, not an object"),
        ({"tools": [None]}, "shop.json: tools[0]: must be an object, not null"),
        ({"port": 80}, "shop.json: port: 80 is taken; choose another"),
        ({"tools": [{"tool_nam": "x"}]}, "shop.json: tools[0]: unknown key 'tool_nam' (did you mean 'tool_name'?)"),
        ({"tool_name": "x"}, "shop.json: unknown key 'tool_name'; it belongs under 'tools' or 'by_name'"),
        ({"x": 1}, "shop.json: unknown key 'x'; known are by_name, data, max_price, port, tools"),
        (
            {"by_name": {"a": {"toolName": "x", "toolNam": 1}}},
            "shop.json: by_name.a: unknown key 'toolNam' (did you mean 'toolName'?)",
        ),
        (
            {"tools": [{"tool_name": "x", "toolName": "y"}]},
            "shop.json: tools[0]: 'toolName' is another spelling of 'tool_name', which is given too; keep one of them",
        ),
    ],
)
def test_a_problem_says_what_is_wrong_and_where(value: Json, problem: str) -> None:
    assert problems(value) == [problem]


def test_all_problems_are_listed_up_to_five() -> None:
    assert problems({"tools": [{}], "max_price": -1}) == [
        "shop.json: tools[0].tool_name: is missing",
        "shop.json: max_price: must be above 0, not -1",
    ]
    found = problems({"tools": [{}] * 9})
    assert found[4:] == ["shop.json: tools[4].tool_name: is missing", "and 4 more"]


@pytest.mark.slow
def test_a_value_too_deep_to_print_is_described() -> None:
    deep: Json = []
    for _ in range(100_000):
        deep = [deep]
    assert problems({"max_price": deep}) == ["shop.json: max_price: must be a number, not a list of 1"]
    while deep:
        [deep] = deep  # freed from the outside: the interpreter would recurse


def test_a_traceback_does_not_show_what_the_file_holds() -> None:
    document = {"by_name": {"a": {"tool_name": ["sk-secret"]}}, "max_price": "sk-secret"}
    with pytest.raises(SetupError) as caught:
        read_object(Tool, document, Location("tool.json"), error=SetupError)
    assert "sk-secret" not in "".join(traceback.format_exception(caught.value))
