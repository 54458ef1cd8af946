from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from promptiter.backprop.llm.optimizer import LLMOptimizer, apply_edits, build_value_schema
from promptiter.backprop.llm.prompts import render_optimize
from promptiter.errors import BadAnswerError
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.messages import Message, ModelReply
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.stages.contracts import SignalPoint
from promptiter.stages.optimizer import OptimizeRequest
from promptiter.structure import Limits, Surface
from tests.backprop.llm.test_prompts import INSTRUCTION, OPTIMIZE_REQUEST, prompt_tokens
from tests.worlds.model_server import CONTENT_FAULTS, LoopbackServer, run_server
from traces.model import Json

BETTER = "You answer customers of a shop.\nBe brief and polite. Repeat the order id. Order: {order}"


def answer(value: Json, reason: str = "because") -> str:
    return json.dumps({"reason": reason, "value": value})


def optimizer(*answers: str | ModelReply, **options: Any) -> tuple[LLMOptimizer, ScriptedModel]:
    model = ScriptedModel(answers)
    return LLMOptimizer("m", gateway=Gateway(models={"m": model}), **options), model


def of(surface: Surface, **fields: Any) -> OptimizeRequest:
    return replace(OPTIMIZE_REQUEST, surface=surface, rejected=(), **fields)


def corrections(model: ScriptedModel) -> list[str]:
    return [request.messages[-1].content for request in model.requests[1:]]


async def test_a_patch_has_the_value_the_reason_and_the_cases_behind_it() -> None:
    stage, model = optimizer(answer(BETTER, " It names the order. "))
    patch = (await stage.optimize(OPTIMIZE_REQUEST)).patch
    assert patch is not None
    assert (patch.surface_id, patch.value, patch.reason) == ("writer#instruction", BETTER, "It names the order.")
    assert patch.evidence.cases == OPTIMIZE_REQUEST.signal.case_ids
    assert len(model.requests) == 1
    assert model.requests[0].options == {"max_tokens": Gateway().max_output_tokens}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        (json.dumps({"value": BETTER}), "reason: Field required"),
        (answer(BETTER, " "), "reason: String should have at least 1 character"),
        (answer(7), "it must be text, got 7"),
        (
            answer("You answer customers of a shop. {order}" + "x" * 600),
            "it has 639 characters, at most 600 are allowed",
        ),
        (answer("You answer customers of a shop."), "the placeholder {order} is missing"),
        (answer("Answer {order}"), "the locked part 'You answer customers of a shop.' is missing or changed"),
        (answer(" "), "the placeholder {order} is missing"),
        ('{"reason": "r", "value": "You answer customers of a shop. {order} \\ud83d"}', "not plain text or JSON"),
    ],
)
async def test_a_value_that_the_surface_rejects_is_repaired_by_the_model(wrong: str, problem: str) -> None:
    stage, model = optimizer(wrong, answer(BETTER))
    patch = (await stage.optimize(OPTIMIZE_REQUEST)).patch
    assert patch is not None
    assert patch.value == BETTER
    (correction,) = corrections(model)
    assert problem in correction


async def test_an_emptied_text_is_repaired_by_the_model() -> None:
    stage, model = optimizer(answer("\n"), answer("Be kind."))
    await stage.optimize(of(Surface(node_id="a", type="instruction", value="Be good.")))
    assert "the value is empty" in corrections(model)[0]


async def test_a_number_must_be_finite() -> None:
    stage, model = optimizer('{"reason": "r", "value": NaN}', answer(0.5))
    await stage.optimize(of(Surface(node_id="a", type="parameter", value=1.0)))
    assert "NaN" in corrections(model)[0]


async def test_a_model_that_gives_up_is_a_model_error() -> None:
    stage, _ = optimizer(*[answer("Answer {order}")] * 4)
    with pytest.raises(BadAnswerError, match="the locked part"):
        await stage.optimize(OPTIMIZE_REQUEST)


@pytest.mark.parametrize("value", [INSTRUCTION.value, OPTIMIZE_REQUEST.rejected[1].value])
async def test_a_value_that_changes_nothing_or_was_rejected_is_not_repaired(value: str) -> None:
    stage, model = optimizer(answer(value))
    patch = (await stage.optimize(OPTIMIZE_REQUEST)).patch
    assert patch is not None
    assert patch.value == value
    assert len(model.requests) == 1


MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    ("surface", "schema", "wrong", "right"),
    [
        (Surface(node_id="a", type="tool", part="t", value="x"), {"type": "string"}, ["y"], "y"),
        (
            Surface(node_id="a", type="examples", value=[], limits=Limits(max_examples=2)),
            None,
            [{"role": "system", "content": "Hi"}],
            MESSAGES,
        ),
        (
            Surface(node_id="a", type="model", value="small", limits=Limits(choices=("small", "large"))),
            {"type": "string", "enum": ["small", "large"]},
            "huge",
            "large",
        ),
        (Surface(node_id="a", type="model", value="small"), {"type": "string"}, "", "large"),
        (
            Surface(node_id="a", type="parameter", value=0.7, limits=Limits(kind="number", minimum=0, maximum=2)),
            {"type": "number", "minimum": 0, "maximum": 2},
            3,
            0.2,
        ),
        (
            Surface(node_id="a", type="parameter", value=3, limits=Limits(kind="integer", minimum=1)),
            {"type": "integer", "minimum": 1},
            2.5,
            4,
        ),
        (
            Surface(node_id="a", type="parameter", value=True, limits=Limits(kind="choice", choices=(True, False, 1))),
            {"enum": [True, False, 1]},
            None,
            False,
        ),
        (Surface(node_id="a", type="parameter", value=1, limits=Limits(kind="number")), {"type": "number"}, "1", 2),
    ],
)
async def test_each_type_of_surface_has_its_own_kind_of_value(
    surface: Surface, schema: Json, wrong: Json, right: Json
) -> None:
    stage, model = optimizer(answer(wrong), answer(right))
    patch = (await stage.optimize(of(surface))).patch
    assert patch is not None
    assert patch.value == right
    assert len(model.requests) == 2
    assert schema is None or build_value_schema(surface) == schema
    assert model.requests[0].schema is not None
    assert model.requests[0].schema["properties"]["value"] == build_value_schema(surface)


def test_examples_are_messages_of_users_and_assistants() -> None:
    schema = build_value_schema(Surface(node_id="a", type="examples", value=[], limits=Limits(max_examples=4)))
    assert schema["maxItems"] == 4
    assert schema["items"]["properties"]["role"]["enum"] == ["user", "assistant"]
    assert schema["items"]["required"] == ["role", "content"]


LONG = "".join(f"Rule {number}: be kind. " for number in range(4_000))


async def test_a_text_too_long_to_be_shown_whole_is_changed_by_edits() -> None:
    edits = [{"find": "Rule 7: be kind.", "replace": "Rule 7: repeat the id."}]
    stage, model = optimizer(json.dumps({"reason": "r", "edits": edits}))
    patch = (await stage.optimize(of(replace(INSTRUCTION, value=LONG, limits=Limits())))).patch
    assert patch is not None
    assert patch.value == LONG.replace("Rule 7: be kind.", "Rule 7: repeat the id.")
    assert "characters left out" in model.requests[0].text
    assert model.requests[0].schema is not None
    assert list(model.requests[0].schema["properties"]) == ["reason", "edits"]
    assert prompt_tokens(model.requests[0].messages) <= stage.max_prompt_tokens


async def test_edits_are_asked_for_points_only_if_there_are_several() -> None:
    answer = {"find": "Rule 7: be kind.", "replace": "Rule 7: repeat the id.", "reason": ""}
    points = (SignalPoint(text="Repeat the id.", case_ids=("c1",)), SignalPoint(text="Be warm.", case_ids=("c2",)))
    for known, cases in ((points, ("c2",)), (points[:1], ("c1",))):
        more = {"points": [2]} if len(known) > 1 else {}
        stage, model = optimizer(json.dumps({"reason": "r", "edits": [answer | more]}))
        request = of(replace(INSTRUCTION, value=LONG, limits=Limits()))
        patch = (await stage.optimize(replace(request, signal=replace(request.signal, points=known)))).patch
        assert patch is not None
        assert [edit.evidence.cases for edit in patch.edits] == [cases]
        assert ("`points`" in model.requests[0].text) == ("points" in str(model.requests[0].schema)) == bool(more)


async def test_edits_that_do_not_fit_are_repaired_by_the_model() -> None:
    def edits(find: str, replacement: str) -> str:
        return json.dumps({"reason": "r", "edits": [{"find": find, "replace": replacement}]})

    stage, model = optimizer(
        edits("be kind", "be good"),
        edits("Rule X", ""),
        json.dumps({"reason": "r", "edits": []}),
        edits("Rule 7:", "7:"),
    )
    patch = (await stage.optimize(of(replace(INSTRUCTION, value=LONG, limits=Limits())))).patch
    assert patch is not None
    first, second, third = corrections(model)
    assert "occurs 4000 times" in first
    assert "'Rule X' occurs 0 times" in second
    assert "edits" in third


def test_edits_apply_one_after_the_other() -> None:
    assert apply_edits("a b c", [("b", "bb"), ("bb c", "d")]) == "a d"
    with pytest.raises(ValueError, match="occurs 0 times"):
        apply_edits("a", [("", "b")])


async def test_a_value_that_is_not_text_and_too_long_is_not_patched() -> None:
    stage, _ = optimizer()
    many = [{"role": "user", "content": "Hi " * 30_000}]
    result = await stage.optimize(of(Surface(node_id="a", type="examples", value=many)))
    assert result.patch is None
    assert "raise max_prompt_tokens" in result.reason


async def test_a_custom_prompt_is_used_as_it_is_and_asks_for_the_value() -> None:
    def render(request: OptimizeRequest) -> tuple[Message, ...]:
        return (Message("user", f"Improve {request.surface.value}"),)

    stage, model = optimizer(answer("Be kind."), render=render)
    request = of(replace(INSTRUCTION, value=LONG, limits=Limits()))
    patch = (await stage.optimize(request)).patch
    assert patch is not None
    assert patch.value == "Be kind."
    assert model.requests[0].messages == render(request)


async def test_escaped_data_marks_are_restored_in_values() -> None:
    value = "Read <data>{text}</data>."
    surface = Surface(node_id="a", type="instruction", value=value, limits=Limits(locked=("<data>{text}</data>",)))
    stage, model = optimizer(answer("Read &lt;data>{text}&lt;/data> twice."))
    patch = (await stage.optimize(of(surface))).patch
    assert patch is not None
    assert patch.value == "Read <data>{text}</data> twice."
    assert "&lt;data>" in model.requests[0].text

    escaped = Surface(node_id="a", type="instruction", value="Write &lt;data> for a mark.")
    stage, _ = optimizer(answer("Always write &lt;data> for a mark."))
    patch = (await stage.optimize(of(escaped))).patch
    assert patch is not None
    assert patch.value == "Always write &lt;data> for a mark."


async def test_a_long_value_raises_the_output_limit_unless_the_options_set_it() -> None:
    surface = Surface(node_id="a", type="file", value="Rules " * 2_000)
    stage, model = optimizer(answer("Be kind."))
    await stage.optimize(of(surface))
    assert model.requests[0].options["max_tokens"] == 7_000
    stage, model = optimizer(answer("Be kind."), model_options={"max_tokens": 50})
    await stage.optimize(of(surface))
    assert model.requests[0].options["max_tokens"] == 50


async def test_a_rejection_changes_the_question() -> None:
    stage, model = optimizer(answer(BETTER), answer(BETTER + " Thanks."))
    await stage.optimize(replace(OPTIMIZE_REQUEST, rejected=OPTIMIZE_REQUEST.rejected[:1]))
    await stage.optimize(OPTIMIZE_REQUEST)
    assert len(model.requests) == 2


@pytest.mark.long
async def test_faults_of_a_real_server_change_no_patch() -> None:
    def respond(body: dict[str, Any]) -> str:
        shown = body["messages"][1]["content"]
        number = shown.split("Rule number ")[1].split(".")[0]
        return answer(f"Rule number {number}. And the next.")

    async def values(server: LoopbackServer) -> list[Json]:
        model = LiteLLMModel(api_base=server.url, api_key="sk-loopback", timeout_s=10)
        retries = Retries(attempts=8, first_delay_s=0.01, max_delay_s=0.05)
        stage = LLMOptimizer("openai/local", gateway=Gateway(models={"openai/local": model}, retries=retries))
        surfaces = [Surface(node_id="a", type="instruction", value=f"Rule number {n}.") for n in range(40)]
        results = await asyncio.gather(*(stage.optimize(of(surface)) for surface in surfaces))
        return [result.patch.value for result in results if result.patch is not None]

    with run_server(LoopbackServer(respond)) as server:
        expected = await values(server)
    with run_server(LoopbackServer(respond, fault_rate=0.5, seed=2)) as server:
        assert await values(server) == expected
        assert set(CONTENT_FAULTS) <= set(server.faults)
    assert len(expected) == 40


async def test_a_wrapper_around_a_value_is_stripped_without_another_call() -> None:
    stage, model = optimizer(answer(f'Here is the improved instruction:\n<data name="current value">{BETTER}</data>'))
    patch = (await stage.optimize(OPTIMIZE_REQUEST)).patch
    assert patch is not None
    assert patch.value == BETTER
    assert len(model.requests) == 1


async def test_a_value_with_marks_of_the_prompt_goes_back_to_the_model() -> None:
    stage, model = optimizer(answer(f'{BETTER} <data name="input">A-17</data>'), answer(BETTER))
    assert (await stage.optimize(OPTIMIZE_REQUEST)).patch is not None
    assert "the value has marks of the data in the prompt" in corrections(model)[0]


async def test_a_value_that_was_cut_off_is_asked_for_again_with_a_larger_limit() -> None:
    cut = ModelReply(text=answer(BETTER)[:-20], finish_reason="length")
    stage, model = optimizer(cut, answer(BETTER))
    patch = (await stage.optimize(OPTIMIZE_REQUEST)).patch
    assert patch is not None
    assert patch.value == BETTER
    limit = Gateway().max_output_tokens
    assert [request.options["max_tokens"] for request in model.requests] == [limit, 2 * limit]
    assert "be shorter" in corrections(model)[0]


def test_a_long_value_is_cut_around_the_rare_words_of_the_signal_and_the_failing_inputs() -> None:
    lines = [f"Line {number} tells you to be polite, to thank the customer, and to answer." for number in range(2_000)]
    lines[700] = "Line 700 says that lamps are taken back within two weeks."
    lines[1300] = "Line 1300 says that deliveries to Iceland are free."
    surface = Surface(node_id="writer", type="skill", part="returns", value="\n".join(lines))
    request = replace(
        of(surface),
        signal=replace(OPTIMIZE_REQUEST.signal, text="The customer may send back lamps within a month.", points=()),
        failing=(replace(OPTIMIZE_REQUEST.failing[0], input="What about Iceland?", expected="no"),),
        passing=(),
    )
    shown = render_optimize(request)[1].content
    assert lines[700] in shown
    assert lines[1300] in shown
    assert lines[1000] not in shown
