"""RemoteAgent: what it sends, what it makes of answers, and how it handles an agent that is down or has changed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from promptiter.agents.base import CaseInput, RunContext
from promptiter.agents.remote import agent as remote_agent
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.concurrency import get_background_loop
from promptiter.endpoint.http_messages import HttpAnswer
from promptiter.errors import SetupError, StructureMismatchError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from tests.agents.remote.scripted_agent import STRUCTURE, Answer, ScriptedAgent, ask, fail
from traces import Usage, digest

CASE = CaseInput(text="Is there tea?")


@asynccontextmanager
async def connect(script: ScriptedAgent, **settings: Any) -> AsyncIterator[RemoteAgent]:
    async with script.serve() as url:
        agent = RemoteAgent(url, **settings)
        await agent.check_health()
        yield agent


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_agent, "FIRST_WAIT_S", 0.01)


async def test_a_request_has_the_case_and_the_value_of_every_surface() -> None:
    script = ScriptedAgent()
    case = CaseInput(
        text="And milk?", history=(Message("user", "Tea?"), Message("assistant", "Yes.")), state={"a": [1]}
    )
    async with connect(script) as agent:
        profile = Profile.of(agent.describe(), {"note#instruction": "Be brief."})
        context = RunContext(case_id="tea", repeat=2, turn=1, seed=7, deadline_s=9.0)
        done = await agent.run(case, profile, context)
    assert (done.output, done.error) == ("done", None)
    [sent] = script.requests
    models = sent.pop("models")
    assert models["api_key"] in models["base_url"]
    assert sent == {
        "protocol": 1,
        "structure_id": agent.describe().structure_id,
        "values": {"note#instruction": "Be brief.", "answer#instruction": "Answer.", "answer#parameter.top_k": 3},
        "input": {
            "text": "And milk?",
            "history": [{"role": "user", "content": "Tea?"}, {"role": "assistant", "content": "Yes."}],
            "state": {"a": [1]},
        },
        "case_id": "tea",
        "repeat": 2,
        "turn": 1,
        "seed": 7,
        "deadline_s": 9.0,
    }
    assert script.asked == 1


async def test_two_candidates_at_once_get_their_own_values() -> None:
    both = asyncio.Barrier(2)

    async def answer(sent: dict[str, Any]) -> Answer:
        await both.wait()
        return {"run": {"output": sent["values"]["note#instruction"]}}

    script = ScriptedAgent(answer)
    async with connect(script) as agent:
        profiles = [Profile.of(agent.describe(), {"note#instruction": text}) for text in ("A", "B")]
        runs = await asyncio.gather(*(agent.run(CASE, each) for each in profiles))
    assert [run.output for run in runs] == ["A", "B"]


async def test_model_calls_with_the_key_of_the_request_become_steps_and_are_counted() -> None:
    model = ScriptedModel(["a note"])

    async def answer(sent: dict[str, Any]) -> Answer:
        return {"run": {"output": await ask(sent, instruction=sent["values"]["note#instruction"])}}

    gateway = Gateway(models={"clerk": model})
    with gateway.active():
        async with connect(ScriptedAgent(answer)) as agent:
            done = await agent.run(CASE, Profile.baseline(agent.describe()), RunContext(case_id="tea"))
            again = await agent.run(CASE, Profile.baseline(agent.describe()), RunContext(case_id="tea"))
    assert done.output == again.output == "a note"
    assert len(model.requests) == 1  # the second run is answered from the cache
    assert done.usage == Usage(input_tokens=3, output_tokens=2)
    assert done.trace is not None
    first, whole = done.trace.steps
    assert (first.node_id, first.surface_reads) == ("note", {"note#instruction": digest("Take notes.")})
    assert set(whole.surface_reads or ()) == {"answer#instruction", "answer#parameter.top_k"}


async def test_the_usage_of_an_agent_that_calls_models_in_its_own_way_is_what_it_reports() -> None:
    script = ScriptedAgent(lambda _: {"run": {"output": "a", "usage": {"input_tokens": 5, "cost_usd": 0.25}}})
    async with connect(script, gateway=False) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
        [note] = agent.notes
    assert done.usage == Usage(input_tokens=5, cost_usd=0.25)
    assert script.requests[0]["models"] is None
    assert "neither cached nor limited" in note


async def test_data_without_a_text_is_the_answer_as_json() -> None:
    script = ScriptedAgent(lambda _: {"run": {"data": {"fee": 3}}})
    async with connect(script) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert (done.output, done.data) == ('{"fee":3}', {"fee": 3})


async def test_an_error_of_the_agent_is_the_error_of_the_run() -> None:
    error = {"type": "KeyError", "message": "no room", "where": "desk.js:3"}
    async with connect(ScriptedAgent(lambda _: {"run": {"error": error}})) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert str(done.error) == "KeyError: no room (desk.js:3)"
    assert done.trace is not None
    assert done.trace.status == "failed"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"run": {}}, "answered with neither output nor data nor error"),
        ({"output": "x"}, "not a RunAnswer of the protocol: run: Field required"),
        ({"run": {"output": 3}}, "run.output: Input should be a valid string, got 3"),
        ({"run": {"output": "x", "trase": {}}}, "run.trase: Extra inputs are not permitted"),
        (
            {"run": {"output": "x", "usage": {"input_tokens": -5}}},
            "run.usage.input_tokens: Input should be greater than",
        ),
        ({"run": {"output": "x", "usage": {"output_tokens": 10**13}}}, "run.usage.output_tokens: Input should be less"),
        ({"run": {"output": "x", "usage": {"cost_usd": -1e308}}}, "run.usage.cost_usd: Input should be greater than"),
        ({"run": {"output": "x", "usage": {"cost_usd": 1e308}}}, "run.usage.cost_usd: Input should be less than"),
        ({"run": {"error": {"type": "x" * 10_000}}}, "run.error.type: String should have at most 1000 characters"),
        (HttpAnswer(chunks=(b"<html>",)), "answered with what is not JSON: '<html>'"),
        (fail(500, "it broke"), "answered with status 500: it broke"),
        (fail(409, "what?"), "answered with status 409: what?"),
        (HttpAnswer(chunks=(b"x" * 20_001,)), "answered with more than 20,000 bytes; raise max_output_bytes"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_an_error_in_words(answer: Any, problem: str) -> None:
    script = ScriptedAgent(lambda _: answer)
    async with connect(script, max_output_bytes=20_000) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert done.error is not None
    assert done.error.type == "ServiceError"
    assert not done.error.is_outage
    assert problem in done.error.message
    assert len(script.requests) == 1


async def test_an_agent_that_does_not_answer_in_time_is_not_asked_again() -> None:
    stuck = asyncio.Event()

    async def answer(_: object) -> Answer:
        await stuck.wait()
        raise AssertionError

    script = ScriptedAgent(answer)
    async with connect(script, timeout_s=0.05) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert done.error is not None
    assert "did not answer in 0.05 s" in done.error.message
    assert len(script.requests) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_an_agent_that_is_down_is_asked_again(status: int) -> None:
    answers: list[Answer] = [fail(status), fail(status), {"run": {"output": "back"}}]
    script = ScriptedAgent(lambda _: answers.pop(0))
    async with connect(script) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert (done.output, done.error) == ("back", None)


async def test_an_agent_that_stays_down_is_an_outage_in_words() -> None:
    async with connect(ScriptedAgent(), retries=2) as agent:
        profile = Profile.baseline(agent.describe())
    done = await agent.run(CASE, profile)
    assert done.error is not None
    assert done.error.is_outage
    assert "cannot be reached" in done.error.message


async def test_a_run_is_not_sent_again_after_its_deadline() -> None:
    async with connect(ScriptedAgent(), retries=30) as agent:
        profile = Profile.baseline(agent.describe())
    done = await agent.run(CASE, profile, RunContext(deadline_s=0.1))
    assert done.error is not None
    assert done.error.is_outage


async def test_a_repeated_run_finds_the_answers_of_calls_that_were_made_before_the_agent_died() -> None:
    model, deaths = ScriptedModel(["a note"]), [True]

    async def answer(sent: dict[str, Any]) -> Answer:
        text = await ask(sent)
        return fail(503) if deaths and deaths.pop() else {"run": {"output": text}}

    with Gateway(models={"clerk": model}).active():
        async with connect(ScriptedAgent(answer)) as agent:
            done = await agent.run(CASE, Profile.baseline(agent.describe()), RunContext(case_id="tea"))
    assert (done.output, len(model.requests)) == ("a note", 1)


async def test_an_agent_that_comes_back_with_another_structure_ends_the_run() -> None:
    script = ScriptedAgent()

    def change(_: object) -> HttpAnswer:
        surfaces = [{**STRUCTURE["surfaces"][0], "type": "skill", "part": "a"}, *STRUCTURE["surfaces"][1:]]
        script.structure = {"protocol": 1, "structure": {**STRUCTURE, "surfaces": surfaces}}
        return fail(503)

    script.answer = change
    async with connect(script) as agent:
        with pytest.raises(StructureMismatchError, match="note#instruction disappeared; note#skill"):
            await agent.run(CASE, Profile.baseline(agent.describe()))


async def test_an_agent_that_refuses_the_structure_is_asked_for_it_again() -> None:
    script = ScriptedAgent(lambda _: fail(409))
    async with connect(script) as agent:
        script.structure = {"protocol": 1, "structure": {**STRUCTURE, "edges": []}}
        with pytest.raises(StructureMismatchError, match="nodes or edges differ"):
            await agent.run(CASE, Profile.baseline(agent.describe()))


async def test_new_baseline_values_do_not_end_a_run_because_all_values_are_sent() -> None:
    script = ScriptedAgent(lambda sent: {"run": {"output": sent["values"]["note#instruction"]}})
    async with connect(script) as agent:
        surfaces = [{**STRUCTURE["surfaces"][0], "value": "New."}, *STRUCTURE["surfaces"][1:]]
        script.structure = {"protocol": 1, "structure": {**STRUCTURE, "surfaces": surfaces}}
        await agent.check_health()
        assert (await agent.run(CASE, Profile.baseline(agent.describe()))).output == "Take notes."


@pytest.mark.parametrize(
    ("structure", "problem"),
    [
        ({"structure": STRUCTURE}, "protocol: Field required"),
        ({"protocol": 2, "structure": STRUCTURE}, "protocol: Input should be 1, got 2"),
        ({"protocol": 1, "structure": {"nodes": []}}, "structure.nodes"),
        ({"protocol": 1, "structure": {**STRUCTURE, "entry": "x"}}, "the entry 'x' is not a node"),
        ({"protocol": 1, "structure": {**STRUCTURE, "prompts": []}}, "structure.prompts: Extra inputs"),
        (fail(404, "where?"), "GET /structure: .* answered with status 404: where?"),
        (fail(503, "soon"), "answered with status 503: soon; start the agent, or correct its address"),
    ],
)
async def test_a_structure_that_cannot_be_used_is_an_error_before_anything_is_spent(
    structure: Any, problem: str
) -> None:
    async with ScriptedAgent(structure=structure).serve() as url:
        with pytest.raises(SetupError, match=problem):
            await RemoteAgent(url).check_health()


async def test_describe_asks_once_from_any_thread() -> None:
    script = ScriptedAgent()
    async with script.serve() as url:
        agent = RemoteAgent(url)
        found = await asyncio.gather(*(asyncio.to_thread(agent.describe) for _ in range(4)))
    assert {each.structure_id for each in found} == {found[0].structure_id}
    assert found[0].surface("answer#parameter.top_k").limits.kind == "integer"
    assert script.asked == 1


async def test_variables_in_headers_are_sent_and_redacted_and_never_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_TOKEN", "s3cret-of-the-desk")
    script = ScriptedAgent(lambda _: fail(500, "your token is s3cret-of-the-desk"))
    gateway = Gateway()
    with gateway.active():
        async with connect(script, headers={"Authorization": "Bearer ${DESK_TOKEN}"}) as agent:
            done = await agent.run(CASE, Profile.baseline(agent.describe()))
    assert {each["authorization"] for each in script.headers} == {"Bearer s3cret-of-the-desk"}
    assert "s3cret" not in repr(agent)
    assert gateway.redactor.redact_text(str(done.error)).endswith("your token is ***")
    monkeypatch.delenv("DESK_TOKEN")
    with pytest.raises(SetupError, match="the environment variable 'DESK_TOKEN' is not set"):
        await agent.check_health()


async def test_a_variable_with_a_line_break_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end it is left out: the variable comes from a file. Inside it would begin another header."""
    monkeypatch.setenv("DESK_TOKEN", "s3cret-of-the-desk\n")
    script = ScriptedAgent(lambda _: fail(500, ""))
    async with connect(script, headers={"Authorization": "Bearer ${DESK_TOKEN}"}) as agent:
        await agent.run(CASE, Profile.baseline(agent.describe()))
        assert {each["authorization"] for each in script.headers} == {"Bearer s3cret-of-the-desk"}
        monkeypatch.setenv("DESK_TOKEN", "s3cret-of-the-desk\r\nX-Role: admin")
        with pytest.raises(
            SetupError, match=r"the header 'Authorization' of the service .+ contains a line"
        ) as refused:
            await agent.check_health()
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "localhost:80"}, "give one such as http://localhost:8080"),
        ({"headers": {"a b": "c"}}, "'a b' cannot be sent as a header"),
        ({"headers": {"a": "b\nc"}}, "'a' cannot be sent as a header"),
        ({"timeout_s": 0}, "timeout_s must be above 0"),
        ({"retries": -1}, "retries is -1; give 0 or more"),
    ],
)
def test_wrong_settings_are_found_before_anything_is_asked(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        RemoteAgent(**{"url": "http://127.0.0.1:1", **settings})


async def test_an_agent_on_another_machine_is_sent_the_address_that_it_can_reach() -> None:
    async def answer(sent: dict[str, Any]) -> Answer:
        return {"run": {"output": await ask(sent)}}

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = ScriptedAgent(answer)
    with Gateway(models={"clerk": ScriptedModel(lambda _: "yes")}).active():
        async with connect(script, gateway=f"http://localhost:{port}/") as agent:
            runs = await asyncio.gather(*(agent.run(CASE, Profile.baseline(agent.describe())) for _ in range(3)))
    assert [(run.output, run.error) for run in runs] == [("yes", None)] * 3
    assert {each["models"]["base_url"].split("/")[2] for each in script.requests} == {f"localhost:{port}"}
    assert len({each["models"]["api_key"] for each in script.requests}) == 3


async def test_a_port_of_the_gateway_that_is_in_use_ends_the_run() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with connect(ScriptedAgent(), gateway=f"http://127.0.0.1:{port}") as agent:
            with pytest.raises(SetupError, match=f"port {port} cannot be used: it is in use; give another one"):
                await agent.run(CASE, Profile.baseline(agent.describe()))


@pytest.mark.parametrize("address", ["https://a.example", "10.0.0.5:8787", "http://a.example/v1", ""])
def test_a_gateway_is_an_address_of_this_machine(address: str) -> None:
    with pytest.raises(SetupError, match="give the address of this machine and a port"):
        RemoteAgent("http://127.0.0.1:1", gateway=address)


async def test_an_agent_that_is_too_slow_after_it_was_down_is_an_outage() -> None:
    stuck, statuses = asyncio.Event(), [503]

    async def answer(_: object) -> Answer:
        if statuses:
            return fail(statuses.pop())
        await stuck.wait()
        raise AssertionError

    script = ScriptedAgent(answer)
    async with connect(script) as agent:
        done = await agent.run(CASE, Profile.baseline(agent.describe()), RunContext(deadline_s=0.2))
    assert done.error is not None
    assert done.error.is_outage
    assert len(script.requests) == 2


async def test_describe_works_in_an_event_loop_that_something_else_serves() -> None:
    """Also in the one that synchronous code uses in the background."""

    async def describe(agent: RemoteAgent) -> tuple[str, ...]:
        return agent.describe().surface_ids

    async with ScriptedAgent().serve() as url:
        there = asyncio.run_coroutine_threadsafe(describe(RemoteAgent(url)), get_background_loop())
        found = await asyncio.wrap_future(there)
    assert len(found) == 3


async def test_each_turn_of_a_conversation_is_a_run_with_the_turns_before_it() -> None:
    script = ScriptedAgent(lambda sent: {"run": {"output": f"{sent['input']['text']}!"}})
    turns = (Turn(user="Tea", expected="Tea!"), Turn(user="Milk", expected="Milk!"))
    cases = EvalSet(id="s", cases=(EvalCase(id="tea", turns=turns, state={"table": 4}),))
    async with connect(script) as agent:
        found = await Evaluator(build_metrics([{"metric_name": "exact_match"}])).evaluate(agent, cases)
    assert found.mean_score == 1.0
    assert [(each["turn"], each["input"]) for each in script.requests] == [
        (0, {"text": "Tea", "history": [], "state": {"table": 4}}),
        (
            1,
            {
                "text": "Milk",
                "history": [{"role": "user", "content": "Tea"}, {"role": "assistant", "content": "Tea!"}],
                "state": {"table": 4},
            },
        ),
    ]
