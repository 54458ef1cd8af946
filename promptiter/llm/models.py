"""Models: what the gateway calls.

A model is `async (request, *, repeat) -> ModelReply`; it may also take the `seed` of the run. Names are looked up among
the gateway's own models, then in the registry; `module:attr` is imported, and litellm serves all others. Any function
of the messages can be a model; tests use scripted ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

from promptiter.concurrency import call_any
from promptiter.errors import SetupError, UnexpectedCallError
from promptiter.llm.messages import ModelReply, ModelRequest, RichMessage, RichToolSpec, ToolRequest, ToolSpec
from promptiter.references import call_factory, load_reference
from promptiter.registry import MODELS
from promptiter.wording import shorten
from traces import Usage
from traces.model import Json

CHARACTERS_PER_TOKEN = 4


class Model(Protocol):
    """Called by the gateway, many times at once. May raise a ModelError; the gateway retries a TransientModelError.

    A request has the messages, the tools that the model may ask for, the JSON schema of the answer, and the options. A
    callable is a Model if it has a parameter `repeat`; any other is called with the messages only.
    """

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        """Answer a request; `repeat` distinguishes repeats of the same request."""


class SeededModel(Model, Protocol):
    """A model whose answers also depend on the seed of the run, such as a simulated one."""

    async def __call__(self, request: ModelRequest, *, repeat: int, seed: int = 0) -> ModelReply:
        """Answer a request; `repeat` and `seed` distinguish samples of the same request."""


@runtime_checkable
class ConfiguredModel(Protocol):
    """A model that reports the settings that change its answers or their cost. Must not report secrets."""

    @property
    def settings(self) -> Mapping[str, Json]: ...


def is_simulated(model: Model) -> bool:
    """Whether a model only simulates answers, so that its tokens and seconds mean nothing for a real one."""
    return bool(getattr(model, "is_simulated", False))


def estimate_tokens(text: str) -> float:
    """The tokens of a text if no tokenizer is known: one for every four characters."""
    return len(text) / CHARACTERS_PER_TOKEN


def any_simulated(names: Iterable[str]) -> bool:
    """Whether any of these names is that of a registered model that only simulates answers."""
    return any(is_simulated(MODELS.get(name)) for name in names if name in MODELS)


Answer: TypeAlias = str | ModelReply
Function: TypeAlias = Callable[[list[dict[str, Any]]], Answer | Awaitable[Answer]]
"""A user's own model: takes the messages in OpenAI's format and returns the answer's text; may be async."""
GivenModel: TypeAlias = Model | Function | str
"""A model as a gateway takes it: the model, a function, or either of them as `module:attr`."""


class FunctionModel:
    """A model made of a function of the messages. A synchronous function runs in a thread."""

    def __init__(self, function: Function) -> None:
        self.function = function

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - part of the protocol
        answer = await call_any(self.function, openai_messages(request))
        return answer if isinstance(answer, ModelReply) else ModelReply(text=str(answer))


class ScriptedModel:
    """A model for tests: answers with the next item of a list, by part of the request's text, or by a function.

    A request without an answer raises UnexpectedCallError.
    """

    def __init__(
        self, script: Sequence[Answer] | Mapping[str, Answer] | Callable[[ModelRequest], Answer | None]
    ) -> None:
        self.script = script
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:  # noqa: ARG002 - the script decides
        self.requests.append(request)
        answer = self._answer(request)
        if answer is None:
            raise UnexpectedCallError(
                f"call {len(self.requests)} is not in the script; it ends in {request.messages[-1].content!r:.200}"
            )
        if isinstance(answer, ModelReply):
            return answer
        usage = Usage(input_tokens=len(request.text.split()), output_tokens=len(answer.split()))
        return ModelReply(text=answer, usage=usage)

    def _answer(self, request: ModelRequest) -> Answer | None:
        if callable(self.script):
            return self.script(request)
        if isinstance(self.script, Mapping):
            return next((answer for part, answer in self.script.items() if part in request.text), None)
        number = len(self.requests) - 1
        return self.script[number] if number < len(self.script) else None


def load_model(reference: str) -> Model:
    """Import the model or function of messages that `module:attr` names. A class, or a function without parameters,
    makes one.
    """
    try:
        found: Any = load_reference(reference, what="model")
    except SetupError as error:
        raise SetupError(f"{error}; write a model of a service as provider/model") from error
    if inspect.isclass(found) or (inspect.isroutine(found) and not _parameters(found)):
        found = call_factory(found, what=f"the model {reference!r}")
    return as_model(found, what=f"the model {reference!r}")


def as_model(model: Any, *, what: str = "a model") -> Model:
    """The model itself, or a function wrapped as a model."""
    if not callable(model) or callable(getattr(model, "describe", None)):
        raise SetupError(
            f"{what} is {shorten(model)}; give a function of the messages, or a model, such as LiteLLMModel()"
        )
    if isinstance(model, FunctionModel | ScriptedModel) or "repeat" in _parameters(model):
        return cast("Model", model)
    return FunctionModel(model)


def takes_seed(model: Model) -> bool:
    """Whether a model is a SeededModel."""
    return "seed" in _parameters(model)


def openai_messages(request: ModelRequest) -> list[dict[str, Any]]:
    """The messages in OpenAI's format, which litellm and most servers take."""
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        plain: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_requests:
            plain["tool_calls"] = [openai_tool_call(call) for call in message.tool_requests]
        if message.tool_request_id is not None:
            plain["tool_call_id"] = message.tool_request_id
        if isinstance(message, RichMessage):
            plain.update(message.extra)
        messages.append(plain)
    return messages


def openai_tool_call(call: ToolRequest) -> dict[str, Any]:
    """A requested tool call in OpenAI's format. Arguments that are a text are what a model wrote instead of JSON."""
    import orjson

    arguments = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def openai_tools(request: ModelRequest) -> list[dict[str, Any]]:
    """The tools in OpenAI's format."""
    return [_openai_tool(tool) for tool in request.tools]


def _openai_tool(tool: ToolSpec) -> dict[str, Any]:
    extra = tool.extra if isinstance(tool, RichToolSpec) else {}
    if "type" in extra:
        return dict(extra)
    parameters = tool.parameters or {"type": "object", "properties": {}}
    described = {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": parameters, **extra}}


def _parameters(model: object) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(model).parameters if callable(model) else {}
    except (TypeError, ValueError):  # some builtins have none
        return {}
