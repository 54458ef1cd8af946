from __future__ import annotations

import pytest

from promptiter.endpoint.sessions import EndpointCall
from promptiter.endpoint.standalone import serve_gateway
from promptiter.errors import SetupError
from promptiter.llm import Budget
from tests.endpoint.clients import build_gateway, open_client, post_chat

TOKEN = "token-of-the-test"


async def test_equal_requests_are_one_call_and_each_is_reported() -> None:
    gateway = build_gateway()
    calls: list[EndpointCall] = []
    async with serve_gateway(gateway, token=TOKEN, on_call=calls.append) as session, open_client(session) as client:
        assert session.key == TOKEN
        for _ in range(3):
            assert (await post_chat(client)).status_code == 200
        assert (await client.get(session.base_url.replace(TOKEN, "token-of-another"))).status_code == 401
    assert [call.request.text for call in calls] == ["Hello"] * 3
    total = gateway.ledger.snapshot().total
    assert (total.calls, total.cache_hits) == (1, 2)


async def test_conversations_have_answers_of_their_own() -> None:
    gateway = build_gateway()
    async with serve_gateway(gateway) as session, open_client(session) as client:
        for name in ("a", "b", "a"):
            client.headers["X-Promptiter-Conversation"] = name
            await post_chat(client)
    assert [call.conversation for call in session.calls] == ["a", "b", "a"]
    assert gateway.ledger.snapshot().total.calls == 2


async def test_a_spent_budget_is_an_answer_and_not_an_end() -> None:
    gateway = build_gateway(budget=Budget(max_calls=1))
    async with serve_gateway(gateway) as session, open_client(session) as client:
        statuses = [(await post_chat(client, text)).status_code for text in ("one", "two", "one")]
    assert statuses == [200, 403, 200]


async def test_a_port_that_is_in_use_is_named() -> None:
    async with serve_gateway(build_gateway()) as session:
        port = int(session.base_url.split(":")[2].split("/")[0])
        with pytest.raises(
            SetupError, match=f"^port {port} of '127.0.0.1' cannot be used: it is in use; give another port"
        ):
            async with serve_gateway(build_gateway(), port=port):
                pass


@pytest.mark.parametrize("token", ["short", "a" * 129, "with/slash-with/slash", "with space with space"])
async def test_a_token_that_cannot_be_in_a_url_is_refused(token: str) -> None:
    with pytest.raises(SetupError, match="16 to 128"):
        async with serve_gateway(build_gateway(), token=token):
            pass
