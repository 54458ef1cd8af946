"""Ordinary wordings of a classification and of a route are understood, whatever the labels are."""

from __future__ import annotations

import pytest

from promptiter.llm.messages import Message, ModelRequest
from promptiter.offline.model.simulated import SimulatedModel

WORDINGS = (
    'Answer "{a}" if the input mentions "{x}". Otherwise answer "{b}".',
    "Answer {a} if the input mentions {x}, otherwise {b}.",
    'If the input mentions "{x}", answer "{a}"; otherwise answer "{b}".',
    "If the customer mentions {x}, reply with {a}. Else reply with {b}.",
    'The label is "{a}" if the input mentions "{x}". In all other cases it is "{b}".',
    "Choose one of: {a}, {b}. It is \"{a}\" if the input mentions '{x}'.",
    'Choose one of: {b}, {a}. Answer "{a}" if the input mentions "{x}".',
    'Answer "{a}" if the input mentions "{x}" and "{b}" if it mentions "{y}".',
    'If the input mentions "{x}", answer "{a}"; if it mentions "{y}", answer "{b}".',
    'Answer "{b}" if the input does not mention "{x}". Otherwise answer "{a}".',
    'Classify the request as {a} or {b}. It is "{a}" if it mentions "{x}". It is "{b}" if it mentions "{y}".',
    "Answer {a} or {b}. Choose {a} when the request is about {x}. Choose {b} when it is about {y}.",
    'Route the request to "{a}" if it mentions "{x}", and to "{b}" if it mentions "{y}".',
    'Send it to {a} when the input mentions "{x}". By default, send it to {b}.',
    "Route the message to the {a} team if it contains {x}. Route it to {b} otherwise.",
    "Decide whether the message is about {a} or {b}. If it mentions {x}, answer {a}. Otherwise answer {b}.",
)
TOPICS = (
    {"a": "billing", "x": "invoice", "b": "shipping", "y": "parcel"},
    {"a": "urgent", "x": "smoke", "b": "routine", "y": "dust"},
    {"a": "spam", "x": "lottery", "b": "ham", "y": "meeting"},
)


async def ask(instruction: str, text: str, *, repeat: int = 0, knowledge: dict[str, str] | None = None) -> str:
    request = ModelRequest(model="simulated", messages=(Message("system", instruction), Message("user", text)))
    return (await SimulatedModel(compliance=1.0, knowledge=knowledge)(request, repeat=repeat)).text


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic["a"])
@pytest.mark.parametrize("wording", WORDINGS)
async def test_a_classification_is_understood_in_ordinary_wordings(wording: str, topic: dict[str, str]) -> None:
    instruction = wording.format(**topic)
    for number in range(5):
        assert await ask(instruction, f"I request help: the {topic['x']} number {number} is odd.") == topic["a"]
        assert await ask(instruction, f"I request help: the {topic['y']} number {number} is odd.") == topic["b"]


async def test_the_name_of_a_field_meets_a_condition() -> None:
    instruction = 'Answer "pharmacy" if the input mentions "medicine". Otherwise answer "booking".'
    assert await ask(instruction, "Do you still have this? (medicine: amoxil)") == "pharmacy"
    assert await ask(instruction, "May I come by? (day: Monday)") == "booking"


@pytest.mark.parametrize(
    "instruction",
    [
        "Classify the request as billing or shipping.",
        "Route the request to billing or shipping.",
        "Decide whether the request is about billing or shipping.",
        "Choose between billing and shipping.",
        'Answer "billing" or "shipping".',
        "Answer with exactly one word: billing or shipping.",
    ],
)
async def test_labels_without_conditions_are_guessed_unless_the_model_knows_what_they_mean(instruction: str) -> None:
    knowledge = {"invoice": "billing", "parcel": "shipping"}
    known = [await ask(instruction, f"My {word} is lost.", knowledge=knowledge) for word in knowledge]
    assert known == ["billing", "shipping"]
    guesses = {await ask(instruction, "My invoice is lost.", repeat=repeat) for repeat in range(20)}
    assert guesses == {"billing", "shipping"}


@pytest.mark.parametrize(
    "instruction",
    [
        'Say "unknown" if the id is missing.',
        "If the customer is angry, answer politely. Otherwise answer briefly.",
        "Use the search tool if the customer asks for an order. Otherwise answer directly.",
    ],
)
async def test_a_condition_alone_makes_no_classification(instruction: str) -> None:
    assert "lamp" in await ask(instruction, "My lamp is broken.")
