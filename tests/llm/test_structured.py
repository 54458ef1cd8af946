from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from promptiter.errors import BadAnswerError, BudgetEndedError
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.structured import ask_for, parse_answer


class Verdict(BaseModel):
    score: float
    labels: list[str] = []


SHAPE = TypeAdapter(Verdict)
REQUEST = ModelRequest(model="m", messages=(Message("user", "How good is it?"),))
CUT = ModelReply(text='{"score": 0.', finish_reason="length")


async def ask(model: ScriptedModel, request: ModelRequest = REQUEST, **settings: Any) -> float:
    gateway = Gateway(models={"m": model}, **settings)
    return (await ask_for(SHAPE, request, CallSite(role="judge"), gateway)).score


def limits(model: ScriptedModel) -> list[object]:
    return [request.options["max_tokens"] for request in model.requests]


@pytest.mark.parametrize(
    "text",
    [
        '<think>maybe {"score": 0}</think>{"score": 0.5}',
        'First {"score": 0}, but then {"score": 0.5}.',
        '```json\n{"score": 0}\n```\nNo:\n```json\n{"score": 0.5}\n```',
        '{"score": 0.5} It is not {"score": "high"} and not {"other": 1} or {"score": ...}.',
        '{"answer": {"score": 0.5}}',
        '[{"score": 0.5}]',
        'The {name} of [Step 2] is good: {"score": 0.5, "labels": ["a\nb",],}',
    ],
)
async def test_the_last_json_that_fits_counts_without_another_call(text: str) -> None:
    model = ScriptedModel([text])
    assert await ask(model) == 0.5


async def test_a_repair_shows_the_answer_the_error_and_the_shape() -> None:
    model = ScriptedModel(['<think>hm</think>{"score": "high"}', '{"score": 0.5}'])
    assert await ask(model) == 0.5
    answer, correction = model.requests[1].messages[1:]
    assert answer == Message("assistant", '{"score": "high"}')
    assert correction == Message(
        "user",
        "That answer cannot be used: score: Input should be a valid number, unable to parse string as a number. "
        'Answer again with one JSON object like {"score": 0.5, "labels": ["..."]}, and nothing else.',
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I cannot help with that.", "it holds no JSON"),
        ("", "it is empty"),
        ('<think>maybe {"score": 0}', "it holds no JSON"),
        ('{"score": 0} or rather {"score": ', "its JSON is broken: Expecting value"),
        ('{"labels": 7} as [1] says', "score: Field required; labels: Input should be a valid list"),
    ],
)
async def test_each_unusable_answer_is_answered_with_its_problem_and_the_shape(text: str, problem: str) -> None:
    model = ScriptedModel([text, '{"score": 0.5}'])
    assert await ask(model) == 0.5
    answer, correction = model.requests[1].messages[1:]
    assert answer.content
    assert problem in correction.content
    assert 'one JSON object like {"score": 0.5,' in correction.content


async def test_an_answer_that_never_fits_is_a_typed_error() -> None:
    with pytest.raises(BadAnswerError, match="no usable answer in 4 tries: it holds no JSON; the last one is 'no'"):
        await ask(ScriptedModel(["no"] * 4))


async def test_an_answer_that_was_cut_off_is_asked_for_again_with_twice_the_limit() -> None:
    model = ScriptedModel([CUT, CUT, '{"score": "high"}', '{"score": 0.5}'])
    assert await ask(model, max_output_tokens=100) == 0.5
    assert limits(model) == [100, 200, 400, 400]
    correction = model.requests[1].messages[-1].content
    assert correction.startswith("Your answer was cut off at the limit of its length. Answer again from the start, and")
    assert "be shorter: one JSON object like" in correction


async def test_a_limit_of_the_request_is_doubled_too() -> None:
    model = ScriptedModel([CUT, '{"score": 0.5}'])
    request = ModelRequest(model="m", messages=REQUEST.messages, options={"max_tokens": 30})
    assert await ask(model, request) == 0.5
    assert limits(model) == [30, 60]


async def test_only_the_beginning_of_a_cut_answer_is_sent_back() -> None:
    model = ScriptedModel([ModelReply(text='{"score": "' + "x" * 20_000, finish_reason="length"), '{"score": 0.5}'])
    assert await ask(model) == 0.5
    assert len(model.requests[1].text) < 1_000


async def test_a_larger_limit_must_fit_into_the_budget() -> None:
    def bound(limit: int) -> Budget:
        return Budget(max_tokens=limit)

    model = ScriptedModel([CUT, '{"score": 0.5}'])
    with pytest.raises(BudgetEndedError):
        await ask(model, max_output_tokens=1_000, budget=bound(2_900))
    assert limits(model) == [1_000]
    assert await ask(ScriptedModel([CUT, '{"score": 0.5}']), max_output_tokens=1_000, budget=bound(6_000)) == 0.5


def test_a_cut_answer_counts_only_if_it_ends_with_its_json() -> None:
    def parse(text: str) -> float:
        return parse_answer(SHAPE, ModelReply(text=text, finish_reason="length")).score

    assert parse('{"score": 0.5}\n```') == 0.5
    for text in ('{"score": 0}. But on the other', '{"score": 0} or {"score": 0.', '<think>{"score": 0} or', ""):
        with pytest.raises(ValueError, match="it was cut off at the limit of its length"):
            parse(text)


async def test_a_cut_answer_from_the_cache_is_known_to_be_cut() -> None:
    model = ScriptedModel([CUT, '{"score": 0.5}'])
    gateway = Gateway(models={"m": model})
    for _ in range(2):
        assert (await ask_for(SHAPE, REQUEST, CallSite(role="judge"), gateway)).score == 0.5
    assert len(model.requests) == 2
