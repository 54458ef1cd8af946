from __future__ import annotations

from typing import Any

import httpx
import orjson
import pytest

from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    RateLimitedError,
)
from promptiter.llm import Gateway, ModelReply, ModelRequest
from promptiter.llm.retries import Retries
from tests.endpoint.clients import HELLO, build_gateway, open_client, post_chat, run_case

BODY = {"model": "clerk", "messages": HELLO}


async def test_the_key_may_be_the_api_key_instead_of_part_of_the_url() -> None:
    async with run_case() as (session, client):
        url = session.base_url.replace(f"/{session.key}", "")
        for headers in ({"Authorization": f"Bearer {session.key}"}, {"x-api-key": session.key}):
            response = await client.post(f"{url}/chat/completions", json=BODY, headers=headers)
            assert response.status_code == 200
        assert (await client.post(f"{url}/chat/completions", json=BODY)).status_code == 401


async def test_an_agent_with_an_api_key_of_its_own_uses_the_key_in_the_url() -> None:
    async with run_case() as (_, client):
        client.headers["Authorization"] = "Bearer sk-mine"
        assert (await post_chat(client)).status_code == 200


async def test_keys_of_two_sessions_in_one_request_are_refused() -> None:
    async with run_case() as (mine, client), run_case() as (other, _):
        for headers in (
            {"Authorization": f"Bearer {other.key}"},
            {"x-api-key": other.key},
            {"Authorization": "Bearer sk-mine", "x-api-key": other.key},
            {"Authorization": f"Bearer {mine.key}", "api-key": other.key},
        ):
            response = await client.post("/chat/completions", json=BODY, headers=headers)
            assert response.status_code == 403
        assert not mine.calls
        assert not other.calls


@pytest.mark.parametrize("key", ["sk-promptiter-unknown-key", "..%2f..%2fetc", "a" * 5000])
async def test_unknown_keys_are_refused_whatever_is_asked(key: str) -> None:
    async with run_case() as (session, client):
        root = session.base_url.split("/sk-")[0]
        for path in ("chat/completions", "models", "anything"):
            response = await client.get(f"{root}/{key}/v1/{path}")
            assert response.status_code in (400, 401)
            assert response.headers.get("x-should-retry", "false") == "false"


@pytest.mark.parametrize("model", ["os:abort", "clerk:answer", "subprocess:check_output"])
async def test_a_request_cannot_import_python_code(model: str) -> None:
    async with run_case() as (session, client):
        response = await client.post("/chat/completions", json={**BODY, "model": model})
        assert response.status_code == 400
        assert "give it a name under models" in response.json()["error"]["message"]
        assert (await post_chat(client)).status_code == 200
    assert len(session.calls) == 1


async def test_a_model_in_python_that_the_gateway_was_given_is_served_by_its_name() -> None:
    gateway = Gateway(models={"desk:echo": lambda messages: str(messages[-1]["content"])})
    async with run_case(gateway) as (_, client):
        response = await client.post("/chat/completions", json={**BODY, "model": "desk:echo"})
        assert response.status_code == 200


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]}),
        ("messages", {"metadata": 5}),
        ("messages", {"tool_choice": "auto"}),
        ("messages", {"tools": 5}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": 5}]}]}),
        ("responses", {"input": "x", "tools": 5}),
        ("responses", {"input": "x", "text": 5}),
        ("responses", {"input": "x", "previous_response_id": ["a"]}),
        ("chat/completions", {"foo": orjson.loads("[" * 600 + "]" * 600)}),
    ],
)
async def test_a_body_with_values_of_the_wrong_type_is_refused(path: str, fields: dict[str, Any]) -> None:
    async with run_case() as (session, client):
        response = await client.post(f"/{path}", json={**BODY, **fields})
        assert response.status_code == 400
        assert "error" in response.json()
        assert not session.calls


async def test_an_unknown_path_is_told_what_is_served() -> None:
    async with run_case() as (_, client):
        response = await client.post("/fine_tuning/jobs", json={})
        assert response.status_code == 404
        assert "POST /v1/chat/completions" in response.json()["error"]["message"]
        assert (await client.get("/chat/completions")).status_code == 404


async def test_the_models_of_the_gateway_are_listed() -> None:
    async with run_case() as (_, client):
        listed = (await client.get("/models")).json()
    assert [each["id"] for each in listed["data"]] == ["clerk"]


@pytest.mark.parametrize("node", ["x" * 101, "a\x01b", "caf\x85", "tab\tted"])
async def test_a_node_name_with_control_characters_or_too_long_is_refused(node: str) -> None:
    async with run_case() as (session, client):
        response = await client.post(
            "/chat/completions", json=BODY, headers=[(b"X-Promptiter-Node", node.encode("latin-1"))]
        )
        assert response.status_code == 400
        assert not session.calls


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (BadRequestError("bad"), 400, "invalid_request_error"),
        (AccessDeniedError("no"), 401, "authentication_error"),
        (ModelNotFoundError("none"), 404, "not_found_error"),
        (RateLimitedError("slow"), 429, "rate_limit_error"),
        (ModelTimeoutError("late"), 504, "timeout_error"),
        (ModelError("odd"), 502, "api_error"),
    ],
)
async def test_errors_of_the_model_have_the_shape_of_the_protocol(error: ModelError, status: int, kind: str) -> None:
    async def fail(request: ModelRequest, *, repeat: int) -> ModelReply:
        raise error

    async with run_case(Gateway(models={"clerk": fail}, retries=Retries(attempts=1))) as (_, client):
        response = await post_chat(client, stream=True)
    found = response.json()["error"]
    assert (response.status_code, found["type"]) == (status, kind)
    assert str(error) in found["message"]
    assert response.headers["x-should-retry"] == "false"


async def test_errors_repeat_no_keys() -> None:
    async def fail(request: ModelRequest, *, repeat: int) -> ModelReply:
        raise BadRequestError("the key sk-abcdefghijklmnop1234 is wrong")

    async with run_case(Gateway(models={"clerk": fail})) as (session, client):
        response = await post_chat(client)
    assert "abcdefgh" not in response.text
    assert "abcdefgh" not in str(session.calls)


async def test_the_endpoint_listens_on_loopback_only() -> None:
    async with run_case(build_gateway()) as (session, _), open_client(session):
        assert httpx.URL(session.base_url).host == "127.0.0.1"
