from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from promptiter.backprop.llm.attributor import MOST_UNUSABLE, UNKNOWN_CONTEXT, LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.errors import BadAnswerError, ModelError, SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.stages.contracts import AttributeRequest, Attributor, BackwardResult
from tests.backprop.llm.test_trace_prompt import ATTRIBUTE_REQUEST, MISSING_ID, chain
from tests.backprop.test_propagate import request_of, step
from traces import Snapshot
from traces.model import Json


def gradient(at: str | None = "T3", surface: str | None = "S3", **fields: Json) -> dict[str, Json]:
    base = {"step": at, "surface": surface, "text": "Repeat the id.", "severity": "P0", "category": "format"}
    return {**base, "confidence": 0.5, **fields}


def answer(*gradients: Json) -> str:
    return json.dumps({"diagnosis": "why", "gradients": list(gradients)})


def attributor(*answers: str, **options: Any) -> tuple[LLMAttributor, ScriptedModel]:
    model = ScriptedModel(answers)
    return LLMAttributor("m", gateway=Gateway(models={"m": model}), **options), model


def list_blame(results: list[BackwardResult]) -> list[tuple[str, str]]:
    return [(each.step_id, each.surface_id) for result in results for each in result.gradients]


async def test_gradients_carry_where_they_come_from_and_what_was_found() -> None:
    stage, model = attributor(answer(gradient(), gradient("T1", "S2")))
    results = await stage.attribute(ATTRIBUTE_REQUEST)
    assert [result.step_id for result in results] == ["mailer", "writer", "router"]
    (found,) = results[1].gradients
    assert (found.surface_id, found.case_id, found.step_id) == ("writer#instruction", "c1", "writer")
    assert (found.repeat, found.turn, found.confidence) == (2, 1, 0.5)
    assert (found.text, found.severity, found.category) == ("Repeat the id.", "P0", "format")
    assert found.findings == (MISSING_ID,)
    assert all((result.packets, result.dropped, result.error) == ((), 0, None) for result in results)
    assert len(model.requests) == 1
    fits: Attributor = stage
    assert isinstance(fits, Attributor)


async def test_the_model_sees_the_ids_that_it_may_use_as_enums() -> None:
    stage, model = attributor(answer())
    await stage.attribute(ATTRIBUTE_REQUEST)
    schema = model.requests[0].schema
    assert schema is not None
    assert list(schema["properties"]) == ["diagnosis", "gradients"]
    fields = schema["properties"]["gradients"]["items"]["properties"]
    assert fields["step"]["enum"] == ["T1", "T2", "T3"]
    assert fields["surface"]["enum"] == ["S1", "S2", "S3"]


async def test_unknown_ids_are_dropped_and_counted_without_another_call() -> None:
    made_up = [gradient("T9"), gradient("T3", "S9"), gradient("T1", "S3"), gradient("T4", "S3"), gradient("mail", "S3")]
    stage, _ = attributor(answer(*made_up, gradient("t3", "s3")))
    results = await stage.attribute(ATTRIBUTE_REQUEST)
    assert list_blame(results) == [("writer", "writer#instruction")]
    assert [result.dropped for result in results] == [5, 0]


async def test_unknown_ids_are_counted_even_if_nothing_is_blamed() -> None:
    stage, _ = attributor(answer(gradient("T9")))
    results = await stage.attribute(ATTRIBUTE_REQUEST)
    assert [(result.step_id, result.dropped) for result in results] == [("mailer", 1), ("writer", 0)]


async def test_full_ids_are_understood_too() -> None:
    stage, _ = attributor(answer(gradient("writer", "writer#instruction")))
    assert list_blame(await stage.attribute(ATTRIBUTE_REQUEST)) == [("writer", "writer#instruction")]


@pytest.mark.parametrize("blank", ["", " ", None])
async def test_blank_ids_are_filled_in_if_only_one_surface_is_possible(blank: str | None) -> None:
    said = [gradient("T1", blank), gradient(blank, "S2"), gradient("T3", blank), gradient(blank, "S9")]
    stage, _ = attributor(answer(*said))
    results = await stage.attribute(ATTRIBUTE_REQUEST)
    assert list_blame(results) == [("writer", "router#instruction"), ("router", "router#instruction")]
    assert results[0].dropped == 2


async def test_unknown_severities_and_categories_fall_back_to_the_worst_loss_that_reaches_the_step() -> None:
    odd = gradient(severity="high", category="style", confidence=7)
    stage, _ = attributor(answer(odd))
    (found,) = (await stage.attribute(ATTRIBUTE_REQUEST))[1].gradients
    assert (found.severity, found.category, found.confidence) == ("P1", "format", 1.0)


async def test_a_step_gets_only_the_losses_downstream_of_it() -> None:
    request = request_of([step("left"), step("right"), step("end", "right")], losses=["left", "end"])
    losses = request.case_loss.losses
    other = replace(losses[1], findings=(MISSING_ID,), severity="P3")
    request = replace(request, case_loss=replace(request.case_loss, losses=(losses[0], other)))
    stage, _ = attributor(answer(gradient("right", "right#instruction", severity="?")))
    results = await stage.attribute(request)
    (found,) = [each for result in results for each in result.gradients]
    assert (found.findings, found.severity) == ((MISSING_ID,), "P3")


async def test_without_blamable_surfaces_the_model_is_not_asked() -> None:
    stage, _ = attributor()
    assert await stage.attribute(replace(ATTRIBUTE_REQUEST, targets=frozenset())) == []


async def test_an_answer_that_does_not_fit_is_shown_to_the_model_as_wrong() -> None:
    stage, model = attributor("It is S1.", '{"blame": 1}', answer(gradient(text=" ")), answer(gradient()))
    assert list_blame(await stage.attribute(ATTRIBUTE_REQUEST)) == [("writer", "writer#instruction")]
    corrections = [request.messages[-1].content for request in model.requests[1:]]
    assert "it holds no JSON" in corrections[0]
    assert "it has no gradients; give an empty list" in corrections[1]
    assert "gradients.0.text" in corrections[2]


async def test_a_model_that_cannot_answer_is_a_model_error() -> None:
    stage, _ = attributor(*["no"] * 4)
    with pytest.raises(BadAnswerError, match="no usable answer in 4 tries") as caught:
        await stage.attribute(ATTRIBUTE_REQUEST)
    assert isinstance(caught.value, ModelError)


def different_requests(count: int) -> list[AttributeRequest]:
    loss = ATTRIBUTE_REQUEST.case_loss
    return [replace(ATTRIBUTE_REQUEST, case_loss=replace(loss, input=f"Question {n}.")) for n in range(count)]


async def test_a_model_that_never_answers_with_json_is_given_up_soon() -> None:
    model = ScriptedModel(lambda _: "I am sorry, I cannot do that.")
    stage = LLMAttributor("m", gateway=Gateway(models={"m": model}))
    found = await stage.attribute_batch(different_requests(12))
    assert len(model.requests) == (1 + MOST_UNUSABLE) * 4, "together, and about some traces alone"
    said = "'m' gave no usable answer in 4 tries: it holds no JSON; the last one is 'I am sorry, I cannot do that.'"
    assert [result.error for [result] in found] == [f"BadAnswerError: {said}"] * 12


async def test_a_model_that_can_answer_about_single_traces_is_asked_about_each() -> None:
    def answers(request: ModelRequest) -> str:
        shown = " ".join(message.content for message in request.messages)
        return answer(gradient()) if shown.count("Question ") == 1 else "no"

    model = ScriptedModel(answers)
    stage = LLMAttributor("m", gateway=Gateway(models={"m": model}))
    found = await stage.attribute_batch(different_requests(5))
    assert [list_blame(each) for each in found] == [[("writer", "writer#instruction")]] * 5
    assert len(model.requests) == 4 + 5


async def test_a_custom_prompt_is_used_as_it_is() -> None:
    def render(request: AttributeRequest) -> tuple[Message, ...]:
        return (Message("user", f"Who is to blame for {request.case_loss.input}? " + "x" * 900_000),)

    stage, model = attributor(answer(), render=render)
    await stage.attribute(ATTRIBUTE_REQUEST)
    assert model.requests[0].messages == render(ATTRIBUTE_REQUEST)


@pytest.mark.slow
async def test_a_prompt_has_at_most_the_tokens_it_was_given() -> None:
    stage, model = attributor(answer(), max_prompt_tokens=2_500)
    await stage.attribute(chain(300, output=Snapshot("word " * 3_000)))
    assert len(model.requests[0].text) < 3 * 2_500
    with pytest.raises(SetupError, match=r"max_prompt_tokens of the backwarder is 1,999"):
        LLMAttributor("m", max_prompt_tokens=1_999)


@pytest.mark.long
def test_without_a_limit_a_prompt_may_fill_most_of_the_context_of_the_model() -> None:
    plain = Gateway(models={"gpt-4o-mini": ScriptedModel([])})
    assert LLMAttributor("gpt-4o", gateway=Gateway()).max_prompt_tokens == 128_000 * 3 // 4
    assert LLMAttributor("openai/gpt-4o", gateway=Gateway()).max_prompt_tokens == 128_000 * 3 // 4
    assert LLMAttributor("openai/unheard-of", gateway=Gateway()).max_prompt_tokens == UNKNOWN_CONTEXT * 3 // 4
    assert LLMAttributor("gpt-4o-mini", gateway=plain).max_prompt_tokens == UNKNOWN_CONTEXT * 3 // 4
    assert LLMAttributor("gpt-4o", gateway=Gateway(), max_prompt_tokens=9_000).max_prompt_tokens == 9_000


class Slow:
    """Gives the same answer to every question, once all questions have been asked."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002
        self.requests.append(request)
        await asyncio.sleep(0.01)
        return ModelReply(text=self.text)


def same_trace_of(case_id: str, *, repeat: int = 0) -> AttributeRequest:
    case = replace(ATTRIBUTE_REQUEST.case_loss, case_id=case_id, repeat=repeat, trace_digest=f"digest of {case_id}")
    trace = replace(ATTRIBUTE_REQUEST.trace, id=f"trace of {case_id}")
    return replace(ATTRIBUTE_REQUEST, case_loss=case, trace=trace)


@pytest.mark.parametrize("is_whole", [True, False])
async def test_equal_questions_of_different_cases_are_one_call_even_at_the_same_time(is_whole: bool) -> None:
    if is_whole:
        model = Slow(answer(gradient()))
    else:
        blame = {"surface": "S1", "text": "Repeat the id."}
        packets = [{"predecessor": f"P{number}", "text": "It lacks the id."} for number in (1, 2)]
        model = Slow(json.dumps({"gradients": [blame], "packets": packets}))
    gateway = Gateway(models={"m": model})
    whole, walk = LLMAttributor("m", gateway=gateway), StepwiseAttributor(LLMBackwarder("m", gateway=gateway))
    stage = whole if is_whole else walk
    first, second, again = await asyncio.gather(
        stage.attribute(same_trace_of("c1")),
        stage.attribute(same_trace_of("c2")),
        stage.attribute(same_trace_of("c1", repeat=3)),
    )
    asked = len(model.requests)
    assert asked == (1 if is_whole else 3)
    later = await stage.attribute(same_trace_of("c3"))
    assert len(model.requests) == asked
    assert list_blame(first) == list_blame(second) == list_blame(again) == list_blame(later) != []
    found = [
        [(each.case_id, each.repeat) for each in results[1].gradients] for results in (first, second, again, later)
    ]
    assert found == [[("c1", 0)], [("c2", 0)], [("c1", 3)], [("c3", 0)]]
    spent = gateway.ledger.snapshot().by_role()["backwarder"]
    assert (spent.calls, spent.cache_hits) == (asked, 3 * asked)
