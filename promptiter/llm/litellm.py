"""Any model that litellm knows, by name: `gpt-4o-mini`, `anthropic/claude-…`, `openai/…` with an `api_base` of yours.

litellm is imported at the first call: it takes a second, and would fetch a price list if it were not told not to. Its
own retries are off; the gateway retries.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

import orjson

from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    ModelError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
)
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import openai_messages
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.secret import reveal, secrets_of_address, secrets_of_headers
from traces import Usage
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteLLMModel:
    """A litellm model, with where it is served and the key to it; neither is ever written down or shown."""

    api_base: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 120.0

    @property
    def settings(self) -> Mapping[str, Json]:
        """Where the model is served, without what is secret about the address."""
        redactor = Redactor(secrets_of_address(self.api_base or ""))
        return {"api_base": self.api_base and redactor.redact_text(self.api_base)}

    def secrets(self) -> tuple[str, ...]:
        """What nobody may see: the key, and what is secret about the headers and the address."""
        key = self.api_key or ""
        return (key, *secrets_of_headers(self.headers), *secrets_of_address(self.api_base or ""))

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - servers repeat themselves
        litellm = load()
        options: dict[str, Any] = reveal(dict(request.options))
        if request.tools:
            options["_skip_mcp_handler"] = True  # else litellm imports mcp, which it does not install, for any tool
            options["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters or {"type": "object", "properties": {}},
                    },
                }
                for tool in request.tools
            ]
        if request.schema is not None:
            options["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.schema, "strict": False},
            }
        try:
            response = await litellm.acompletion(
                model=request.model,
                messages=openai_messages(request),
                api_base=self.api_base,
                api_key=self.api_key,
                extra_headers=dict(self.headers) or None,
                timeout=self.timeout_s,
                num_retries=0,
                max_retries=0,
                drop_params=True,
                **options,
            )
        except tuple(litellm.exceptions.LITELLM_EXCEPTION_TYPES) as error:
            redactor = Redactor((*secrets_from_environment(os.environ), *self.secrets()))
            raise _translated(error, litellm, redactor) from None  # the error itself may repeat the key
        return _reply(response)


@cache
def load() -> ModuleType:
    """litellm, quiet and offline."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    import litellm

    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def price_per_token_usd(model: str) -> tuple[float, float] | None:
    """What litellm's price list says a token costs, in and out; None if it does not know the model."""
    entry = _listed(model)
    if entry.get("input_cost_per_token") is None:
        return None
    return float(entry["input_cost_per_token"]), float(entry.get("output_cost_per_token") or 0.0)


def context_tokens(model: str) -> int | None:
    """How many tokens litellm says that a request to the model may have; None if it does not know."""
    most = _listed(model).get("max_input_tokens")
    return most if isinstance(most, int) and most > 0 else None


def _listed(model: str) -> Mapping[str, Any]:
    """What litellm's list says of a model."""
    known = load().model_cost
    name = re.sub(r"^judge-[0-9a-f]+/", "", model)  # a judge with a key of its own is the same model
    return known.get(name) or known.get(name.removeprefix("openai/")) or {}


def _translated(error: Any, litellm: ModuleType, redactor: Redactor) -> ModelError:
    """litellm's error in our words: what a retry can help with, and what not."""
    known = litellm.exceptions
    message = f"{type(error).__name__}: {redactor.redact_text(str(error))[:500]}"  # half a key is not known any more
    if isinstance(error, known.RateLimitError):
        return RateLimitedError(message, retry_after_s=_retry_after_s(error))
    if isinstance(error, known.Timeout):
        return ModelTimeoutError(message)
    if isinstance(error, known.AuthenticationError | known.PermissionDeniedError):
        return AccessDeniedError(message)
    refused = (known.BadRequestError, known.NotFoundError, known.UnprocessableEntityError)
    if isinstance(error, refused):
        return BadRequestError(message)
    return ModelUnavailableError(message, retry_after_s=_retry_after_s(error))


def _retry_after_s(error: Any) -> float | None:
    response = getattr(error, "response", None)
    for headers in (getattr(response, "headers", None), getattr(error, "headers", None)):
        if headers and (value := headers.get("retry-after")):
            try:
                return max(0.0, float(value))
            except ValueError:  # a date: rare, and the backoff does as well
                return None
    return None


def _reply(response: Any) -> ModelReply:
    if not getattr(response, "choices", None):
        raise ModelUnavailableError("the server answered without choices")
    choice = response.choices[0]
    usage = getattr(response, "usage", None)
    details = getattr(usage, "prompt_tokens_details", None)
    return ModelReply(
        text=choice.message.content or "",
        tool_requests=tuple(
            ToolRequest(call.id or "", call.function.name or "", _arguments(call.function.arguments))
            for call in choice.message.tool_calls or ()
        ),
        usage=Usage(
            input_tokens=getattr(usage, "prompt_tokens", None),
            output_tokens=getattr(usage, "completion_tokens", None),
            cached_input_tokens=getattr(details, "cached_tokens", None),
        ),
        finish_reason=choice.finish_reason or "stop",
    )


def _arguments(raw: str | None) -> Json:
    try:
        return orjson.loads(raw or "{}")
    except orjson.JSONDecodeError:
        return raw
