from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from promptiter.evaluation.score import Finding
from promptiter.llm.messages import Message
from promptiter.offline.model.field_descriptions import find_described_field, read_description
from promptiter.offline.model.task import read_task
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.offline.rules.rule_templates import DESCRIPTIONS, describe_field
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import OptimizeRequest, Rejection, StepExample
from promptiter.structure import Surface
from tests.offline.rules.test_rule_templates import SAMPLES
from traces.model import Json

CITIES = ("Lyon", "Graz", "Porto", "Turin", "Basel")


def write_examples(
    say: Callable[[int], str], output: Callable[[int], Json], expected: Callable[[int], Json], *, count: int = 5
) -> list[StepExample]:
    return [
        StepExample(
            case_id=f"case {number}",
            step_id="desk",
            input=say(number),
            output=json.dumps(output(number)),
            passed=output(number) == expected(number),
            expected=json.dumps(expected(number)),
            is_terminal=True,
        )
        for number in range(count)
    ]


def patch(
    examples: Sequence[StepExample], *, part: str = "place", value: str = "The product.", rejected: Sequence[str] = ()
) -> SurfacePatch | None:
    surface = Surface(node_id="desk", type="field", part=part, value=value)
    request = OptimizeRequest(
        surface=surface,
        signal=AggregateResult(surface_id=surface.id, text="it fails"),
        failing=tuple(each for each in examples if not each.passed),
        passing=tuple(each for each in examples if each.passed),
        rejected=tuple(Rejection(surface_id=surface.id, value=each, reason="it did not help") for each in rejected),
    )
    return asyncio.run(RuleOptimizer().optimize(request)).patch


def orders(**wrong: Json) -> list[StepExample]:
    return write_examples(
        lambda number: f"Hello. (product: lamp {number}; home city: {CITIES[number]}; price: {number}4.5)",
        lambda number: {"place": f"lamp {number}", "id": number, **wrong},
        lambda number: {"place": CITIES[number], "id": number},
    )


def test_a_field_is_described_by_the_field_of_the_input_that_it_holds() -> None:
    found = patch(orders())
    assert found is not None
    assert found.value == "The home city from the input."
    assert found.reason == "5 of 5 failing outputs do not have the home city of their input"
    assert found.evidence.cases == tuple(f"case {number}" for number in range(5))


def test_after_rejections_come_a_shorter_description_and_the_name_of_the_field() -> None:
    values: list[str] = []
    while (found := patch(orders(), rejected=values)) is not None:
        values.append(str(found.value))
    assert values == ["The home city from the input.", "The home city.", "The place."]


def test_a_field_that_is_right_is_not_described_again_because_another_is_wrong() -> None:
    assert patch(orders(), part="id", value="The number.") is None


@pytest.mark.parametrize(
    ("written", "expected", "value", "description"),
    [
        ("March {}, 2026", "2026-03-{}", "The day.", "The day. Written as YYYY-MM-DD."),
        ("March {}, 2026", "2026-03-{}", "The day, as DD.MM.YYYY.", "The day, as YYYY-MM-DD."),
        ("March {}, 2026", "2026-03-{}", "", "The day. Written as YYYY-MM-DD."),
        ("{}.5", "{}.50", "The price.", "The price. With 2 decimal places."),
    ],
)
def test_only_the_writing_is_added_where_the_right_value_is_written_wrongly(
    written: str, expected: str, value: str, description: str
) -> None:
    examples = write_examples(
        lambda number: f"Hello. (it: {written.format(10 + number)})",
        lambda number: {"day": written.format(10 + number)},
        lambda number: {"day": expected.format(10 + number)},
    )
    found = patch(examples, part="day", value=value)
    assert found is not None
    assert found.value == description


def test_a_wrong_value_and_its_writing_are_described_together() -> None:
    examples = write_examples(
        lambda number: f"Hello. (bought: March {10 + number}, 2026; color: red {number})",
        lambda number: {"lines": [{"day": f"red {number}"}]},
        lambda number: {"lines": [{"day": f"2026-03-{10 + number}"}]},
    )
    found = patch(examples, part="lines.day", value="The color.")
    assert found is not None
    assert found.value == 'The value of "bought" from the input. Written as YYYY-MM-DD.'


def test_a_number_is_described_without_decimals() -> None:
    examples = write_examples(
        lambda number: f"Hello. (fee: {number}.25 EUR; total: {20 + number}.50 EUR)",
        lambda number: {"total": number + 0.25},
        lambda number: {"total": 20.5 + number},
    )
    found = patch(examples, part="total", value="The fee.")
    assert found is not None
    assert found.value == "The total from the input."


def test_a_list_is_described_by_the_list_of_the_input_that_it_holds() -> None:
    examples = write_examples(
        lambda number: json.dumps({"product": f"lamp {number}", "colors": ["red", CITIES[number]]}),
        lambda number: {"tags": [f"lamp {number}"]},
        lambda number: {"tags": ["red", CITIES[number]]},
    )
    found = patch(examples, part="tags")
    assert found is not None
    assert found.value == "The colors from the input."


def test_a_few_labels_are_listed_with_what_they_are_for() -> None:
    topics = ("billing", "invoice"), ("shipping", "parcel")
    examples = write_examples(
        lambda number: f"The {topics[number % 2][1]} {number} is wrong.",
        lambda _: {"topic": "red"},
        lambda number: {"topic": topics[number % 2][0]},
        count=8,
    )
    found = patch(examples, part="topic", value="The color.")
    assert found is not None
    assert found.value == (
        'The topic. One of: billing, shipping. It is "billing" if the input mentions "invoice". '
        'It is "shipping" if the input mentions "parcel".'
    )


def test_what_the_answer_lacks_shows_what_the_field_of_an_inner_step_should_hold() -> None:
    inner = [
        replace(
            example,
            is_terminal=False,
            expected=f"Send it to {CITIES[number]}.",
            findings=(Finding(kind="missing", expected=CITIES[number]),),
        )
        for number, example in enumerate(orders())
    ]
    found = patch(inner)
    assert found is not None
    assert found.value == "The home city from the input."


def test_nothing_is_proposed_where_no_reference_shows_the_field() -> None:
    inner = [
        StepExample(
            case_id=f"case {number}",
            step_id="desk",
            input=f"(city: {CITIES[number]})",
            output='{"place": "?"}',
            passed=False,
            expected=f"It is {CITIES[number]}.",
        )
        for number in range(5)
    ]
    assert patch(inner) is None
    assert patch([]) is None


@pytest.mark.parametrize("family", sorted(set(DESCRIPTIONS) - {"source"}))
def test_the_simulated_model_understands_each_description(family: str) -> None:
    parameters, meanings = SAMPLES[family]
    for sentence in describe_field(family, parameters):
        assert not meanings.isdisjoint(read_description(f"The topic. {sentence}"))


@pytest.mark.parametrize("name", ["home city", "bought", "date added"])
def test_the_simulated_model_finds_the_described_field(name: str) -> None:
    task = read_task([Message("user", "Hello. (city: Oslo; home city: Lyon; bought: lamp; date: 5; date added: 7)")])
    for sentence in describe_field("source", (name,)):
        assert find_described_field(sentence, task) == name.replace(" ", "_")
