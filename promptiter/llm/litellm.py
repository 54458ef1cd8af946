"""Any model that litellm knows, by name: `gpt-4o-mini`, `anthropic/claude-…`, `openai/…` with your own `api_base`.

litellm is imported when it is first needed: that takes a second, and it would download a price list by default. Its own
retries are off, because the gateway retries.
"""

from __future__ import annotations

import os
import re
import warnings
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
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    TransientModelError,
    nearest,
)
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import openai_messages
from promptiter.llm.options import RESERVED_OPTIONS, check_options
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.secret import reveal, secrets_of_address, secrets_of_headers
from promptiter.llm.served_models import find_misspelled_model
from traces import Usage
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteLLMModel:
    """A litellm model, with its address and key if they are not the provider's defaults. Both are kept secret."""

    api_base: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 120.0
    other_names: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Names that litellm does not serve, one of which may have been meant."""

    @property
    def settings(self) -> Mapping[str, Json]:
        """Where the model is served, without what is secret about the address."""
        redactor = Redactor(secrets_of_address(self.api_base or ""))
        return {"api_base": self.api_base and redactor.redact_text(self.api_base)}

    def secrets(self) -> tuple[str, ...]:
        """The key, and the secret parts of headers and address."""
        key = self.api_key or ""
        return (key, *secrets_of_headers(self.headers), *secrets_of_address(self.api_base or ""))

    def find_setup_problem(self, name: str) -> str | None:
        """Why a call of this model must fail, if that is certain: its provider is unknown, or no key is set."""
        if problem := _find_unknown_provider(name, self.api_base, self.other_names):
            return problem
        return None if self.api_key or self.api_base or self.headers else _find_missing_key(name)

    def find_misspelled_model(self, name: str) -> str | None:
        """A line if this name resembles one that the user's own server lists; blocking. No model is called.

        The server is that of `api_base`, or for OpenAI models of the environment. Other servers are not asked.
        """
        bare, provider, _, _ = load().get_llm_provider(name, api_base=self.api_base)
        own = [os.environ.get(variable) for variable in _BASE_VARIABLES] if provider == "openai" else []
        api_base = self.api_base or next(filter(None, own), None)
        if api_base is None or not api_base.startswith(("http://", "https://")):
            return None
        key = self.api_key or (os.environ.get("OPENAI_API_KEY") if provider == "openai" else None)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        place = Redactor(secrets_of_address(api_base)).redact_text(api_base)
        return find_misspelled_model(bare, api_base=api_base, headers={**headers, **self.headers}, place=place)

    def prepare(self) -> None:
        """Import what the first call would import; blocking."""
        load()
        import openai.resources.chat  # noqa: F401 - litellm needs it

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - servers sample again
        litellm = load()
        check_options(request.options, place=f"the options of model {request.model!r}")
        options: dict[str, Any] = reveal(
            {name: value for name, value in request.options.items() if name not in RESERVED_OPTIONS}
        )
        headers = {**self.headers, **(options.pop("extra_headers", None) or {})}
        timeout_s = options.pop("timeout", None) or self.timeout_s
        if request.tools:
            options["_skip_mcp_handler"] = True  # otherwise litellm imports mcp, which it does not install
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
                extra_headers=headers or None,
                timeout=timeout_s,
                num_retries=0,
                max_retries=0,
                drop_params=True,
                **options,
            )
        except tuple(litellm.exceptions.LITELLM_EXCEPTION_TYPES) as error:
            redactor = Redactor((*secrets_from_environment(os.environ), *self.secrets()))
            translated = _translate_error(error, litellm, redactor)
            if problem := self.find_setup_problem(request.model):
                is_transient = isinstance(translated, TransientModelError)
                translated = (AccessDeniedError if is_transient else type(translated))(problem)
            raise translated from None  # the error itself may repeat the key
        return _read_reply(response)


@cache
def load() -> ModuleType:
    """Import litellm, without its log output and its download of prices."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOG", "ERROR")
    import litellm

    # A call that is cancelled while litellm prepares it in a thread leaves a coroutine that was not started.
    warnings.filterwarnings("ignore", r"coroutine '[A-Z]\w+\.(acompletion|async_completion)' was never awaited")
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    return litellm


def price_per_token_usd(model: str) -> tuple[float, float] | None:
    """The price of an input and an output token on litellm's list; None if the model is not on it."""
    entry = _find_listed(model)
    if entry.get("input_cost_per_token") is None:
        return None
    return float(entry["input_cost_per_token"]), float(entry.get("output_cost_per_token") or 0.0)


def context_tokens(model: str) -> int | None:
    """How many tokens a request to the model may have, by litellm's list; None if the model is not on it."""
    most = _find_listed(model).get("max_input_tokens")
    return most if isinstance(most, int) and most > 0 else None


def _find_listed(model: str) -> Mapping[str, Any]:
    """The entry of a model in litellm's list, empty if there is none."""
    known = load().model_cost
    name = re.sub(r"^judge-[0-9a-f]+/", "", model)  # a judge with a key of its own is the same model
    return known.get(name) or known.get(name.removeprefix("openai/")) or {}


def _find_missing_key(model: str) -> str | None:
    """A line that says which environment variable holds the key of a model, if it is certain that none is set."""
    litellm = load()
    _, provider, key, _ = litellm.get_llm_provider(model)
    missing = litellm.validate_environment(model)["missing_keys"]
    if key or provider in _OTHER_CREDENTIALS or not missing or not all(name.endswith("_API_KEY") for name in missing):
        return None
    if litellm.api_key or getattr(litellm, f"{provider}_key", None) or litellm.secret_manager_client:
        return None
    owners = tuple(name.removesuffix("API_KEY") for name in missing)  # such as OPENAI_ of OPENAI_ADMIN_KEY
    if any(name.startswith(owners) and name.endswith(("KEY", "TOKEN")) for name, value in os.environ.items() if value):
        return None
    return f"{model} needs {' or '.join(missing)}; set it, or models.{model}.api_key in promptiter.yaml"


def _find_unknown_provider(model: str, api_base: str | None, other_names: tuple[str, ...]) -> str | None:
    litellm = load()
    try:
        litellm.get_llm_provider(model, api_base=api_base)
    except litellm.exceptions.BadRequestError:
        hint = nearest(model, [*other_names, *litellm.model_cost])
        return f"{model} names no provider that litellm knows{hint}; write provider/model, such as openai/{model}"
    return None


_BASE_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")

_OTHER_CREDENTIALS = frozenset(("azure", "cohere", "huggingface", "openrouter", "vercel_ai_gateway", "volcengine"))
"""Providers that accept credentials which litellm's check of the environment does not know."""


def _translate_error(error: Any, litellm: ModuleType, redactor: Redactor) -> ModelError:
    """An error of litellm as one of ours: transient if a retry can help."""
    known = litellm.exceptions
    redacted = redactor.redact_text(str(error))  # before it is cut: part of a key is not recognized
    message = f"{type(error).__name__}: {redacted[:500]}"
    if isinstance(error, known.RateLimitError):
        return RateLimitedError(message, retry_after_s=_retry_after_s(error))
    if isinstance(error, known.Timeout):
        return ModelTimeoutError(message, may_be_billed=_may_be_billed(error))
    if isinstance(error, known.AuthenticationError | known.PermissionDeniedError) or _MISSING_KEY.search(str(error)):
        return AccessDeniedError(message)
    if isinstance(error, known.NotFoundError):
        return ModelNotFoundError(f"{message}; check the name of the model and the address of its server")
    if isinstance(error, known.BadRequestError | known.UnprocessableEntityError):
        return BadRequestError(message)
    return ModelUnavailableError(message, retry_after_s=_retry_after_s(error), may_be_billed=_may_be_billed(error))


def _may_be_billed(error: BaseException) -> bool:
    """Whether a request was sent and the server did not refuse it: it broke off, or the answer cannot be read."""
    import httpx  # litellm needs it

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            return False
        if isinstance(cause, httpx.HTTPStatusError):
            return cause.response.status_code in _STATUSES_OF_PROXIES
        cause = cause.__cause__ or cause.__context__
    return True


_STATUSES_OF_PROXIES = (408, 502, 504, 520, 524)
"""A proxy answers so if the server behind it takes too long, or its answer cannot be read. That server may bill."""


_MISSING_KEY = re.compile(r"missing (credentials|[\w ]*api[ _]key)", re.IGNORECASE)
"""litellm raises some of these as server errors."""


def _retry_after_s(error: Any) -> float | None:
    response = getattr(error, "response", None)
    for headers in (getattr(response, "headers", None), getattr(error, "headers", None)):
        if headers and (value := headers.get("retry-after")):
            try:
                return max(0.0, float(value))
            except ValueError:  # a date: rare, and the usual pause will do
                return None
    return None


def _read_reply(response: Any) -> ModelReply:
    if not getattr(response, "choices", None):
        raise ModelUnavailableError("the server answered without choices", may_be_billed=True)
    choice = response.choices[0]
    text = choice.message.content or ""
    tool_calls = choice.message.tool_calls or ()
    return ModelReply(
        text=text,
        tool_requests=tuple(
            ToolRequest(call.id or "", call.function.name or "", _read_arguments(call.function.arguments))
            for call in tool_calls
        ),
        usage=_read_usage(getattr(response, "usage", None), is_empty=not text and not tool_calls),
        finish_reason=choice.finish_reason or "stop",
    )


def _read_usage(usage: Any, *, is_empty: bool) -> Usage:
    """The usage of an answer. litellm puts zeros where a server reports no figure; only an empty answer can have 0."""
    if not getattr(usage, "prompt_tokens", None):
        return Usage()
    return Usage(
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens or (0 if is_empty else None),
        cached_input_tokens=getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None),
    )


def _read_arguments(raw: str | None) -> Json:
    try:
        return orjson.loads(raw or "{}")
    except orjson.JSONDecodeError:
        return raw
