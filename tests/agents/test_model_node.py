"""Model nodes: the surfaces of their requests, and structured output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from promptiter.agents.base import AgentRun, CaseInput
from promptiter.agents.declarations import Parameter, Tool
from promptiter.agents.function import chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.errors import SetupError, SurfaceValueError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from traces import digest


def bot(**options: Any) -> GraphAgent:
    return chain("bot", ModelNode(name="bot", instruction="Help.", model="scripted", **options))


async def run(subject: GraphAgent, model: ScriptedModel, values: dict[str, Any] | None = None) -> AgentRun:
    with Gateway(models={"scripted": model}).active():
        return await subject.run(CaseInput(text="hi"), Profile.of(subject.describe(), values or {}))


def reads(done: AgentRun) -> set[str]:
    assert done.trace is not None
    return set(done.trace.steps[0].surface_reads or ())


async def test_global_instruction_and_skills_are_around_the_instruction() -> None:
    subject = bot(global_instruction="Be kind.", skills={"refunds": "Within 14 days.", "repairs": "Ask for the model."})
    model = ScriptedModel(["one", "two"])
    done = await run(subject, model)
    await run(subject, model, {"bot#skill.refunds": "Within 30 days.", "bot#global_instruction": ""})
    assert [request.messages[0].content for request in model.requests] == [
        "Be kind.\n\nHelp.\n\n# refunds\nWithin 14 days.\n\n# repairs\nAsk for the model.",
        "Help.\n\n# refunds\nWithin 30 days.\n\n# repairs\nAsk for the model.",
    ]
    assert {"bot#global_instruction", "bot#skill.refunds", "bot#skill.repairs"} <= reads(done)


async def test_the_template_of_the_user_message_can_be_a_surface_that_keeps_its_fields() -> None:
    subject = bot(prompt="Question: {input}", is_prompt_editable=True)
    model = ScriptedModel(["one", "two"])
    done = await run(subject, model)
    await run(subject, model, {"bot#prompt": "Read this twice: {input}"})
    assert [request.messages[-1].content for request in model.requests] == ["Question: hi", "Read this twice: hi"]
    assert "bot#prompt" in reads(done)
    with pytest.raises(SurfaceValueError, match=r"the placeholder \{input\} is missing"):
        Profile.of(subject.describe(), {"bot#prompt": "Answer."})
    with pytest.raises(SetupError, match=r"has no prompt to edit; give one, such as prompt='\{input\}'"):
        bot(is_prompt_editable=True)


def test_nodes_without_the_new_surfaces_have_the_structure_they_had() -> None:
    plain = bot(prompt="Question: {input}").describe()
    assert plain.surface_ids == ("bot#instruction", "bot#model", "bot#examples")
    assert plain.structure_id == "ee037957cb678b6fb145a650aa53146f1ad779074675203043fb4efc736842ae"


def search(query: str, top_k: int) -> list[str]:
    return [f"{query} {number}" for number in range(top_k)]


ARCHIVE = Tool(
    name="archive",
    description="Searches.",
    function=search,
    parameters={"type": "object", "properties": {"query": {"type": "string"}}},
    settings={"top_k": Parameter(value=2, minimum=1, maximum=20)},
    is_optional=True,
)
CALL = ModelReply(tool_requests=(ToolRequest("1", "archive", {"query": "q"}),))


async def test_settings_of_a_tool_are_surfaces_that_the_model_does_not_see() -> None:
    subject = bot(tools=(ARCHIVE,))
    model = ScriptedModel([CALL, "done", CALL, "done"])
    done = await run(subject, model)
    await run(subject, model, {"bot#parameter.archive.top_k": 1})
    assert [request.messages[-1].content for request in model.requests[1::2]] == ['["q 0","q 1"]', '["q 0"]']
    assert list(model.requests[0].tools[0].parameters["properties"]) == ["query"]
    assert "bot#parameter.archive.top_k" in reads(done)
    assert "bot#parameter.archive.top_k" not in reads(await run(subject, ScriptedModel(["no search"])))


async def test_an_optional_tool_that_is_switched_off_is_neither_offered_nor_called() -> None:
    subject = bot(tools=(ARCHIVE,))
    model = ScriptedModel([CALL, "done"])
    await run(subject, model, {"bot#parameter.archive.enabled": False})
    assert model.requests[0].tools == ()
    assert "there is no tool 'archive'" in model.requests[1].messages[-1].content


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"settings": {"query": Parameter(value=1)}}, "'query' is a setting and an argument of the model; remove one"),
        ({"settings": {"enabled": Parameter(value=1)}}, "a setting cannot be named 'enabled'; rename it"),
        ({"settings": {"top_k": 5}}, "settings"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        replace(ARCHIVE, **wrong)


def test_a_log_scale_needs_a_positive_number() -> None:
    assert Parameter(value=0.1, minimum=0.01, scale="log").limits.scale == "log"
    with pytest.raises(SetupError, match="needs a number as value, and a minimum above 0"):
        Parameter(value=0.1, minimum=0, scale="log")
    with pytest.raises(SetupError, match="'linear' or 'log'"):
        Parameter(value=0.1, scale="cubic")  # type: ignore[arg-type]


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where it was bought."},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
    "required": ["city"],
}


async def test_descriptions_of_output_fields_are_surfaces() -> None:
    subject = bot(schema=SCHEMA)
    fields = {each.part: each.value for each in subject.describe().surfaces if each.type == "field"}
    assert fields == {"city": "Where it was bought.", "lines": "", "lines.price": ""}
    model = ScriptedModel(['{"city": "Lyon"}', '```json\n{"city": "Rome", "lines": [{"price": 2}]}\n```'])
    done = await run(subject, model)
    changed = {"bot#field.city": "The city of the shop.", "bot#field.lines.price": "In euros."}
    again = await run(subject, model, changed)
    assert (done.data, again.data) == ({"city": "Lyon"}, {"city": "Rome", "lines": [{"price": 2}]})
    assert model.requests[0].schema == SCHEMA
    sent = model.requests[1].schema
    assert sent is not None
    assert sent["properties"]["city"] == {"type": "string", "description": "The city of the shop."}
    assert sent["properties"]["lines"]["items"]["properties"]["price"]["description"] == "In euros."
    assert done.trace is not None
    assert (done.trace.steps[0].surface_reads or {})["bot#field.city"] == digest("Where it was bought.")


async def test_an_answer_that_does_not_fit_is_shown_to_the_model_again() -> None:
    model = ScriptedModel(["Lyon", '{"city": 3}', '{"city": "Lyon"}'])
    done = await run(bot(schema=SCHEMA), model)
    assert done.data == {"city": "Lyon"}
    assert "it holds no JSON" in model.requests[1].messages[-1].content
    assert "$.city: 3 is not of type 'string'" in model.requests[2].messages[-1].content
    failed = await run(bot(schema=SCHEMA), ScriptedModel(["no"] * 4))
    assert failed.error is not None
    assert failed.error.message.startswith("'scripted' gave no usable answer in 4 tries: it holds no JSON")


async def test_an_answer_on_which_a_pattern_never_ends_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)
    model = ScriptedModel([f'"{"a" * 60}"', '"ab"'])
    done = await run(bot(schema={"pattern": "(a+)+b"}), model)
    assert done.output == "ab"
    assert "a pattern of the JSON schema takes longer" in model.requests[1].messages[-1].content


class Address(BaseModel):
    city: str = Field(description="Name of the city.")


class Order(BaseModel):
    shop: Address
    home: Address | None = Field(default=None, description="Where it goes.")


def test_a_pydantic_model_is_a_schema_and_its_references_have_fields_of_their_own() -> None:
    fields = {each.part: each.value for each in bot(schema=Order).describe().surfaces if each.type == "field"}
    assert fields == {
        "shop": "",
        "shop.city": "Name of the city.",
        "home": "Where it goes.",
        "home.city": "Name of the city.",
    }


class Tree(BaseModel):
    label: str = Field(description="A word.")
    children: list[Tree] = Field(default_factory=list)


async def test_a_schema_that_contains_itself_is_sent_whole() -> None:
    subject = bot(schema=Tree)
    done = await run(subject, ScriptedModel(['{"label": "a", "children": [{"label": "b", "children": []}]}']))
    assert done.data["children"][0]["label"] == "b"
    assert subject.describe().surface("bot#field.label").value == "A word."


def test_a_wrong_schema_is_refused() -> None:
    with pytest.raises(SetupError, match="the schema of node 'bot' is not a JSON schema"):
        bot(schema={"type": "text"})
