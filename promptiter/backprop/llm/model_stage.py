"""ModelStage: what all LLM stages share, their options and one structured call through the gateway.

LLMBackwarder, LLMAttributor, LLMAggregator, LLMOptimizer and LLMCorrector differ only in their prompts and in how they
use the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, TypeVar

from pydantic import TypeAdapter

from promptiter.backprop.llm.prompts import MAX_PROMPT_TOKENS, MIN_PROMPT_TOKENS
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest, Role
from promptiter.llm.options import check_options
from promptiter.llm.structured import ask_for, find_schema
from promptiter.wording import shorten
from traces.model import Json

R = TypeVar("R")
T = TypeVar("T")


class ModelStage(Generic[R]):
    """A stage that calls a model.

    `render` replaces the prompt and is used as it is; otherwise no prompt exceeds `max_prompt_tokens`. The results of
    `user_id` and `session_id` for a request are sent to the provider. Without a gateway the active one is used.
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
        if not isinstance(model, str):
            raise SetupError(
                f"the model of {type(self).__name__} is {shorten(model)}; give a name that litellm knows, or one "
                "of the gateway's own, as in Gateway(models={name: model})"
            )
        if max_prompt_tokens is not None and max_prompt_tokens < MIN_PROMPT_TOKENS:
            raise SetupError(
                f"max_prompt_tokens of the {self.role} is {max_prompt_tokens:,}; its rules alone need "
                f"{MIN_PROMPT_TOKENS:,}, so give at least that"
            )
        check_options(model_options or {}, place=f"the model_options of the {self.role}")
        self.model = model
        self.render = render
        self.model_options = dict(model_options or {})
        self._max_prompt_tokens = max_prompt_tokens
        self.user_id = user_id
        self.session_id = session_id
        self.gateway = gateway

    @property
    def max_prompt_tokens(self) -> int:
        """The configured limit, or the default."""
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
        """Call the model about a stage's request and parse its answer.

        `answer_tokens` raises the gateway's output limit, unless the options set one. Raises a ModelError if there is
        no usable answer even after repair.
        """
        gateway = self.gateway or current_gateway()
        options, schema = self._build_options(request), find_schema(shape)
        model_request = ModelRequest(model=self.model, messages=messages, options=options, schema=schema)
        if answer_tokens > gateway.max_output_tokens:
            model_request = gateway.limit_output(model_request, answer_tokens=answer_tokens)
        return await ask_for(shape, model_request, CallSite(role=self.role), gateway, node_id=node_id)

    def _build_options(self, request: R) -> dict[str, Json]:
        options = dict(self.model_options)
        if self.user_id is not None:
            options["user"] = self.user_id(request)
        if self.session_id is not None:
            options["metadata"] = {**options.get("metadata", {}), "session_id": self.session_id(request)}
        return options


def build_object_schema(**properties: Json) -> dict[str, Json]:
    """Build the JSON schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
