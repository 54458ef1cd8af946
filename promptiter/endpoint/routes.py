"""How a request of a client is answered: by its key, its path, and the protocol that the path belongs to."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from promptiter.endpoint import anthropic_messages, chat, embeddings, responses
from promptiter.endpoint.bodies import Body, parse_body
from promptiter.endpoint.error_bodies import WireProtocol, render_error
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest, RefusedRequestError
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.redaction import Redactor
from traces.model import Json

Read = TypeVar("Read")

NODE_HEADER = "x-promptiter-node"
CONVERSATION_HEADER = "x-promptiter-conversation"

_PATH = re.compile(r"/(?:(?P<key>[\w-]{16,128})/)?v1/(?P<what>[\w/.:%-]+)")
_KEY_HEADERS = ("authorization", "x-api-key", "api-key")
_ONCE = (*_KEY_HEADERS, NODE_HEADER, CONVERSATION_HEADER, "content-type")
_LONGEST_LABEL = 100
_AUTH = "authentication_error"
MAX_CONVERSATIONS = 1000
"""A session keeps this many conversations of the Responses API; the oldest is forgotten first."""


@dataclass(frozen=True, slots=True)
class Labels:
    """What the agent says about a call."""

    node: str
    conversation: str


class AnsweredCall(Protocol):
    """A call that the gateway answered. `number` counts the equal calls of the session."""

    @property
    def reply(self) -> ModelReply | None: ...
    @property
    def number(self) -> int: ...


class CallingSession(Protocol):
    """What a key gives access to."""

    conversations: dict[str, Json]
    """The messages of each response of the Responses API, by its id."""

    @property
    def redactor(self) -> Redactor: ...

    async def ask(self, request: ModelRequest, *, node: str = "", conversation: str = "") -> AnsweredCall:
        """Answer a request through the gateway."""

    def list_models(self) -> Iterable[str]:
        """The names of the models that the gateway was given."""


FindSession: TypeAlias = Callable[[str], CallingSession | None]
"""The session of a key, or None."""


async def answer_request(request: HttpRequest, find_session: FindSession) -> HttpAnswer:
    """Answer a request. Every error becomes an answer in the shape of its protocol."""
    path = _PATH.fullmatch(request.path)
    what = path["what"] if path else ""
    protocol: WireProtocol = "anthropic" if what.startswith("messages") else "openai"
    redactor = None
    try:
        _refuse_repeated(request)
        session = authenticate(request, path["key"] if path else None, find_session)
        redactor = session.redactor
        return await _dispatch(request, what, session)
    except Exception as error:  # noqa: BLE001 - the client gets it, and the session has kept it
        return render_error(error, protocol, redactor=redactor)


def _refuse_repeated(request: HttpRequest) -> None:
    """Refuse a request with several keys or names of the same kind: only one of them could be meant."""
    if repeated := sorted(request.repeated.intersection(_ONCE)):
        raise RefusedRequestError(400, f"the request has several headers {repeated[0]}; send one", param=repeated[0])


def authenticate(request: HttpRequest, url_key: str | None, find_session: FindSession) -> CallingSession:
    """The session that a request belongs to: that of the key in its URL, or in its headers.

    With a key in the URL, an agent may send an API key of its own, but not that of another session.
    """
    api_keys = _list_api_keys(request)
    if url_key is not None and find_session(url_key) is None:
        message = "the key in the URL is unknown, or its run has ended; use the base URL of this run"
        raise RefusedRequestError(401, message, kind=_AUTH)
    keys = [key for key in (url_key, *api_keys) if key is not None and find_session(key) is not None]
    if len(set(keys)) > 1:
        message = "the keys in the URL and the headers belong to several runs; use those of one run"
        raise RefusedRequestError(403, message, kind="permission_error")
    session = find_session(keys[0]) if keys else None
    if session is None:
        message = "this key is unknown, or its run has ended" if api_keys else "the request has no key"
        raise RefusedRequestError(401, f"{message}; use the URL and the key that promptiter gave", kind=_AUTH)
    return session


def _list_api_keys(request: HttpRequest) -> list[str]:
    scheme, *rest = request.headers.get("authorization", "").split(maxsplit=1) or [""]
    bearer = rest[0].strip() if rest and scheme.lower() == "bearer" else ""
    return [key for key in (bearer, request.headers.get("x-api-key"), request.headers.get("api-key")) if key]


async def _dispatch(request: HttpRequest, what: str, session: CallingSession) -> HttpAnswer:
    if request.method == "POST" and what in _POSTS:
        labels = Labels(read_label(request, NODE_HEADER), read_label(request, CONVERSATION_HEADER))
        body = parse_body(await request.read_body())
        return await _POSTS[what](body, labels, session)
    if (request.method, what) == ("GET", "models"):
        listed = [{"id": name, "object": "model", "owned_by": "promptiter"} for name in session.list_models()]
        return HttpAnswer.of_json({"object": "list", "data": listed})
    served = ", ".join(f"POST /v1/{name}" for name in _POSTS)
    message = f"the endpoint does not serve {request.method} {what or request.path!r}"
    raise RefusedRequestError(404, f"{message}; it serves {served} and GET /v1/models", kind="not_found_error")


def _convert(read: Callable[[Body], Read], body: Body) -> Read:
    """What a function reads from a body. A body whose values are of the wrong types is refused."""
    try:
        return read(body)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        message = f"the body does not follow the protocol: {type(error).__name__}: {error}"
        raise RefusedRequestError(400, message) from error


async def _complete(body: Body, labels: Labels, session: CallingSession) -> tuple[chat.ChatCall, Body]:
    """Answer a body of chat completions."""
    call = _convert(chat.read_chat, body)
    answered = await session.ask(call.request, node=labels.node, conversation=labels.conversation)
    return call, chat.write_completion(call.request, answered.reply or ModelReply(), number=answered.number)


async def _answer_chat(body: Body, labels: Labels, session: CallingSession) -> HttpAnswer:
    call, completion = await _complete(body, labels, session)
    if call.is_stream:
        return HttpAnswer.of_events(chat.stream_completion(completion, includes_usage=call.includes_usage))
    return HttpAnswer.of_json(completion)


async def _answer_response(body: Body, labels: Labels, session: CallingSession) -> HttpAnswer:
    as_chat = _convert(lambda given: responses.to_chat(given, session.conversations), body)
    call, completion = await _complete(as_chat, labels, session)
    response = responses.to_response(body, completion)
    session.conversations[response["id"]] = responses.list_messages(body, as_chat, completion)
    if len(session.conversations) > MAX_CONVERSATIONS:
        del session.conversations[next(iter(session.conversations))]
    if call.is_stream:
        return HttpAnswer.of_events(responses.stream_response(response))
    return HttpAnswer.of_json(response)


async def _answer_message(body: Body, labels: Labels, session: CallingSession) -> HttpAnswer:
    call, completion = await _complete(_convert(anthropic_messages.to_chat, body), labels, session)
    message = anthropic_messages.to_message(completion)
    if call.is_stream:
        return HttpAnswer.of_events(anthropic_messages.stream_message(message))
    return HttpAnswer.of_json(message)


async def _answer_embeddings(body: Body, labels: Labels, session: CallingSession) -> HttpAnswer:
    request = _convert(embeddings.read_embedding, body)
    answered = await session.ask(request, node=labels.node, conversation=labels.conversation)
    is_base64 = body.get("encoding_format") == "base64"
    reply = answered.reply or ModelReply()
    return HttpAnswer.of_json(embeddings.write_embeddings(request, reply, is_base64=is_base64))


_POSTS: Mapping[str, Callable[[Body, Labels, CallingSession], Awaitable[HttpAnswer]]] = {
    "chat/completions": _answer_chat,
    "responses": _answer_response,
    "messages": _answer_message,
    "embeddings": _answer_embeddings,
}


def read_label(request: HttpRequest, header: str) -> str:
    """What the agent says about a call in a header: which node makes it, which conversation it belongs to."""
    label = request.headers.get(header, "").strip()
    if len(label) > _LONGEST_LABEL or not label.isprintable():
        message = f"the header {header} is {label[:100]!a}; give at most {_LONGEST_LABEL} printable characters"
        raise RefusedRequestError(400, message, param=header)
    return label
