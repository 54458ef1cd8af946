from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import httpx
import pytest

from promptiter.endpoint.sessions import list_sessions
from promptiter.errors import BudgetEndedError, ModelUnavailableError, UnexpectedCallError
from promptiter.llm import Budget, Gateway, ModelReply, ModelRequest, ScriptedModel, open_cache
from promptiter.llm.retries import Retries
from tests.endpoint.clients import CASE, HELLO, build_gateway, echo, open_client, post_chat, run_case, wait_until

pytestmark = pytest.mark.slow


async def test_a_call_is_answered_by_the_active_gateway_and_kept_in_the_session() -> None:
    gateway = build_gateway()
    async with run_case(gateway) as (session, client):
        response = await post_chat(client)
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == "You said: Hello"
    (call,) = session.calls
    assert (call.node, call.request.text, call.error) == ("", "Hello", None)
    assert call.reply is not None
    assert call.reply.text == "You said: Hello"
    assert call.start_ns <= call.end_ns
    assert gateway.ledger.snapshot().total.calls == 1


async def test_the_header_names_the_node() -> None:
    async with run_case() as (session, client):
        client.headers["X-Promptiter-Node"] = "planner"
        await post_chat(client)
    assert [call.node for call in session.calls] == ["planner"]


async def test_a_second_run_is_answered_from_the_cache_also_in_parallel() -> None:
    answers = iter(range(100))
    gateway = build_gateway(lambda request: f"{request.text} {next(answers)}")
    said = []
    for _ in range(2):
        async with run_case(gateway) as (_, client):
            texts = ("same", "same", "other", "same")
            responses = await asyncio.gather(*(post_chat(client, text) for text in texts))
            said.append(sorted(each.json()["choices"][0]["message"]["content"] for each in responses))
    assert said[0] == said[1]
    assert len(set(said[0])) == 4
    assert (gateway.ledger.snapshot().total.calls, gateway.ledger.snapshot().total.cache_hits) == (4, 4)


async def test_repeats_turns_and_nodes_have_answers_of_their_own() -> None:
    gateway = build_gateway()
    for context in (CASE, replace(CASE, repeat=1), replace(CASE, turn=1), replace(CASE, case_id="case-2")):
        async with run_case(gateway, context) as (_, client):
            await post_chat(client)
    async with run_case(gateway) as (_, client):
        client.headers["X-Promptiter-Node"] = "planner"
        await post_chat(client)
    assert gateway.ledger.snapshot().total.calls == 5


async def test_parallel_sessions_do_not_mix() -> None:
    gateway = build_gateway()

    async def run(number: int) -> list[str]:
        async with run_case(gateway, replace(CASE, case_id=str(number))) as (session, client):
            await asyncio.gather(*(post_chat(client, f"{number} {each}") for each in range(3)))
        return sorted(call.request.text for call in session.calls)

    found = await asyncio.gather(*map(run, range(8)))
    assert found == [[f"{number} {each}" for each in range(3)] for number in range(8)]


async def test_environment_leads_both_sdks_to_the_session() -> None:
    async with run_case() as (session, _):
        environment = session.environment
    root = session.base_url.removesuffix("/v1")
    assert environment["OPENAI_BASE_URL"] == environment["OPENAI_API_BASE"] == session.base_url
    assert environment["ANTHROPIC_BASE_URL"] == root
    assert environment["OPENAI_API_KEY"] == environment["ANTHROPIC_API_KEY"] == session.key
    assert session.key in session.base_url


async def test_a_proxy_of_the_environment_is_bypassed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "intranet")
    monkeypatch.delenv("no_proxy", raising=False)
    async with run_case() as (session, _):
        assert session.environment["NO_PROXY"] == "intranet,127.0.0.1"
        assert session.environment["no_proxy"] == "127.0.0.1"


async def test_a_spent_budget_is_fatal_and_not_retried_by_clients() -> None:
    with pytest.raises(BudgetEndedError):  # noqa: PT012 - of the end of the block
        async with run_case(build_gateway(budget=Budget(max_calls=1))) as (session, client):
            assert (await post_chat(client, "one")).status_code == 200
            refused = await post_chat(client, "two")
            raise ValueError("whatever the agent makes of it")
    assert refused.status_code == 403
    assert refused.headers["x-should-retry"] == "false"
    assert refused.json()["error"]["code"] == "budget_ended"
    with pytest.raises(BudgetEndedError):
        session.raise_fatal()


async def test_an_unexpected_call_of_a_scripted_model_is_fatal() -> None:
    with pytest.raises(UnexpectedCallError):
        async with run_case(Gateway(models={"clerk": ScriptedModel([])})) as (session, client):
            assert (await post_chat(client)).status_code == 500
    with pytest.raises(UnexpectedCallError):
        session.raise_fatal()


async def test_an_outage_is_kept_as_one() -> None:
    async def fail(request: ModelRequest, *, repeat: int) -> ModelReply:
        raise ModelUnavailableError("down")

    async with run_case(Gateway(models={"clerk": fail}, retries=Retries(attempts=1))) as (session, client):
        response = await post_chat(client)
    assert response.status_code == 502
    assert response.headers["x-should-retry"] == "false"
    (failure,) = session.outages
    assert (failure.type, failure.is_outage) == ("ModelUnavailableError", True)
    assert session.fatal is None


async def test_a_client_that_disconnects_does_not_cancel_its_call() -> None:
    asked, release = threading.Event(), threading.Event()

    async def answer(request: ModelRequest, *, repeat: int) -> ModelReply:
        asked.set()
        await wait_until(release.is_set)
        return ModelReply(text=echo(request))

    gateway = Gateway(models={"clerk": answer})
    async with run_case(gateway) as (session, client):
        await disconnect(client, asked)
        again = asyncio.create_task(post_chat(client))
        await asyncio.sleep(0.05)
        release.set()
        assert (await again).status_code == 200
    assert gateway.ledger.snapshot().total.calls == 1
    assert all(call.reply for call in session.calls)


async def test_the_session_waits_for_calls_of_clients_that_are_gone() -> None:
    asked, release = threading.Event(), threading.Event()

    def answer(messages: object) -> str:
        asked.set()
        release.wait(20)
        return "late"

    gateway = Gateway(models={"clerk": answer})
    async with run_case(gateway) as (session, client):
        await disconnect(client, asked)
        threading.Timer(0.1, release.set).start()
    assert [call.reply and call.reply.text for call in session.calls] == ["late"]
    assert gateway.ledger.snapshot().total.calls == 1


async def disconnect(client: httpx.AsyncClient, asked: threading.Event) -> None:
    """Ask, and close the connection once the model has the question."""
    task = asyncio.create_task(post_chat(client))
    await wait_until(asked.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_run_counts_its_calls_as_lost() -> None:
    asked = threading.Event()

    async def answer(request: ModelRequest, *, repeat: int) -> ModelReply:
        asked.set()
        await asyncio.sleep(60)
        raise AssertionError

    gateway = Gateway(models={"clerk": answer})

    async def run() -> None:
        async with run_case(gateway) as (_, client):
            task = asyncio.create_task(post_chat(client))
            await wait_until(asked.is_set)
            task.cancel()

    running = asyncio.create_task(run())
    await wait_until(lambda: asked.is_set() and not list_sessions())
    await asyncio.sleep(0.05)
    running.cancel()  # while it waits for the call
    with pytest.raises(asyncio.CancelledError):
        await running
    await wait_until(lambda: gateway.ledger.snapshot().total.lost_calls)
    assert gateway.ledger.snapshot().total.lost_calls == 1


async def test_answers_are_stored_in_the_cache_of_the_gateway(tmp_path: object) -> None:
    cache = open_cache(f"{tmp_path}/answers.sqlite")
    async with run_case(build_gateway(cache=cache)) as (_, client):
        await post_chat(client)
    gateway = Gateway(models={"clerk": ScriptedModel([])}, cache=cache)
    async with run_case(gateway) as (_, client):
        assert (await post_chat(client)).json()["choices"][0]["message"]["content"] == "You said: Hello"


async def test_a_session_that_is_cancelled_at_its_start_does_not_keep_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("promptiter.endpoint.hosting.LINGER_S", 0.05)

    async def open_one() -> None:
        async with run_case():
            await asyncio.sleep(10)

    starting = asyncio.create_task(open_one())
    await asyncio.sleep(0)  # until it waits for the server
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await wait_until(lambda: all(each.name != "promptiter-endpoint" for each in threading.enumerate()))


async def test_the_server_stops_a_moment_after_the_last_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.endpoint.hosting.LINGER_S", 0.05)
    async with run_case() as (session, client):
        await post_chat(client)
        thread = next(each for each in threading.enumerate() if each.name == "promptiter-endpoint")
    await asyncio.to_thread(thread.join, 5)
    assert not thread.is_alive()
    async with run_case() as (other, client):
        assert other.base_url != session.base_url
        assert (await post_chat(client)).status_code == 200


def test_sessions_work_on_the_event_loops_of_several_threads() -> None:
    gateway = build_gateway()
    found: list[int] = []

    async def run(number: int) -> None:
        async with run_case(gateway, replace(CASE, case_id=str(number))) as (_, client):
            found.append((await post_chat(client)).status_code)

    threads = [threading.Thread(target=asyncio.run, args=(run(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200, 200, 200]


async def test_an_ended_session_takes_no_calls() -> None:
    async with run_case() as (session, _):
        pass
    async with run_case(), open_client(session) as client:  # the server may still be the same
        try:
            response = await post_chat(client)
        except httpx.ConnectError:
            return
    assert response.status_code == 401


async def test_an_agent_that_blocks_the_event_loop_of_its_answer_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.endpoint.sessions.BLOCKED_S", 0.2)
    gateway = build_gateway().for_run()
    gateway.bind_to_running_loop()
    async with run_case(gateway) as (session, _):
        body = {"model": "clerk", "messages": HELLO}
        response = httpx.post(  # noqa: ASYNC210 - the mistake that this is about
            f"{session.base_url}/chat/completions", json=body, trust_env=False, timeout=20
        )
        assert response.status_code == 400
        assert "use the async client" in response.text
        assert session.fatal is None
