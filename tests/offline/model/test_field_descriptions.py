from __future__ import annotations

import json

import pytest

from promptiter.llm.messages import Message, ModelRequest
from promptiter.offline import SimulatedModel
from promptiter.offline.model.field_descriptions import find_described_field, read_description
from promptiter.offline.model.task import read_task
from traces.model import Json

MESSAGE = (
    "I want a refund. (order id: A-17; customer: Ada; home city: Lyon; shop city: Oslo; order date: 2026-03-02; "
    "total: 49.5 EUR; fee: 3.25 EUR; product: kettle)"
)


@pytest.mark.parametrize(
    ("description", "field"),
    [
        ("The order id.", "order_id"),
        ("The id of the order", "order_id"),
        ("The order number", "order_id"),
        ("The city of the shop.", "shop_city"),
        ("The city", "home_city"),
        ("Customer's city", "home_city"),
        ("Use the shop city.", "shop_city"),
        ("The product name", "product"),
        ("The name of the product.", "product"),
        ("The price, with 2 decimal places.", "total"),
        ("The fee, not the total.", "fee"),
        ("The date when it was ordered, written as YYYY-MM-DD.", "order_date"),
        ("Where the customer lives.", None),
        ("The street of the customer.", None),
        ("Something.", None),
        ("", None),
    ],
)
def test_a_description_names_a_field_of_the_task(description: str, field: str | None) -> None:
    assert find_described_field(description, read_task([Message("user", MESSAGE)])) == field


def test_a_description_is_read_like_an_instruction() -> None:
    book = read_description(
        'One of: billing, shipping. It is "billing" if the input mentions "invoice". In upper case.'
    )
    assert book.items("choose") == ("billing", "shipping")
    assert book.all("label_when") == [("billing", "the input mentions invoice")]
    assert "upper_case" in book


async def fill(name: str, schema: dict[str, Json], message: str = MESSAGE) -> Json:
    form = {"type": "object", "properties": {name: schema}, "required": [name]}
    request = ModelRequest(model="simulated", messages=(Message("user", message),), schema=form)
    reply = await SimulatedModel(compliance=1.0)(request)
    return json.loads(reply.text)[name]


@pytest.mark.parametrize(
    ("name", "schema", "value"),
    [
        ("product", {"type": "string"}, "kettle"),
        ("product", {"type": "string", "description": "The shop city."}, "Oslo"),
        ("product", {"type": "string", "description": "What was bought."}, "kettle"),
        ("product", {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "The shop city."}, "Oslo"),
        ("total", {"type": "number", "description": "The fee."}, 3.25),
        ("total", {"type": "string", "description": "The fee, with one decimal place."}, "3.2 EUR"),
        ("day", {"type": "string", "description": "The order date. Written as DD.MM.YYYY."}, "02.03.2026"),
        ("city", {"enum": ["Lyon", "Oslo"], "description": "The shop city."}, "Oslo"),
        ("city", {"enum": ["Lyon", "Oslo"], "description": "The home city."}, "Lyon"),
        ("place", {"type": "string", "description": "The home city. In upper case."}, "LYON"),
        ("goods", {"type": "array", "items": {"type": "string", "description": "The product."}}, ["kettle"]),
    ],
)
async def test_a_field_holds_what_its_description_names(name: str, schema: dict[str, Json], value: Json) -> None:
    assert await fill(name, schema) == value


@pytest.mark.parametrize("kind", [{"type": "string"}, {"enum": ["shipping", "billing"]}])
async def test_a_description_says_which_label_is_meant_by_what(kind: dict[str, Json]) -> None:
    cue = 'It is "billing" if the input mentions "invoice".'
    labels = f"One of: shipping, billing. {cue}"
    assert await fill("topic", {**kind, "description": labels}, "My invoice is wrong.") == "billing"


async def test_a_model_that_does_not_obey_fills_a_field_by_its_name() -> None:
    form = {"type": "object", "properties": {"product": {"type": "string", "description": "The shop city."}}}
    request = ModelRequest(model="simulated", messages=(Message("user", MESSAGE),), schema=form)
    assert json.loads((await SimulatedModel(compliance=0.0)(request)).text) == {"product": "kettle"}
