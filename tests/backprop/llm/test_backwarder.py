from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.errors import BadAnswerError, ModelError
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.stages.contracts import BackwardRequest, GradientPacket
from tests.backprop.llm.test_prompts import BACKWARD_REQUEST, MISSING_ID
from tests.worlds.model_server import CONTENT_FAULTS, LoopbackServer, run_server
from traces import Snapshot
from traces.model import Json

TWO_SURFACES = replace(BACKWARD_REQUEST, blamable=("writer#instruction", "writer#parameter.temperature"))


def gradient(surface: str | None = "S1", **fields: Json) -> dict[str, Json]:
    base = {"surface": surface, "text": "Repeat the id.", "severity": "P0", "category": "format", "confidence": 0.5}
    return {**base, **fields}


def packet(predecessor: str | None = "P1", **fields: Json) -> dict[str, Json]:
    base = {"predecessor": predecessor, "text": "It lacks the id.", "severity": "P1", "category": "knowledge"}
    return {**base, **fields}


def answer(*, gradients: list[Json] | None = None, packets: list[Json] | None = None) -> str:
    return json.dumps({"diagnosis": "why", "gradients": gradients or [], "packets": packets or []})


def backwarder(*answers: str, **options: Any) -> tuple[LLMBackwarder, ScriptedModel]:
    model = ScriptedModel(answers)
    return LLMBackwarder("m", gateway=Gateway(models={"m": model}), **options), model


def enum_of(schema: Json, place: str, name: str) -> list[str]:
    found: list[str] = schema["properties"][place]["items"]["properties"][name]["enum"]
    return found


async def test_gradients_and_packets_carry_where_they_come_from_and_what_was_found() -> None:
    stage, model = backwarder(answer(gradients=[gradient()], packets=[packet("P2")]))
    result = await stage.backward(replace(BACKWARD_REQUEST, repeat=2, turn=1))
    (blamed,) = result.gradients
    assert (blamed.surface_id, blamed.case_id, blamed.step_id) == ("writer#instruction", "c1", "writer")
    assert (blamed.repeat, blamed.turn, blamed.confidence) == (2, 1, 0.5)
    assert (blamed.text, blamed.severity, blamed.category) == ("Repeat the id.", "P0", "format")
    assert blamed.findings == (MISSING_ID,)
    (sent,) = result.packets
    assert (sent.source, sent.target, sent.text) == ("writer", "router", "It lacks the id.")
    assert (sent.severity, sent.category, sent.findings) == ("P1", "knowledge", (MISSING_ID,))
    assert (result.step_id, result.dropped, result.error) == ("writer", 0, None)
    assert len(model.requests) == 1


async def test_the_model_sees_the_ids_that_it_may_use_as_enums() -> None:
    stage, model = backwarder(answer())
    await stage.backward(TWO_SURFACES)
    schema = model.requests[0].schema
    assert enum_of(schema, "gradients", "surface") == ["S1", "S2"]
    assert enum_of(schema, "packets", "predecessor") == ["P1", "P2"]
    assert enum_of(schema, "gradients", "severity") == ["P0", "P1", "P2", "P3"]
    assert "wrong_tool" in enum_of(schema, "packets", "category")
    assert model.requests[0].digest == replace(model.requests[0]).digest


async def test_a_list_that_can_hold_nothing_is_not_asked_for() -> None:
    stage, model = backwarder(answer(packets=[packet()]))
    result = await stage.backward(replace(BACKWARD_REQUEST, predecessors=()))
    schema = model.requests[0].schema
    assert schema is not None
    assert list(schema["properties"]) == ["diagnosis", "gradients"]
    assert (result.packets, result.dropped) == ((), 1)


async def test_unknown_ids_are_dropped_and_counted_without_another_call() -> None:
    made_up = answer(gradients=[gradient("S9"), gradient("s1"), gradient("")], packets=[packet("mailer"), packet("")])
    stage, _ = backwarder(made_up)
    result = await stage.backward(TWO_SURFACES)
    assert [blamed.surface_id for blamed in result.gradients] == ["writer#instruction"]
    assert result.packets == ()
    assert result.dropped == 4


@pytest.mark.parametrize("blank", ["", " ", None])
async def test_an_id_that_is_left_blank_means_the_only_candidate(blank: str | None) -> None:
    one = replace(BACKWARD_REQUEST, predecessors=BACKWARD_REQUEST.predecessors[:1])
    stage, _ = backwarder(answer(gradients=[gradient(blank)], packets=[packet(blank)]))
    result = await stage.backward(one)
    assert [blamed.surface_id for blamed in result.gradients] == ["writer#instruction"]
    assert [sent.target for sent in result.packets] == ["router"]
    assert result.dropped == 0


async def test_full_ids_are_understood_too() -> None:
    stage, _ = backwarder(answer(gradients=[gradient("writer#instruction")], packets=[packet("lookup")]))
    result = await stage.backward(BACKWARD_REQUEST)
    assert (len(result.gradients), len(result.packets), result.dropped) == (1, 1, 0)


async def test_repeated_predecessors_become_one_packet_as_severe_as_the_worst() -> None:
    said = [
        packet("P1", text="No id.", severity="P2"),
        packet("P2"),
        packet("P1", text="No date.", severity="P0", category="format"),
        packet("P1", text="No id."),
    ]
    stage, _ = backwarder(answer(packets=said))
    first, second = (await stage.backward(BACKWARD_REQUEST)).packets
    assert (first.target, first.text, first.severity, first.category) == ("lookup", "No id.\nNo date.", "P0", "format")
    assert second.target == "router"


async def test_unknown_severities_and_categories_fall_back_to_the_worst_report() -> None:
    odd = gradient(severity="high", category="style", confidence=7)
    bare = {"surface": "S1", "text": "Repeat the id."}
    stage, _ = backwarder(answer(gradients=[odd, bare]))
    result = await stage.backward(BACKWARD_REQUEST)
    grades = [(blamed.severity, blamed.category, blamed.confidence) for blamed in result.gradients]
    assert grades == [("P0", "format", 1.0), ("P0", "format", 1.0)]


async def test_slips_in_an_answer_need_no_other_call() -> None:
    entry = gradient(severity="p2", category="Format", confidence=None)
    stage, model = backwarder(f"<think>{answer()}</think>" + json.dumps({"gradients": entry, "packets": None}))
    (blamed,) = (await stage.backward(BACKWARD_REQUEST)).gradients
    assert (blamed.severity, blamed.category, blamed.confidence) == ("P2", "format", 1.0)
    assert len(model.requests) == 1


async def test_findings_of_several_packets_travel_once() -> None:
    again = GradientPacket(source="x", target="writer", text="again", findings=(MISSING_ID,))
    stage, _ = backwarder(answer(gradients=[gradient()]))
    result = await stage.backward(replace(BACKWARD_REQUEST, incoming=(*BACKWARD_REQUEST.incoming, again)))
    assert result.gradients[0].findings == (MISSING_ID,)


async def test_a_step_with_nothing_to_blame_is_not_asked() -> None:
    stage, _ = backwarder()
    result = await stage.backward(replace(BACKWARD_REQUEST, blamable=(), predecessors=()))
    assert (result.gradients, result.packets, result.error) == ((), (), None)


async def test_an_answer_that_does_not_fit_is_shown_to_the_model_as_wrong() -> None:
    stage, model = backwarder("I think it is S1.", '{"blame": 1}', answer(gradients=[gradient(text=" ")]), answer())
    assert (await stage.backward(BACKWARD_REQUEST)).gradients == ()
    corrections = [request.messages[-1].content for request in model.requests[1:]]
    assert "it holds no JSON" in corrections[0]
    assert "neither gradients nor packets" in corrections[1]
    assert "gradients.0.text" in corrections[2]


async def test_a_model_that_cannot_answer_is_a_model_error() -> None:
    stage, _ = backwarder(*["no"] * 4)
    with pytest.raises(BadAnswerError, match="no usable answer in 4 tries") as caught:
        await stage.backward(BACKWARD_REQUEST)
    assert isinstance(caught.value, ModelError)


async def test_a_custom_prompt_is_used_as_it_is() -> None:
    def render(request: BackwardRequest) -> tuple[Message, ...]:
        return (Message("user", f"Who is to blame in {request.step.id}? " + "x" * 90_000),)

    stage, model = backwarder(answer(), render=render)
    await stage.backward(BACKWARD_REQUEST)
    assert model.requests[0].messages == render(BACKWARD_REQUEST)


async def test_calls_count_for_the_backwarder_and_its_node() -> None:
    stage, _ = backwarder(answer())
    await stage.backward(BACKWARD_REQUEST)
    assert stage.gateway is not None
    spent = stage.gateway.ledger.snapshot()
    assert (list(spent.by_role()), list(spent.by_node())) == (["backwarder"], ["writer"])


async def test_the_same_question_is_asked_once_whatever_the_repeat() -> None:
    stage, model = backwarder(answer(gradients=[gradient()]))
    first = await stage.backward(BACKWARD_REQUEST)
    second = await stage.backward(replace(BACKWARD_REQUEST, case_id="c2", repeat=1))
    assert (first.gradients[0].case_id, second.gradients[0].case_id) == ("c1", "c2")
    assert len(model.requests) == 1


def requests(count: int) -> list[BackwardRequest]:
    step = BACKWARD_REQUEST.step
    return [
        replace(BACKWARD_REQUEST, step=replace(step, output=Snapshot(f"answer {number}"))) for number in range(count)
    ]


@pytest.mark.slow
async def test_faults_of_a_real_server_change_no_result() -> None:
    def respond(body: dict[str, Any]) -> str:
        shown = body["messages"][1]["content"]
        number = shown.split('<data name="output">\nanswer ')[1].split("\n")[0]
        return answer(gradients=[gradient(text=f"Fix {number}.")], packets=[packet()])

    async def results(server: LoopbackServer) -> list[Any]:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
        retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
        gateway = Gateway(models={"openai/local": model}, retries=retries)
        stage = LLMBackwarder("openai/local", gateway=gateway, model_options={"temperature": 0})
        return await asyncio.gather(*map(stage.backward, requests(40)))

    with run_server(LoopbackServer(respond)) as server:
        expected = await results(server)
    with run_server(LoopbackServer(respond, fault_rate=0.5, seed=6)) as server:
        assert await results(server) == expected
        assert set(CONTENT_FAULTS) <= set(server.faults)
    assert expected[7].gradients[0].text == "Fix 7."
