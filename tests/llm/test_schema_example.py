from __future__ import annotations

import pytest
from pydantic import BaseModel, TypeAdapter

from promptiter.llm.schema_example import render_example
from traces.model import Json


class Node(BaseModel):
    name: str
    below: list[Node] = []


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (
            {
                "type": "object",
                "properties": {
                    "reason": {"type": "string"},
                    "passed": {"type": "boolean"},
                    "count": {"type": "integer"},
                    "share": {"type": ["number", "null"]},
                    "kind": {"enum": ["P0", "P1"]},
                    "only": {"enum": ["S1"]},
                    "fixed": {"const": 3},
                    "any": {},
                    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                },
            },
            (
                '{"reason": "...", "passed": true, "count": 1, "share": 0.5, "kind": "P0 or P1", "only": "S1", '
                '"fixed": 3, "any": "...", "either": 1}'
            ),
        ),
        ({"type": "array", "items": {"enum": [1, 2]}}, "[1]"),
        ({"enum": [f"S{number}" for number in range(1, 20)]}, '"S1 or S2 or S3 or S4 or S5 or S6 or S7 or S8 or ..."'),
    ],
)
def test_an_example_has_the_shape_of_its_schema(schema: Json, expected: str) -> None:
    assert render_example(schema) == expected


def test_a_schema_that_refers_to_itself_has_an_example() -> None:
    assert render_example(TypeAdapter(Node).json_schema()).startswith(
        '{"name": "...", "below": [{"name": "...", "below": ['
    )
