"""What is said in an eval set: contents with their text, tool calls and tool responses, read and written.

A content is `{"parts": [{"text": …}, {"function_call": …}], "role": …}`, or, as Go writes it, `{"role": …,
"content": "text"}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.data.document import Fields, Item
from promptiter.llm.messages import Message, MessageRole, ToolRequest
from traces.model import Json

_ROLES: Mapping[str, MessageRole] = {role: role for role in get_args(MessageRole)} | {"model": "assistant"}


@dataclass(slots=True)
class Content:
    """The parts of one content by kind. A response is a call of which only the result is known."""

    role: MessageRole = "user"
    texts: list[str] = field(default_factory=list)
    calls: list[ExpectedToolCall] = field(default_factory=list)
    responses: list[ExpectedToolCall] = field(default_factory=list)

    def add(self, other: Content) -> None:
        self.texts += other.texts
        self.calls += other.calls
        self.responses += other.responses


def read_content(item: Item) -> Content:
    fields = item.fields(("parts", "role", "content"))
    if "parts" in fields and "content" in fields:
        raise item.wrong("has both 'parts' and 'content'; keep one of them")
    content = read_parts(fields.need("parts")) if "parts" in fields else Content()
    if "content" in fields:
        content.texts.append(fields.text("content"))
    if role := fields.text("role"):
        if role not in _ROLES:
            raise fields.need("role").wrong(f"is {role!r}; known are {', '.join(sorted(_ROLES))}")
        content.role = _ROLES[role]
    return content


def read_parts(parts: Item) -> Content:
    content = Content()
    for part in parts.elements():
        fields = part.fields(("text", "function_call", "function_response"))
        if "text" in fields:
            content.texts.append(fields.text("text"))
        if "function_call" in fields:
            content.calls.append(read_call(fields.need("function_call")))
        if "function_response" in fields:
            content.responses.append(read_response(fields.need("function_response")))
    return content


def read_call(item: Item) -> ExpectedToolCall:
    fields = item.fields(("id", "name", "args"))
    return ExpectedToolCall(name=fields.need("name").text(), arguments=fields.value("args"), id=_id(fields))


def read_response(item: Item) -> ExpectedToolCall:
    fields = item.fields(("id", "name", "response"))
    return ExpectedToolCall(name=fields.need("name").text(), result=fields.value("response"), id=_id(fields))


def read_messages(contents: Iterable[Item]) -> tuple[Message, ...]:
    """Context messages; a function response inside one becomes a `tool` message of its own."""
    messages: list[Message] = []
    for item in contents:
        content = read_content(item)
        answers = [
            Message("tool", replace(item, value=response.result).json_text(), tool_request_id=response.id)
            for response in content.responses
        ]
        if content.texts or content.calls or not answers:
            requests = tuple(ToolRequest(call.id or "", call.name, call.arguments) for call in content.calls)
            messages.append(Message(content.role, "\n".join(content.texts), tool_requests=requests))
        messages.extend(answers)
    return tuple(messages)


def with_results(
    calls: Sequence[ExpectedToolCall], responses: Sequence[ExpectedToolCall]
) -> tuple[ExpectedToolCall, ...]:
    """Each response goes to the first unanswered call of its id, else of its name; failing both, it is a call."""
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


def message_documents(messages: Sequence[Message]) -> list[Json]:
    """Messages as the contents that `read_messages` reads."""
    documents: list[Json] = []
    names: dict[str, str] = {}
    for message in messages:
        names |= {request.id: request.name for request in message.tool_requests}
        parts: list[Json] = []
        if message.role == "tool" and message.tool_request_id is not None:
            name = names.get(message.tool_request_id, "")
            parts.append({"function_response": call_document(message.tool_request_id, name, response=message.content)})
        elif message.content or not message.tool_requests:
            parts.append({"text": message.content})
        parts += [
            {"function_call": call_document(request.id or None, request.name, args=request.arguments)}
            for request in message.tool_requests
        ]
        documents.append({"parts": parts, "role": "model" if message.role == "assistant" else message.role})
    return documents


def call_document(call_id: str | None, name: str, **values: Json) -> dict[str, Json]:
    """A call or response, without what is None."""
    known = {key: value for key, value in values.items() if value is not None}
    return {"name": name, **known} if call_id is None else {"id": call_id, "name": name, **known}


def _id(fields: Fields) -> str | None:
    return fields.text("id") if "id" in fields else None
