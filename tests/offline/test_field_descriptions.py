"""A wrong description of an output field is found and replaced without a model, whatever the field holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from promptiter import Engine, Evaluator, Gateway, ModelNode, RunRequest, build_eval_set, build_metrics
from promptiter.agents import chain
from promptiter.offline import SimulatedModel
from promptiter.policies import TargetScore
from traces.model import Json

CITIES = ("Lyon", "Graz", "Porto", "Turin", "Basel", "Gent", "Brno", "Cork", "Bonn", "Pisa", "Oslo", "Riga")
TOPICS = (("billing", "invoice is too high"), ("shipping", "parcel is lost"))
LEVELS = ("low", "high", "urgent")


@dataclass(frozen=True)
class Form:
    """A form with one field whose description is wrong, what customers write, and what the field should hold."""

    field: dict[str, Json]
    write: Callable[[int], str]
    value: Callable[[int], Json]
    description: str


FORMS = {
    "city, not product": Form(
        {"type": "string", "description": "The product."},
        lambda n: f"I want a refund. (order id: A-{n}; product: lamp {n}; city: {CITIES[n]})",
        lambda n: CITIES[n],
        "The city from the input.",
    ),
    "no description": Form(
        {"type": "string"},
        lambda n: f"I want a refund. (order id: A-{n}; product: lamp {n}; city: {CITIES[n]})",
        lambda n: CITIES[n],
        "The city from the input.",
    ),
    "amount with currency": Form(
        {"type": "string", "description": "The shipping fee."},
        lambda n: f"Please check my bill.\namount: €{1200 + n}.5\nshipping fee: €{n}.00",
        lambda n: f"€{1200 + n}.50",
        "The amount from the input. With 2 decimal places.",
    ),
    "amount as a number": Form(
        {"type": "number", "description": "The shipping fee."},
        lambda n: f"Please check my bill.\namount: {40 + n}.5 EUR\nshipping fee: {n}.25 EUR",
        lambda n: 40.5 + n,
        "The amount from the input.",
    ),
    "ISO date": Form(
        {"type": "string", "description": "The shipping date, as DD.MM.YYYY."},
        lambda n: f"Where is it? (order date: March {10 + n}, 2026; shipping date: April {10 + n}, 2026)",
        lambda n: f"2026-03-{10 + n}",
        "The order date from the input. Written as YYYY-MM-DD.",
    ),
    "category": Form(
        {"type": "string", "description": "The color."},
        lambda n: f"The {TOPICS[n % 2][1]} ({n})",
        lambda n: TOPICS[n % 2][0],
        'The detail. One of: billing, shipping. It is "billing" if the input mentions "invoice". '
        'It is "shipping" if the input mentions "parcel".',
    ),
    "enum from a field": Form(
        {"enum": list(LEVELS), "description": "The severity."},
        lambda n: f"It broke, see {n}. (severity: {LEVELS[(n + 1) % 3]}; priority: {LEVELS[n % 3]})",
        lambda n: LEVELS[n % 3],
        "The priority from the input.",
    ),
}


@pytest.mark.parametrize("name", sorted(FORMS))
async def test_a_wrong_description_is_replaced(name: str) -> None:
    form = FORMS[name]
    schema = {
        "type": "object",
        "properties": {"wish": {"type": "string", "description": "What the customer wants."}, "detail": form.field},
        "required": ["detail"],
    }
    agent = chain("desk", ModelNode(name="desk", instruction="Fill in the form.", schema=schema))
    cases = [{"input": form.write(number), "expected": {"detail": form.value(number)}} for number in range(12)]
    metric = {"metric_name": "json_match", "criterion": {"only_tree": {"detail": True}}}
    evaluator = Evaluator(
        build_metrics([metric]), gateway=Gateway(models={"simulated": SimulatedModel(compliance=1.0)})
    )
    request = RunRequest(
        train=build_eval_set("train", cases[:8]),
        validation=build_eval_set("validation", cases[8:]),
        stop=TargetScore(1.0),
        final_test=None,
    )
    result = await Engine(agent, evaluator).run(request)
    assert (result.baseline_score or 0.0) < 0.5
    assert result.accepted_score == 1.0
    assert result.accepted_profile.overrides == {"desk#field.detail": form.description}
