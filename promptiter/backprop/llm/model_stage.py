"""How the LLM stages ask their model: one question through the gateway, its answer as data.

LLMBackwarder, LLMAttributor, LLMAggregator and LLMOptimizer differ in what they ask and in what they make of the
answer; what they are built with, and how a question becomes a request, is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from promptiter.backprop.llm.prompts import MAX_PROMPT_TOKENS, MIN_PROMPT_TOKENS
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest, Role
from promptiter.llm.structured import ask_for
from traces.model import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

R = TypeVar("R")
T = TypeVar("T")


class ModelStage(Generic[R]):
    """A stage that asks a model.

    `render` replaces the prompt and is used as it is; else no prompt has more than `max_prompt_tokens`. What `user_id`
    and `session_id` give for a request is told to the provider. Without a gateway the active one is used.
    """

    role: ClassVar[Role]

    def __init__(
        self,
        model: str,
        *,
        render: Callable[[R], tuple[Message, ...]] | None = None,
        model_options: Mapping[str, Json] | None = None,
        max_prompt_tokens: int | None = None,
        user_id: Callable[[R], str] | None = None,
        session_id: Callable[[R], str] | None = None,
        gateway: Gateway | None = None,
    ) -> None:
        if max_prompt_tokens is not None and max_prompt_tokens < MIN_PROMPT_TOKENS:
            raise SetupError(
                f"max_prompt_tokens of the {self.role} is {max_prompt_tokens:,}; its rules alone need "
                f"{MIN_PROMPT_TOKENS:,}, so give at least that"
            )
        self.model = model
        self.render = render
        self.model_options = dict(model_options or {})
        self._max_prompt_tokens = max_prompt_tokens
        self.user_id = user_id
        self.session_id = session_id
        self.gateway = gateway

    @property
    def max_prompt_tokens(self) -> int:
        """What the stage was given, or what is usual."""
        return MAX_PROMPT_TOKENS if self._max_prompt_tokens is None else self._max_prompt_tokens

    async def ask(
        self,
        shape: TypeAdapter[T],
        messages: tuple[Message, ...],
        request: R,
        *,
        node_id: str,
        answer_tokens: int = 0,
    ) -> T:
        """One question about a stage's request. An answer may need `answer_tokens`, unless the options say how many.

        Raises a ModelError when there is no usable answer, also after repair.
        """
        gateway = self.gateway or current_gateway()
        options = self._build_options(request)
        if answer_tokens > gateway.max_output_tokens and not {"max_tokens", "max_completion_tokens"} & options.keys():
            options["max_tokens"] = answer_tokens
        model_request = ModelRequest(model=self.model, messages=messages, options=options)
        return await ask_for(shape, model_request, CallSite(role=self.role), gateway, node_id=node_id)

    def _build_options(self, request: R) -> dict[str, Json]:
        options = dict(self.model_options)
        if self.user_id is not None:
            options["user"] = self.user_id(request)
        if self.session_id is not None:
            options["metadata"] = {**options.get("metadata", {}), "session_id": self.session_id(request)}
        return options


def build_object_schema(**properties: Json) -> dict[str, Json]:
    """The JSON schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
