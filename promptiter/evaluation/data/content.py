"""Contents of an eval set: text, tool calls and tool responses, read from files and written back.

A content is `{"parts": [{"text": …}, {"function_call": …}], "role": …}` or, as Go writes it, `{"role": …,
"content": "text"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import AfterValidator, BeforeValidator, model_validator

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.llm.messages import Message, MessageRole, ToolRequest
from promptiter.user_files import FileObject
from traces.model import Json


def as_json_text(value: Json) -> str:
    """Text as it is, anything else as its JSON."""
    if isinstance(value, str):
        return value
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error


JsonText = Annotated[str, BeforeValidator(as_json_text)]


class ToolUse(FileObject):
    id: str | None = None
    name: str
    args: Any = None

    @property
    def call(self) -> ExpectedToolCall:
        return ExpectedToolCall(name=self.name, arguments=self.args, id=self.id)


class ToolResponse(FileObject):
    id: str | None = None
    name: str
    response: Any = None

    @property
    def call(self) -> ExpectedToolCall:
        """A call of which only the result is known."""
        return ExpectedToolCall(name=self.name, result=self.response, id=self.id)


class Part(FileObject):
    text: str | None = None
    function_call: ToolUse | None = None
    function_response: ToolResponse | None = None


def list_calls(parts: Iterable[Part]) -> list[ExpectedToolCall]:
    return [part.function_call.call for part in parts if part.function_call is not None]


def list_responses(parts: Iterable[Part]) -> list[ExpectedToolCall]:
    return [part.function_response.call for part in parts if part.function_response is not None]


class Content(FileObject):
    parts: list[Part] | None = None
    role: Annotated[
        Literal["system", "user", "assistant", "model", "tool"],
        BeforeValidator(lambda role: "user" if role == "" else role),
    ] = "user"
    content: str | None = None

    @model_validator(mode="after")
    def _check_one_form(self) -> Self:
        if self.parts is not None and self.content is not None:
            raise ValueError("has both 'parts' and 'content'; keep one of them")
        return self

    @property
    def all_parts(self) -> list[Part]:
        """The parts; a plain text is one part."""
        return [Part(text=self.content)] if self.content is not None else self.parts or []

    @property
    def text(self) -> str | None:
        """The texts of the parts, one on each line."""
        texts = [part.text for part in self.all_parts if part.text is not None]
        return "\n".join(texts) if texts else None

    @property
    def speaker(self) -> MessageRole:
        return "assistant" if self.role == "model" else self.role


def _check_question(content: Content) -> Content:
    if content.text is None or list_calls(content.all_parts) or list_responses(content.all_parts):
        raise ValueError('must hold text and nothing else: {"parts": [{"text": "…"}]}')
    return content


Question = Annotated[Content, AfterValidator(_check_question)]


def _check_messages(contents: list[Content]) -> list[Content]:
    read_messages(contents)
    return contents


Messages = Annotated[list[Content], AfterValidator(_check_messages)]


def read_messages(contents: Iterable[Content]) -> tuple[Message, ...]:
    """Context messages; a function response inside a content becomes a `tool` message of its own."""
    messages: list[Message] = []
    for content in contents:
        calls, responses = list_calls(content.all_parts), list_responses(content.all_parts)
        if content.text is not None or calls or not responses:
            requests = tuple(ToolRequest(call.id or "", call.name, call.arguments) for call in calls)
            messages.append(Message(content.speaker, content.text or "", tool_requests=requests))
        messages += [
            Message("tool", as_json_text(response.result), tool_request_id=response.id) for response in responses
        ]
    return tuple(messages)


def add_results(
    calls: Sequence[ExpectedToolCall], responses: Sequence[ExpectedToolCall]
) -> tuple[ExpectedToolCall, ...]:
    """Give each response to the first unanswered call of its id, else of its name; failing both, it is a call."""
    answered = list(calls)
    waiting = list(range(len(calls)))
    for response in responses:
        same_id = (index for index in waiting if response.id is not None and calls[index].id == response.id)
        same_name = (
            index
            for index in waiting
            if calls[index].name == response.name and (response.id is None or calls[index].id is None)
        )
        index = next(same_id, next(same_name, None))
        if index is None:
            answered.append(response)
            continue
        waiting.remove(index)
        answered[index] = replace(calls[index], result=response.result)
    return tuple(answered)


def write_messages(messages: Sequence[Message]) -> list[Json]:
    """Messages as the contents that `read_messages` reads."""
    documents: list[Json] = []
    names: dict[str, str] = {}
    for message in messages:
        names |= {request.id: request.name for request in message.tool_requests}
        parts: list[Json] = []
        if message.role == "tool" and message.tool_request_id is not None:
            name = names.get(message.tool_request_id, "")
            parts.append({"function_response": write_call(message.tool_request_id, name, response=message.content)})
        elif message.content or not message.tool_requests:
            parts.append({"text": message.content})
        parts += [
            {"function_call": write_call(request.id or None, request.name, args=request.arguments)}
            for request in message.tool_requests
        ]
        documents.append({"parts": parts, "role": "model" if message.role == "assistant" else message.role})
    return documents


def write_call(call_id: str | None, name: str, **values: Json) -> dict[str, Json]:
    """A call or response, without what is None."""
    known = {key: value for key, value in values.items() if value is not None}
    return {"name": name, **known} if call_id is None else {"id": call_id, "name": name, **known}
