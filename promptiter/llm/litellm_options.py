"""The options of a call through litellm: tools and schema of the request, and what a server does not take.

What a server refuses is known after its first refusal, which costs nothing: from then on it is asked without. So
servers and models that litellm does not know need no settings.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import orjson

from promptiter.llm.messages import ModelRequest
from promptiter.llm.models import openai_messages, openai_tools
from promptiter.llm.options import CHOICES, RESERVED_OPTIONS, count_choices
from promptiter.llm.secret import reveal
from traces import digest
from traces.model import Json

FORMAT = "response_format"
NEW_LIMIT = "max_completion_tokens"
SCHEMA_NAME = "answer"

logger = logging.getLogger(__name__)


def build_options(request: ModelRequest, *, unsupported: Collection[str] = ()) -> dict[str, Any]:
    """Build the messages and options of a call. A schema that is not supported becomes a rule in the first message."""
    options: dict[str, Any] = reveal(
        {name: value for name, value in request.options.items() if name not in RESERVED_OPTIONS}
    )
    if (choices := count_choices(request.options)) > 1:
        options[CHOICES] = choices
    options["messages"] = openai_messages(request)
    if request.tools:
        options["_skip_mcp_handler"] = True  # otherwise litellm imports mcp, which it does not install
        options["tools"] = openai_tools(request)
    if request.schema is not None:
        options[FORMAT] = {
            "type": "json_schema",
            "json_schema": {"name": SCHEMA_NAME, "schema": request.schema, "strict": is_strict(request.schema)},
        }
    for name in unsupported:
        options = drop_option(options, name)
    return options


def drop_option(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options without one that the server does not take. A limit is renamed, a schema becomes a rule."""
    if name not in options or (name == FORMAT and not _has_schema(options)):
        return dict(options)
    kept = {each: value for each, value in options.items() if each != name}
    if name == "max_tokens":
        kept[NEW_LIMIT] = options[name]
    if name == FORMAT:
        schema = orjson.dumps(options[name]["json_schema"]["schema"]).decode()
        rule = f"Answer with JSON of this schema, and nothing else:\n{schema}"
        kept["messages"] = _add_rule(options["messages"], rule)
    return kept


def _has_schema(options: Mapping[str, Any]) -> bool:
    """Whether the format of an answer is the schema of the request, not an option of the user."""
    return FORMAT in options and options[FORMAT].get("json_schema", {}).get("name") == SCHEMA_NAME


def _add_rule(messages: list[dict[str, Any]], rule: str) -> list[dict[str, Any]]:
    first, *others = messages
    if first["role"] != "system":
        return [{"role": "system", "content": rule}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{rule}"}, *others]


class RefusedOptions:
    """What the servers of models refused."""

    def __init__(self) -> None:
        self._by_model: dict[str, set[str]] = {}

    def find(self, request: ModelRequest) -> set[str]:
        """The options of a request that its server refused before."""
        refused = self._by_model.get(request.model, set())
        return refused | ({FORMAT} if request.schema and digest(request.schema) in refused else set())

    def add(self, names: Iterable[str], request: ModelRequest) -> None:
        """Note options that a server refused. If it refuses a schema with unusual keywords, it may take others."""
        refused = self._by_model.setdefault(request.model, set())
        for name in names:
            what = name if name != FORMAT or is_strict(request.schema) else digest(request.schema)
            if what not in refused:
                logger.warning("the server of %s refused %s and is asked without it from now on", request.model, name)
                refused.add(what)


def find_refused_option(error: Any, exceptions: Any, options: Mapping[str, Any]) -> str | None:
    """The option without which the server may take a call that it refused. `exceptions` are those of litellm.

    Many servers do not say what they refuse; they may not know schemas.
    """
    if isinstance(error, tuple(getattr(exceptions, name) for name in _OTHER_REFUSALS)):
        return None
    is_refusal = isinstance(error, exceptions.BadRequestError | exceptions.UnprocessableEntityError)
    message = str(error)
    if is_refusal and "max_tokens" in options and NEW_LIMIT in message:
        return "max_tokens"
    if is_refusal and (named := [name for name in _REFUSABLE if name in options and name in message]):
        return named[0]
    if _has_schema(options) and (is_refusal or _ABOUT_SCHEMAS.search(message)):
        return FORMAT
    return None


_OTHER_REFUSALS = (
    *("ContextWindowExceededError", "PaymentRequiredError", "RejectedRequestError", "ContentPolicyViolationError"),
    *("AuthenticationError", "RateLimitError", "Timeout"),
)
_REFUSABLE = ("reasoning_effort", "temperature", "top_p", "presence_penalty", "frequency_penalty")
_ABOUT_SCHEMAS = re.compile(r"response_format|json_schema|grammar|structured output", re.IGNORECASE)


def is_strict(schema: Json) -> bool:
    """Whether a server can be asked to hold an answer to a schema: every field is required, and no other allowed."""
    if not isinstance(schema, Mapping) or not schema.keys() <= _STRICT_WORDS:
        return False
    if schema.get("type") == "object":
        has_all = set(schema.get("required", ())) == set(schema.get("properties", {}))
        is_bound = has_all and schema.get("additionalProperties") is False
    elif schema.get("type") == "array":
        is_bound = "items" in schema
    else:
        is_bound = bool(schema.keys() & {"type", "$ref", "anyOf"}) and len(schema.get("enum", ())) <= MOST_CHOICES
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    return is_bound and all(map(is_strict, [*below, *([schema["items"]] if "items" in schema else [])]))


MOST_CHOICES = 250
_STRICT_WORDS = frozenset(
    (
        *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items", "maxItems"),
        *("maximum", "minItems", "minimum", "properties", "required", "title", "type"),
    )
)
"""The keywords that servers with strict schemas know."""
