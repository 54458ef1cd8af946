"""The JSON Schemas of the protocol: they are those of the messages, and what is sent respects them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import orjson
import pytest

from promptiter.agents.base import CaseInput, RunContext
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.agents.remote.schemas import SCHEMAS, build_schema, read_schema
from promptiter.agents.remote.service import AgentService
from promptiter.endpoint.http_messages import HttpRequest
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.profile import Profile
from tests.agents.remote.scripted_agent import STRUCTURE, ScriptedAgent
from tests.pages import blocks
from tests.worlds.triage_world import make_triage_world

PAGE = Path(__file__).parents[3] / "docs" / "remote-agents.md"


def validate(document: Any, name: str) -> None:
    schema = orjson.loads(read_schema(f"{name}.schema.json"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_up_to_date(name: str) -> None:
    assert read_schema(name) == build_schema(name), "run `python -m promptiter.agents.remote.schemas`"


def test_the_messages_on_the_page_of_the_protocol_respect_the_schemas() -> None:
    shown = {each.file: each.code for each in blocks(PAGE) if each.kind == "json"}
    assert [f"{Path(file or '').stem}.schema.json" for file in shown] == list(SCHEMAS)
    for file, code in shown.items():
        validate(orjson.loads(code), Path(file or "").stem)


async def test_requests_and_answers_respect_the_schemas() -> None:
    world, script = make_triage_world(0), ScriptedAgent()
    service = AgentService(world.agent, gateway=world.build_evaluator().gateway)
    structure = await call(service, "GET", "/structure")
    validate(structure, "structure_answer")
    validate({"protocol": 1, "structure": STRUCTURE}, "structure_answer")
    script.structure = structure
    case = CaseInput(text=world.train.cases[0].turns[0].user, history=(Message("user", "Hi."),), state={"a": 1})
    with Gateway().active():
        async with script.serve() as url:
            agent = RemoteAgent(url)
            await agent.check_health()
            await agent.run(case, Profile.baseline(agent.describe()), RunContext(case_id="tea"))
    [request] = script.requests
    validate(request, "run_request")
    answer = await call(service, "POST", "/runs", {**request, "models": None})
    validate(answer, "run_answer")
    assert [step["step_id"] for step in answer["run"]["trace"]["steps"]] == ["note", "sort", "answer"]


async def call(service: AgentService, method: str, path: str, document: Any = None) -> Any:
    async def read_body() -> bytes:
        return orjson.dumps(document)

    answer = await service.handle(HttpRequest(method=method, path=path, headers={}, read_body=read_body))
    assert answer.status == 200
    return orjson.loads(b"".join(answer.chunks))
