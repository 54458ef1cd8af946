"""AgentService: an agent of ours behind the protocol, called by RemoteAgent and by others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import orjson
import pytest

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.agents.remote.service import AgentService, serve_agent
from promptiter.endpoint.http_messages import HttpRequest
from promptiter.errors import ModelUnavailableError, SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.profile import Profile
from promptiter.structure import Node, StructureSnapshot, Surface
from tests.worlds.triage_world import make_triage_world

pytestmark = pytest.mark.slow

DESK = GraphAgent(name="desk", nodes=(ModelNode(name="note", model="clerk", instruction="Take notes."),))


class Echo:
    """An agent that answers with all that it got."""

    def describe(self) -> StructureSnapshot:
        surface = Surface(node_id="echo", type="instruction", value="Say it.")
        return StructureSnapshot(nodes=(Node(id="echo"),), surfaces=(surface,), name="echo")

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        if case.text == "fail":
            raise KeyError("tea")
        got = [case.text, [each.content for each in case.history], case.state, dict(profile.overrides)]
        return AgentRun(output="heard", data=[*got, context.case_id, context.repeat, context.turn, context.seed])


async def send(
    service: AgentService, method: str, path: str, document: Any = None, **headers: str
) -> tuple[int, dict[str, Any]]:
    async def read_body() -> bytes:
        return document if isinstance(document, bytes) else orjson.dumps(document)

    answer = await service.handle(HttpRequest(method=method, path=path, headers=headers, read_body=read_body))
    return answer.status, orjson.loads(b"".join(answer.chunks))


def request(agent: Agent, text: str = "hi", **fields: Any) -> dict[str, Any]:
    structure = agent.describe()
    values = {each.id: each.value for each in structure.surfaces}
    return {"structure_id": structure.structure_id, "values": values, "input": {"text": text}, **fields}


async def run_remotely(agent: Agent, case: CaseInput, values: dict[str, Any], context: RunContext) -> AgentRun:
    async with serve_agent(AgentService(agent)) as url:
        remote = RemoteAgent(url, retries=0)
        await remote.check_health()
        return await remote.run(case, Profile.of(remote.describe(), values), context)


async def test_a_case_reaches_the_agent_as_it_was_sent() -> None:
    case = CaseInput(text="hi", history=(Message("user", "Hello."),), state={"a": [1]})
    context = RunContext(case_id="c", repeat=1, turn=2, seed=3)
    done = await run_remotely(Echo(), case, {"echo#instruction": "Shout it."}, context)
    assert done.output == "heard"
    assert done.data == ["hi", ["Hello."], {"a": [1]}, {"echo#instruction": "Shout it."}, "c", 1, 2, 3]


async def test_what_the_agent_raises_is_the_error_of_the_run() -> None:
    done = await run_remotely(Echo(), CaseInput(text="fail"), {}, RunContext())
    assert done.error is not None
    assert done.error.text == "KeyError: 'tea'"


async def test_a_graph_behind_the_protocol_does_what_it_does_in_this_process() -> None:
    world = make_triage_world(0)
    async with serve_agent(AgentService(world.agent)) as url:
        remote = RemoteAgent(url)
        await remote.check_health()
        assert remote.describe() == world.agent.describe()
        with world.build_evaluator().gateway.active():
            for values in ({}, dict(world.fixes)):
                profile = Profile.of(world.agent.describe(), values)
                for case in world.train.cases[:4]:
                    given, context = CaseInput(text=case.turns[0].user), RunContext(case_id=case.id)
                    near = await world.agent.run(given, profile, context)
                    far = await remote.run(given, profile, context)
                    assert describe(far) == describe(near)


def describe(run: AgentRun) -> Any:
    assert run.trace is not None
    steps = [
        (step.id, step.predecessors, step.surface_reads, step.input, step.output, step.usage, len(step.tool_calls))
        for step in run.trace.steps
    ]
    return run.output, run.data, run.error, run.usage, run.trace.id, run.trace.conversation_id, steps


async def test_the_models_of_the_sender_are_called_once_per_call_site() -> None:
    model = ScriptedModel(["a note"])
    with Gateway(models={"clerk": model}).active():
        for _ in range(2):
            done = await run_remotely(DESK, CaseInput(text="tea"), {}, RunContext(case_id="tea"))
            assert done.output == "a note"
    [sent] = model.requests
    assert [each.content for each in sent.messages] == ["Take notes.", "tea"]


async def test_an_outage_of_a_model_is_an_outage_of_the_run() -> None:
    async def fail(request: ModelRequest, *, repeat: int) -> ModelReply:
        raise ModelUnavailableError("down for maintenance")

    with Gateway(models={"clerk": fail}, retries=Retries(attempts=1)).active():
        done = await run_remotely(DESK, CaseInput(text="tea"), {}, RunContext(case_id="tea"))
    assert done.error is not None
    assert done.error.is_outage
    assert "down for maintenance" in done.error.message


async def test_without_models_in_the_request_the_gateway_of_the_service_is_used_anew_for_each_run() -> None:
    service = AgentService(DESK, gateway=Gateway(models={"clerk": ScriptedModel(["one", "two"])}))
    found = [await send(service, "POST", "/runs", request(DESK)) for _ in range(2)]
    assert [answer["run"]["output"] for _, answer in found] == ["one", "two"]
    assert found[0][1]["run"]["usage"] == {"input_tokens": 3, "output_tokens": 1}


@pytest.mark.parametrize(
    ("document", "status", "problem"),
    [
        (b"{", 422, "Invalid JSON"),
        ({"values": {}}, 422, "structure_id: Field required"),
        ({**request(DESK), "structure_id": "x"}, 409, "ask for GET /structure again"),
        ({**request(DESK), "values": {"x#instruction": ""}}, 422, "unknown surface 'x#instruction'"),
        ({**request(DESK), "values": {"note#instruction": 3}}, 422, "it must be text, got 3"),
        ({**request(DESK), "protocol": 2}, 422, "protocol: Input should be 1"),
    ],
)
async def test_a_request_that_cannot_be_run_is_refused_in_words(document: Any, status: int, problem: str) -> None:
    found, answer = await send(AgentService(DESK), "POST", "/runs", document)
    assert found == status
    assert problem in answer["error"]["message"]


async def test_fields_of_a_later_protocol_are_ignored() -> None:
    status, answer = await send(AgentService(Echo()), "POST", "/runs", request(Echo(), later=1))
    assert (status, answer["run"]["output"]) == (200, "heard")


async def test_other_paths_are_not_served() -> None:
    assert (await send(AgentService(DESK), "GET", "/health"))[0] == 200
    status, answer = await send(AgentService(DESK), "GET", "/../secrets")
    assert (status, answer["error"]["message"]) == (
        404,
        "GET '/../secrets' is not served; there are GET /structure and POST /runs",
    )


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer wrong"}, {"authorization": "right-token"}])
async def test_callers_must_know_the_token(given: dict[str, str]) -> None:
    service = AgentService(Echo(), token="right-token")
    for method, path in (("GET", "/structure"), ("POST", "/runs"), ("GET", "/health")):
        assert (await send(service, method, path, request(Echo()), **given))[0] == 401
    assert (await send(service, "GET", "/structure", authorization="Bearer right-token"))[0] == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8789"}, 200),
        ({"Host": "rebound.example"}, 403),
        ({"Host": "[rebound"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_pages_in_a_browser_do_not_reach_an_agent_without_a_token(headers: dict[str, str], status: int) -> None:
    async with serve_agent(AgentService(Echo())) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/structure", headers=headers)).status_code == status
        assert (await client.post("/runs", json=request(Echo()), headers=headers)).status_code == status
    token = "a-long-enough-token"
    async with serve_agent(AgentService(Echo(), token=token)) as url, httpx.AsyncClient(base_url=url) as client:
        known = {**headers, "Authorization": f"Bearer {token}"}
        assert (await client.get("/structure", headers=known)).status_code in (200, 400)


def test_an_empty_token_and_what_is_not_an_agent_are_refused() -> None:
    with pytest.raises(SetupError, match="the token of an agent service is empty"):
        AgentService(Echo(), token="")
    with pytest.raises(SetupError, match="is not an agent"):
        AgentService(3)  # type: ignore[arg-type]


async def test_an_agent_that_writes_files_restores_them_at_the_end() -> None:
    closed = []

    class Writer(Echo):
        async def aclose(self) -> None:
            closed.append(True)

    async with serve_agent(AgentService(Writer())):
        assert not closed
    assert closed


async def test_a_port_in_use_is_an_error_in_words() -> None:
    async with serve_agent(AgentService(Echo())) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(SetupError, match=f"port {port} of '127.0.0.1' cannot be used: it is in use"):
            async with serve_agent(AgentService(Echo()), port=port):
                pass


async def call_asgi(service: AgentService, path: str, parts: list[bytes], root_path: str = "") -> tuple[int, Any]:
    events = [{"type": "http.request", "body": part, "more_body": True} for part in parts] + [{"type": "http.request"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return events.pop(0)

    async def keep(message: Any) -> None:
        sent.append(message)

    method = "POST" if parts else "GET"
    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": [(b"A", b"b")]}
    await service(scope, receive, keep)
    return sent[0]["status"], orjson.loads(sent[1]["body"])


async def test_a_service_is_an_asgi_application() -> None:
    service, body = AgentService(Echo()), orjson.dumps(request(Echo()))
    status, structure = await call_asgi(service, "/desk/structure", [], root_path="/desk")
    assert (status, structure["structure"]["name"]) == (200, "echo")
    status, answer = await call_asgi(service, "/runs", [body[:10], body[10:]])
    assert (status, answer["run"]["output"]) == (200, "heard")


async def test_an_asgi_server_starts_and_stops_it() -> None:
    events, sent = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}], []

    async def receive() -> Any:
        return events.pop(0)

    async def keep(message: Any) -> None:
        sent.append(message["type"])

    await AgentService(Echo())({"type": "lifespan"}, receive, keep)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_several_runs_are_answered_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    class Meeting(Echo):
        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
            await both.wait()
            done = await super().run(case, profile, context)
            return replace(done, output=str(profile.overrides["echo#instruction"]))

    async with serve_agent(AgentService(Meeting())) as url:
        remote = RemoteAgent(url)
        await remote.check_health()
        profiles = [Profile.of(remote.describe(), {"echo#instruction": text}) for text in ("A", "B")]
        runs = await asyncio.gather(*(remote.run(CaseInput(text="hi"), each) for each in profiles))
    assert [run.output for run in runs] == ["A", "B"]
