"""GatewayModel: the models of the promptiter that sent a run, called over HTTP, so that it counts and caches them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import orjson

from promptiter.agents.black_box.service_client import ServiceReply, send
from promptiter.agents.step_calls import find_calls
from promptiter.endpoint.routes import NODE_HEADER
from promptiter.errors import (
    AccessDeniedError,
    BadAnswerError,
    BadRequestError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    ServiceError,
)
from promptiter.llm.gateway import Gateway
from promptiter.llm.litellm_options import build_options
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.retries import Retries
from promptiter.wording import shorten
from traces import Usage
from traces.model import Json

MAX_REPLY_BYTES = 50_000_000
TIMEOUT_S = 3600.0
"""The gateway that is called has limits of its own, and retries."""
NO_LIMIT = 2**31 - 1
"""The default limit of an answer's tokens in a gateway whose calls are limited elsewhere. It is not sent."""
_NOT_SENT = ("_skip_mcp_handler", "extra_body", "extra_headers", "timeout")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayModel:
    """Calls any model by name at the address and with the key of one run."""

    base_url: str = field(repr=False)
    api_key: str = field(repr=False)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - the key knows it
        headers = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}
        calls = find_calls()
        if calls is not None and calls.step.node_id.isascii() and calls.step.node_id.isprintable():
            headers[NODE_HEADER] = calls.step.node_id
        try:
            reply = await send(
                "POST",
                f"{self.base_url.rstrip('/')}/chat/completions",
                headers=headers,
                body=orjson.dumps(_build_body(request)),
                timeout_s=TIMEOUT_S,
                max_bytes=MAX_REPLY_BYTES,
            )
        except ServiceError as error:
            raise BadAnswerError(str(error)) from error
        if reply.status != HTTPStatus.OK:
            raise _find_error(reply)
        return _read_completion(reply.text)


def build_gateway(base_url: str, api_key: str) -> Gateway:
    """A gateway whose models are all called there. It neither retries nor limits: the other one does."""
    model = GatewayModel(base_url=base_url, api_key=api_key)
    gateway = Gateway(others=model, retries=Retries(attempts=1), timeout_s=TIMEOUT_S, max_output_tokens=NO_LIMIT)
    gateway.redactor.learn([api_key])
    return gateway


def _build_body(request: ModelRequest) -> dict[str, Any]:
    options = build_options(request)
    body = {name: value for name, value in options.items() if name not in _NOT_SENT}
    body |= options.get("extra_body") or {}
    if body.get("max_tokens") == NO_LIMIT:
        del body["max_tokens"]
    return {"model": request.model, **body}


def _read_completion(text: str) -> ModelReply:
    try:
        completion = orjson.loads(text)
        choice, usage = completion["choices"][0], completion.get("usage") or {}
        message = choice["message"]
        return ModelReply(
            text=message.get("content") or "",
            tool_requests=tuple(map(_read_tool_call, message.get("tool_calls") or ())),
            usage=Usage(
                input_tokens=usage.get("prompt_tokens"),
                output_tokens=usage.get("completion_tokens"),
                cached_input_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
            ),
            finish_reason=choice.get("finish_reason") or "stop",
        )
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError) as error:
        raise BadAnswerError(f"the gateway answered with what is not a completion: {shorten(text)}") from error


def _read_tool_call(call: Mapping[str, Any]) -> ToolRequest:
    function = call["function"]
    arguments: Json = function.get("arguments")
    with suppress(orjson.JSONDecodeError, TypeError):  # what the model wrote instead of JSON
        arguments = orjson.loads(arguments)
    return ToolRequest(call.get("id") or "", function["name"], arguments)


def _find_error(reply: ServiceReply) -> ModelError:
    """The error that the gateway answered with. It has retried already."""
    try:
        message = str(orjson.loads(reply.text)["error"]["message"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        message = f"status {reply.status}: {shorten(reply.text)}"
    kinds: Mapping[int, type[ModelError]] = {
        401: AccessDeniedError,
        404: ModelNotFoundError,
        408: ModelTimeoutError,
        429: RateLimitedError,
        504: ModelTimeoutError,
    }
    usual = ModelUnavailableError if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR else BadRequestError
    return kinds.get(reply.status, usual)(message)
