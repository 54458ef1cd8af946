from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from pydantic import BaseModel, Field

from promptiter.llm.messages import Message, ModelReply, ModelRequest, ToolRequest, ToolSpec
from promptiter.offline.model.simulated import SimulatedModel, chance_of_compliance, count_tokens
from traces.model import Json

RECORD = {"order_id": "A-17", "date": "2026-03-05", "amount": 1234.5, "city": "Berlin"}
SEARCH = ToolSpec(
    "search",
    "Searches the orders.",
    {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
)
WEATHER = ToolSpec(
    "get_weather",
    "Use this when the user asks about the weather of a city.",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city"],
    },
)


def request(instruction: str, task: Json, **more: Json) -> ModelRequest:
    system = (Message("system", instruction),) if instruction else ()
    user = Message("user", task if isinstance(task, str) else json.dumps(task))
    return ModelRequest(model="simulated", messages=(*system, user, *more.pop("then", ())), **more)


async def ask(
    instruction: str, task: Json, *, repeat: int = 0, knowledge: dict[str, str] | None = None, **more: Json
) -> ModelReply:
    return await SimulatedModel(compliance=1.0, knowledge=knowledge)(request(instruction, task, **more), repeat=repeat)


async def share(model: SimulatedModel, asked: ModelRequest, wanted: str, *, repeats: int = 400) -> float:
    replies = [await model(asked, repeat=repeat) for repeat in range(repeats)]
    return sum(wanted in reply.text for reply in replies) / repeats


async def test_uninstructed_it_says_one_short_english_sentence_and_drops_the_fields() -> None:
    reply = await ask("You are a clerk.", {**RECORD, "request": "I want a refund for my shoes."})
    assert reply.text == "This is about I want a refund for my shoes."
    assert (await ask("You are a clerk.", RECORD)).text == "This is about order id, date, amount."


async def test_uninstructed_it_writes_dates_in_words_and_numbers_plain() -> None:
    reply = await ask("Include the date and the amount.", RECORD)
    assert reply.text == "This is about order id, date, amount (date: March 5, 2026; amount: 1234.5)."


async def test_a_long_topic_is_cut_short() -> None:
    text = " ".join(f"word{number}" for number in range(60))
    assert (await ask("You are a clerk.", text)).text.split()[-1] == "word15."


@pytest.mark.parametrize(
    "task",
    [
        RECORD,
        "order_id: A-17\ncity: Berlin",
        "The customer is angry (order id: A-17; city: Berlin).",
        "Where is my kettle? order id: A-17, city: Berlin",
        'Here it is:\n```json\n{"order": {"id": "A-17"}, "customer": {"city": "Berlin"}}\n```',
        "- Order ID: A-17\n- City: Berlin",
    ],
)
async def test_fields_are_read_however_they_are_written(task: Json) -> None:
    reply = await ask("Include the order id and the city.", task)
    assert "A-17" in reply.text
    assert "Berlin" in reply.text


async def test_a_field_passes_through_a_chain_of_models_only_if_each_carries_it() -> None:
    carry = "Pass all fields on."
    first = await ask(carry, {**RECORD, "request": "I want a refund."})
    second = await ask(carry, first.text)
    third = await ask("Extract only the order id.", second.text)
    assert third.text == "A-17"
    lazy = await ask("You are a planner.", second.text)
    assert "A-17" not in (await ask(carry, lazy.text)).text


async def test_the_outputs_of_several_nodes_are_read_by_their_names() -> None:
    task = "planner: a refund case\n\nresearcher: This is about I want a refund (order id: A-17; name: Ada)."
    reply = await ask("Include the name and the order id.", task)
    assert reply.text == "This is about I want a refund (name: Ada; order id: A-17)."


async def test_the_question_itself_can_be_carried_along() -> None:
    reply = await ask("Keep the question in your output.", "What is the capital of Atlantis?")
    assert "request: What is the capital of Atlantis?" in reply.text


async def test_a_date_that_was_carried_along_can_be_written_in_any_style_later() -> None:
    first = await ask("Include the date.", RECORD)
    assert "2026-03-05" in (await ask("Include the date. Write dates as YYYY-MM-DD.", first.text)).text


async def test_without_a_system_message_the_user_message_is_the_instruction() -> None:
    reply = await ask("", "Reply in German. What is the capital of France?", knowledge={"capital of france": "Paris"})
    assert reply.text == "Die Antwort ist Paris."


async def test_user_messages_are_not_instructions_if_there_is_a_system_message() -> None:
    reply = await ask("You are a clerk.", "Reply in German.")
    assert reply.text == "This is about Reply in German."


async def test_knowledge_answers_whatever_the_case_of_its_phrase() -> None:
    reply = await ask("", "what is the Capital of  FRANCE?", knowledge={"Capital of France": "Paris"})
    assert reply.text == "The answer is Paris."


async def test_without_knowledge_it_is_vague_or_makes_something_up() -> None:
    texts = {
        (await ask("You are a clerk.", "What is the capital of Atlantis?", repeat=repeat)).text for repeat in range(40)
    }
    assert "That depends on the circumstances." in texts
    assert any(text.startswith("It is probably ") for text in texts)
    assert not any("unknown" in text for text in texts)


async def test_evidence_in_the_messages_is_knowledge() -> None:
    task = "What is the capital of Atlantis?\n[d1] Atlantis has beaches.\n[d2] The capital of Atlantis is Poseidonis."
    assert (await ask("Give only the value.", task)).text == "Poseidonis"


async def test_the_reply_is_a_function_of_request_repeat_and_seed() -> None:
    asked = request("Reply in German.", "What is the capital of Atlantis?")
    assert await SimulatedModel(seed=3)(asked, repeat=7) == await SimulatedModel(seed=3, latency_s=0.001)(
        asked, repeat=7
    )
    texts = [(await SimulatedModel(seed=seed)(asked)).text for seed in range(30)]
    assert len(set(texts)) > 3
    assert [(await SimulatedModel()(asked, seed=seed)).text for seed in range(30)] == texts
    assert [(await SimulatedModel(seed=5)(asked, seed=seed)).text for seed in range(30)] == texts[5:6] * 30


@pytest.mark.slow
def test_another_process_gives_the_same_replies() -> None:
    program = (
        "import asyncio\nfrom tests.offline.model.test_simulated import many_texts\nprint(asyncio.run(many_texts()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == asyncio.run(many_texts())


async def many_texts() -> str:
    model = SimulatedModel(compliance=0.5, seed=1)
    asked = (
        request("Include the order id. Reply in German. Use JSON. Be polite. Choose one of: a, b, c.", RECORD),
        request("Write in upper case. Reply in German. Reply in French.", "What is the capital of Atlantis?"),
        request("Call the search tool.", RECORD, tools=(SEARCH, WEATHER)),
        request("", RECORD, schema=Ticket.model_json_schema()),
    )
    return repr([await model(one, repeat=repeat) for one in asked for repeat in range(10)])


async def test_repeats_differ_below_full_compliance() -> None:
    asked = request("Include the order id.", RECORD)
    texts = {(await SimulatedModel(compliance=0.5)(asked, repeat=repeat)).text for repeat in range(30)}
    assert len(texts) == 2
    assert len({(await SimulatedModel(compliance=1.0)(asked, repeat=repeat)).text for repeat in range(30)}) == 1


def test_the_chance_of_compliance_is_below_one_and_falls_with_length_and_rules() -> None:
    assert chance_of_compliance(0.98, characters=2_000, rules=6) == 0.98
    assert chance_of_compliance(0.98, characters=12_000, rules=6) == pytest.approx(0.98 * 0.9)
    assert chance_of_compliance(0.98, characters=2_000, rules=26) == pytest.approx(0.98 * 0.9)
    assert chance_of_compliance(0.98, characters=10**9, rules=10**9) == pytest.approx(0.98 * 0.25)


@pytest.mark.long
async def test_rules_are_followed_as_often_as_the_chance_says() -> None:
    model = SimulatedModel()
    rule = "Include the order id."
    others = " ".join(f"Include the word 'w{number}'." for number in range(60))
    short = await share(model, request(rule, RECORD), "A-17")
    long = await share(model, request(f"{rule} {'The shop sells shoes. ' * 1_000}", RECORD), "A-17")
    crowded = await share(model, request(f"{rule} {others}", RECORD), "A-17")
    assert short == pytest.approx(0.98, abs=0.02)
    assert long == pytest.approx(0.98 * 0.8, abs=0.06)
    assert crowded == pytest.approx(0.98 * (1 - 0.005 * 55), abs=0.06)


async def test_of_contradicting_rules_one_is_followed_at_random() -> None:
    asked = request("Reply in German. Reply in French.", "What is the capital of France?")
    model = SimulatedModel(compliance=1.0, knowledge={"capital of france": "Paris"})
    german, french = await share(model, asked, "Die Antwort"), await share(model, asked, "La réponse")
    assert german + french == 1.0
    assert 0.4 < german < 0.6


async def test_labels_come_from_the_task_then_from_knowledge_then_by_chance() -> None:
    labels = "Choose one of: refund, exchange, reject."
    assert (await ask(labels, "I want an exchange.")).text == "exchange"
    assert (await ask(labels, "It is too small.", knowledge={"too small": "exchange"})).text == "exchange"
    assert {(await ask(labels, "It is too small.", repeat=repeat)).text for repeat in range(40)} == {
        "refund",
        "exchange",
        "reject",
    }


class Item(BaseModel):
    name: str = Field(max_length=20)
    price: float = Field(gt=0, le=10)


class Ticket(BaseModel):
    order_id: str
    decision: Literal["accept", "reject", "refund"]
    amount: float
    bought: date
    urgent: bool
    tags: list[str] = Field(min_length=2, max_length=3)
    items: list[Item]
    parent: Ticket | None = None
    rating: int = Field(ge=1, le=5)
    note: str | None = None


async def test_a_schema_is_answered_with_json_that_fits_it() -> None:
    schema = Ticket.model_json_schema()
    reply = await ask("You are a clerk.", {**RECORD, "request": "I want a refund."}, schema=schema)
    ticket = Ticket.model_validate_json(reply.text)
    assert ticket.order_id == "A-17"
    assert ticket.decision == "refund"
    assert ticket.amount == 1234.5
    assert ticket.bought == date(2026, 3, 5)


async def test_the_description_of_a_field_says_how_its_values_are_written() -> None:
    def describe(description: str) -> dict[str, Json]:
        field = {"anyOf": [{"type": "string"}, {"type": "null"}], "description": description}
        return {"type": "object", "properties": {"date": field}}

    instruction = "Write dates as YYYY-MM-DD."
    for description, written in (("Write dates as DD.MM.YYYY.", "05.03.2026"), ("When it was bought.", "2026-03-05")):
        reply = await ask(instruction, RECORD, schema=describe(description))
        assert json.loads(reply.text) == {"date": written}


async def test_the_first_value_of_an_enumeration_is_taken_when_the_task_names_none() -> None:
    reply = await ask("", "Hello there.", schema=Ticket.model_json_schema())
    assert Ticket.model_validate_json(reply.text).decision == "accept"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": {}}, {}),
        ({"const": 7}, 7),
        ({"type": ["null", "integer"], "maximum": -3}, -3),
        ({"type": "number", "exclusiveMinimum": 2000}, 2000.000001),
        ({"type": "null"}, None),
    ],
)
async def test_odd_schemas_are_answered_too(schema: dict[str, Json], value: Json) -> None:
    assert json.loads((await ask("", RECORD, schema=schema)).text) == value


async def test_a_tool_is_called_when_the_instruction_says_so() -> None:
    reply = await ask("Call the search tool. Set query to the order id.", RECORD, tools=(WEATHER, SEARCH))
    (call,) = reply.tool_requests
    assert (call.name, call.arguments) == ("search", {"query": "A-17"})
    assert reply.text == ""
    assert reply.finish_reason == "tool_calls"
    again = await ask("Call the search tool. Set query to the order id.", RECORD, tools=(WEATHER, SEARCH))
    assert again.tool_requests[0].id == call.id


async def test_no_tool_is_called_unasked() -> None:
    assert (await ask("You are a clerk.", RECORD, tools=(SEARCH,))).tool_requests == ()


async def test_a_description_that_says_when_invites_a_call_for_tasks_of_that_kind() -> None:
    reply = await ask("You are a clerk.", "How is the weather? (city: Paris)", tools=(SEARCH, WEATHER))
    (call,) = reply.tool_requests
    assert (call.name, call.arguments) == ("get_weather", {"city": "Paris"})
    assert (await ask("You are a clerk.", "I want a refund.", tools=(SEARCH, WEATHER))).tool_requests == ()
    forbidden = await ask("Do not call any tool.", "How is the weather in Paris?", tools=(SEARCH, WEATHER))
    assert forbidden.tool_requests == ()


async def test_arguments_are_filled_as_the_instruction_says() -> None:
    instruction = "Use the weather tool. Set the unit argument to 'fahrenheit'."
    reply = await ask(instruction, RECORD, tools=(SEARCH, WEATHER))
    assert reply.tool_requests[0].arguments == {"city": "Berlin", "unit": "fahrenheit"}


async def test_two_tools_can_be_called_at_once_or_one_after_the_other() -> None:
    both = await ask("Call the search and weather tools.", RECORD, tools=(SEARCH, WEATHER))
    assert [call.name for call in both.tool_requests] == ["search", "get_weather"]
    assert len({call.id for call in both.tool_requests}) == 2
    instruction = "Call the search tool. Then call the weather tool."
    searched = (
        Message("assistant", "", (ToolRequest("c1", "search", {"query": "A-17"}),)),
        Message("tool", "The order is on its way.", tool_request_id="c1"),
    )
    reply = await ask(instruction, RECORD, tools=(SEARCH, WEATHER), then=searched)
    assert [call.name for call in reply.tool_requests] == ["get_weather"]


@pytest.mark.parametrize(
    ("result", "answer"),
    [("The weather is cold and wet.", "cold and wet"), ('{"weather": "18°C", "wind": "calm"}', "18°C")],
)
async def test_a_tools_result_is_used_in_the_answer_and_the_tool_is_not_called_again(result: str, answer: str) -> None:
    called = (
        Message("assistant", "", (ToolRequest("c1", "get_weather", {"city": "Paris"}),)),
        Message("tool", result, tool_request_id="c1"),
    )
    reply = await ask(
        "Call the weather tool. Give only the answer.", "How is the weather in Paris?", tools=(WEATHER,), then=called
    )
    assert reply.tool_requests == ()
    assert reply.text == answer


async def test_usage_counts_words_and_marks_and_prices_them() -> None:
    asked = request("Reply in German.", "What is the capital?")
    reply = await SimulatedModel(price_per_token_usd=0.5)(asked)
    assert reply.usage.input_tokens == count_tokens("Reply in German. What is the capital?") == 9
    assert reply.usage.output_tokens == count_tokens(reply.text)
    assert reply.usage.cost_usd == reply.usage.tokens * 0.5
    free = await SimulatedModel()(asked)
    assert free.usage.cost_usd == 0.0


async def test_max_tokens_is_kept() -> None:
    reply = await ask("Write at least 50 words.", "Hello there.", options={"max_tokens": 7})
    assert reply.usage.output_tokens == 7
    assert reply.finish_reason == "length"
    assert (await ask("You are a clerk.", "Hello there.", options={"max_tokens": 700})).finish_reason == "stop"


async def test_latency_is_waited_for() -> None:
    start = time.monotonic()
    await SimulatedModel(latency_s=0.05)(request("", "Hello."))
    assert time.monotonic() - start >= 0.05


@pytest.mark.slow
async def test_strange_requests_are_answered_too() -> None:
    for messages in ((), (Message("system", ""),), (Message("user", ""),), (Message("assistant", "Hi"),)):
        reply = await SimulatedModel()(ModelRequest(model="simulated", messages=messages))
        assert reply.finish_reason == "stop"
    for text in ("[" * 10_000, '{"a": ' * 5_000, "(a: " * 5_000, "-" * 10_000, "'" * 5_000):
        assert (await ask("Include the order id. Use at most 1 word.", text)).finish_reason == "stop"


def test_a_compliance_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match=r"compliance must be a probability, not 1\.5"):
        SimulatedModel(compliance=1.5)


async def test_a_list_with_as_many_items_as_names_has_each_once() -> None:
    item = {
        "type": "object",
        "properties": {"id": {"enum": ["a", "b", "c"]}, "passed": {"type": "boolean"}},
        "required": ["id", "passed"],
    }
    schema = {
        "type": "object",
        "properties": {"verdicts": {"type": "array", "items": item, "minItems": 3, "maxItems": 3}},
    }
    request = ModelRequest(model="simulated", messages=(Message("user", "Judge it."),), schema=schema)
    reply = await SimulatedModel()(request)
    assert [verdict["id"] for verdict in json.loads(reply.text)["verdicts"]] == ["a", "b", "c"]
