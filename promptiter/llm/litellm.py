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

from promptiter.errors import AccessDeniedError, ModelError, ModelNotFoundError, TransientModelError, nearest
from promptiter.llm.litellm_errors import translate_error
from promptiter.llm.litellm_options import FORMAT, RefusedOptions, build_options, drop_option, find_refused_option
from promptiter.llm.litellm_replies import read_embeddings, read_reply
from promptiter.llm.messages import EmbeddingRequest, ModelReply, ModelRequest, RichMessage
from promptiter.llm.models import openai_messages
from promptiter.llm.options import OUTPUT_BOUNDS, check_options
from promptiter.llm.redaction import Redactor, secrets_from_environment
from promptiter.llm.secret import secrets_of_address, secrets_of_headers
from promptiter.llm.served_models import find_problem_of_server
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
    _refused: RefusedOptions = field(default_factory=RefusedOptions, init=False, repr=False, compare=False)

    @property
    def settings(self) -> Mapping[str, Json]:
        """Where the model is served, without what is secret about the address."""
        return {"api_base": self.api_base and _show_address(self.api_base)}

    def secrets(self) -> tuple[str, ...]:
        """The key, and the secret parts of headers and address."""
        key = self.api_key or ""
        return (key, *secrets_of_headers(self.headers), *secrets_of_address(self.api_base or ""))

    def find_setup_problem(self, name: str) -> str | None:
        """Why a call of this model must fail, if that is certain: its provider is unknown, or no key is set."""
        name = self._qualify(name)
        if problem := _find_unknown_provider(name, self.api_base, self.other_names):
            return problem
        return None if self.api_key or self.api_base or self.headers else _find_missing_key(name)

    def find_problem_of_server(self, name: str) -> str | None:
        """A line if the user's own server is down, or lists a name that this one resembles; blocking."""
        bare, provider, _, _ = load().get_llm_provider(self._qualify(name), api_base=self.api_base)
        if (api_base := self._find_server(provider)) is None:
            return None
        key = self.api_key or (os.environ.get("OPENAI_API_KEY") if provider == "openai" else None)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        place = _show_address(api_base)
        return find_problem_of_server(bare, api_base=api_base, headers={**headers, **self.headers}, place=place)

    def _show_server(self, name: str) -> str | None:
        """The address of the user's own server in messages; None if it is the provider's."""
        _, provider, _, _ = load().get_llm_provider(self._qualify(name), api_base=self.api_base)
        return None if (api_base := self._find_server(provider)) is None else _show_address(api_base)

    def _find_server(self, provider: str) -> str | None:
        """The address of the user's own server: `api_base`, or for OpenAI models that of the environment."""
        environ = os.environ if _kept is None else _kept
        own = [environ.get(variable) for variable in _BASE_VARIABLES] if provider == "openai" else []
        api_base = self.api_base or next(filter(None, own), None)
        return api_base if api_base is not None and api_base.startswith(("http://", "https://")) else None

    def _qualify(self, name: str) -> str:
        """The name for litellm. Agents give the bare name of a model on the user's own server, as in `qwen3-8b`."""
        if self._find_server("openai") is None or _has_provider(name, self.api_base):
            return name
        return f"openai/{name}"

    def prepare(self) -> None:
        """Import what the first call would import; blocking."""
        load()
        import openai.resources.chat  # noqa: F401 - litellm needs it

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - servers sample again
        check_options(request.options, place=f"the options of model {request.model!r}", allows_choices=True)
        if isinstance(request, EmbeddingRequest):
            return read_embeddings(await self._embed(request))
        unsupported = find_unsupported_options(request.model, request.options) | self._refused.find(request)
        options = build_options(request, unsupported=unsupported)
        headers = {**self.headers, **(options.pop("extra_headers", None) or {})}
        options["extra_headers"] = headers or None
        options["timeout"] = options.pop("timeout", None) or self.timeout_s
        if _ADAPTED & options.keys() or any(isinstance(message, RichMessage) for message in request.messages):
            options = self._adapt(request.model, options)
        return read_reply(await self._complete(request, options), request.model)

    async def _embed(self, request: EmbeddingRequest) -> Any:
        litellm = load()
        options = {name: value for name, value in request.options.items() if name not in OUTPUT_BOUNDS}
        try:
            return await litellm.aembedding(
                model=self._qualify(request.model),
                input=[message["content"] for message in openai_messages(request)],
                api_base=self._find_base(request.model),
                api_key=self.api_key,
                extra_headers=dict(self.headers) or None,
                timeout=self.timeout_s,
                encoding_format="float",
                allowed_openai_params=["dimensions"],  # of models that litellm does not know, too
                max_retries=0,
                drop_params=True,
                **options,
            )
        except tuple(litellm.exceptions.LITELLM_EXCEPTION_TYPES) as error:
            raise self._translate(error, request.model) from None  # the error itself may repeat the key

    def _adapt(self, model: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options of a call with what litellm leaves out for servers of OpenAI's protocol.

        Claude refuses fields that it does not know. litellm takes its own as options, and would send `extra_body` as a
        field of that name.
        """
        _, provider, _, _ = load().get_llm_provider(self._qualify(model), api_base=self.api_base)
        if provider == "anthropic":
            body = options.get("extra_body") or {}
            others = {name: value for name, value in options.items() if name != "extra_body"}
            return {**{name: value for name, value in body.items() if name in _OF_CLAUDE}, **others}
        if provider != "openai":
            return options
        kept = {name: options[name] for name in _DROPPED if name in options}
        if any(message["role"] not in _PLAIN_ROLES or "name" in message for message in options["messages"]):
            kept["messages"] = options["messages"]
        return {**options, "extra_body": {**(options.get("extra_body") or {}), **kept}} if kept else options

    def _find_base(self, model: str) -> str | None:
        """The address to give to litellm; None if it finds the right one."""
        if self.api_base is not None or _kept is None:
            return self.api_base
        litellm = load()
        if litellm.api_base is not None:  # a setting of the user, which comes before the environment
            return None
        _, provider, _, _ = litellm.get_llm_provider(self._qualify(model))
        variables, usual = _ADDRESSES.get(provider, ((), None))
        return next(filter(None, map(_kept.get, variables)), usual)

    async def _complete(self, request: ModelRequest, options: dict[str, Any]) -> Any:
        """Call the model, without the options that its server refuses. These are remembered if that helps."""
        litellm, first, refused = load(), None, []
        while True:
            try:
                response = await litellm.acompletion(
                    model=self._qualify(request.model),
                    api_base=self._find_base(request.model),
                    api_key=self.api_key,
                    num_retries=0,
                    max_retries=0,
                    drop_params=True,
                    **options,
                )
            except tuple(litellm.exceptions.LITELLM_EXCEPTION_TYPES) as error:
                name = find_refused_option(error, litellm.exceptions, options)
                if name is None:
                    failure = first if first and isinstance(error, litellm.exceptions.BadRequestError) else error
                    raise self._translate(failure, request.model) from None  # the error itself may repeat the key
                first = first or error
                refused.append(name)
                options = drop_option(options, name)
            else:
                self._refused.add(refused, request)
                return response

    def _translate(self, error: Exception, model: str) -> ModelError:
        redactor = Redactor((*secrets_from_environment(os.environ), *self.secrets()))
        if problem := self.find_setup_problem(model):
            translated = translate_error(error, load(), redactor)
            is_transient = isinstance(translated, TransientModelError)
            if not _has_provider(self._qualify(model), self.api_base):
                return ModelNotFoundError(problem)
            return (AccessDeniedError if is_transient else type(translated))(problem)
        return translate_error(error, load(), redactor, place=self._show_server(model))


_kept: Mapping[str, str] | None = None
"""The environment whose addresses are those of services, if this process has changed them."""


def keep_addresses(environ: Mapping[str, str]) -> None:
    """Call services at the addresses that this environment has now, whatever the environment has later."""
    global _kept  # noqa: PLW0603 - the environment is global, too
    names = {name for variables, _ in _ADDRESSES.values() for name in variables}
    _kept = {name: value for name, value in environ.items() if name in names}


@cache
def load() -> ModuleType:
    """Import litellm, without its log output and its downloads of prices and settings."""
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    os.environ.setdefault("LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS", "True")
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


def most_output_tokens(model: str) -> int | None:
    """How many tokens an answer of the model may have, by litellm's list; None if the model is not on it."""
    most = _find_listed(model).get("max_output_tokens")
    return most if isinstance(most, int) and most > 0 else None


def thinking_tokens(model: str, options: Mapping[str, Json]) -> int:
    """How many tokens a model may need to think before it answers; 0 if it does not think, as far as litellm knows.

    Providers count them as part of the answer. Claude thinks only if it is asked to, or if it always does.
    """
    entry, asked = _find_listed(model), options.get("thinking")
    if isinstance(asked, Mapping):
        return 0 if asked.get("type") == "disabled" else int(asked.get("budget_tokens") or THINKING_TOKENS)
    effort = options.get("reasoning_effort")
    effort = effort.get("effort") if isinstance(effort, Mapping) else effort
    if effort is None:
        is_asked = entry.get("thinking_always_on") or "claude" not in model
        effort = entry.get("default_reasoning_effort") or ("default" if is_asked else "none")
        can_think = bool(entry.get("supports_reasoning"))
    else:
        can_think = not entry or bool(entry.get("supports_reasoning"))
    return THINKING_TOKENS if can_think and effort not in ("none", "disable") else 0


def find_unsupported_options(model: str, options: Mapping[str, Json]) -> set[str]:
    """The options that a model does not take by litellm's list, where litellm would send them all the same."""
    is_thinking_claude = "claude" in model and thinking_tokens(model, options) > 0
    return {
        *(("temperature", "top_p", "top_k") if is_thinking_claude else ()),
        *(() if _takes_schema(model) else [FORMAT]),
    }


@cache
def _takes_schema(model: str) -> bool:
    """Whether litellm knows how to ask a model for JSON of a schema. A model that is not on its list may take one."""
    litellm, entry = load(), _find_listed(model)
    if entry.get("litellm_provider") in ("openai", "azure") and not entry.get("supports_response_schema"):
        return False
    try:
        bare, provider, _, _ = litellm.get_llm_provider(model)
    except litellm.exceptions.BadRequestError:  # the call says so
        return True
    return FORMAT in (litellm.get_supported_openai_params(bare, provider) or (FORMAT,))


def _find_listed(model: str) -> Mapping[str, Any]:
    """The entry of a model in litellm's list, empty if there is none."""
    known = load().model_cost
    name = re.sub(_JUDGE, "", model)
    provider, _, bare = name.partition("/")
    entry: Mapping[str, Any] = known.get(bare) or {}
    is_same = provider == "openai" or str(entry.get("litellm_provider")).startswith(provider)
    return known.get(name) or (entry if is_same else {})


_JUDGE = re.compile(r"^judge-[0-9a-f]+/")
"""A judge with a key of its own is the same model."""
THINKING_TOKENS = 16_384


def _show_address(api_base: str) -> str:
    """The address of a server, without what is secret about it."""
    return Redactor(secrets_of_address(api_base)).redact_text(api_base)


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
    if _has_provider(model, api_base):
        return None
    hint = nearest(model, [*other_names, *load().model_cost])
    return (
        f"{model} names no provider that litellm knows{hint}; write provider/model, such as openai/{model}, or set "
        f"models.{model}.api_base in promptiter.yaml to the address of your own server"
    )


def _has_provider(model: str, api_base: str | None) -> bool:
    litellm = load()
    try:
        litellm.get_llm_provider(model, api_base=api_base)
    except litellm.exceptions.BadRequestError:
        return False
    return True


_DROPPED = frozenset(("user", "verbosity"))
"""Options that litellm drops if it does not know the model."""
_ADAPTED = _DROPPED | {"extra_body"}
_OF_CLAUDE = frozenset(
    (
        *("cache_control", "container", "context_management", "inference_geo", "mcp_servers", "output_config"),
        *("output_format", "speed", "top_k"),
    )
)
"""The fields of Anthropic's messages that chat completions do not have."""
_PLAIN_ROLES = ("system", "user", "assistant", "tool")
"""litellm turns other roles into these, without the name."""
_BASE_VARIABLES = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
_ADDRESSES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "openai": (_BASE_VARIABLES, "https://api.openai.com/v1"),
    "anthropic": (("ANTHROPIC_API_BASE", "ANTHROPIC_BASE_URL"), "https://api.anthropic.com"),
}
"""Where litellm finds the address of a service: the environment variables, and the usual address."""

_OTHER_CREDENTIALS = frozenset(("azure", "cohere", "huggingface", "openrouter", "vercel_ai_gateway", "volcengine"))
"""Providers that accept credentials which litellm's check of the environment does not know."""
