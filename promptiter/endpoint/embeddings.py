"""Embeddings: passed through to the model, cached and counted as any other call."""

from __future__ import annotations

import base64
from array import array
from typing import Any

from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.errors import BadAnswerError
from promptiter.llm.messages import EmbeddingRequest, Message, ModelReply, ModelRequest, RichMessage
from promptiter.llm.options import RESERVED_OPTIONS
from traces.model import Json

_KNOWN = ("model", "input", "encoding_format")
_OPTIONS = ("dimensions", "user")


def read_embedding(body: dict[str, Any]) -> EmbeddingRequest:
    """The request of a body."""
    model, given = body.get("model"), body.get("input")
    if not isinstance(model, str) or not model:
        raise RefusedRequestError(400, "the body names no model; give its name as `model`", param="model")
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    inputs = [given] if is_one else given
    if not isinstance(inputs, list) or not inputs or not all(isinstance(each, str | list) for each in inputs):
        raise RefusedRequestError(400, "`input` is neither a text nor a list of texts or tokens", param="input")
    others = {name: value for name, value in body.items() if name not in _KNOWN and value is not None}
    if refused := next((name for name in others if name in RESERVED_OPTIONS), None):
        raise RefusedRequestError(400, f"the endpoint does not take {refused!r}", param=refused)
    options = {name: value for name, value in others.items() if name in _OPTIONS}
    if extra := {name: value for name, value in others.items() if name not in options}:
        options["extra_body"] = extra
    return EmbeddingRequest(
        model=model, messages=tuple(map(_write_input, inputs)), options={**options, "max_tokens": 1}
    )


def write_embeddings(request: ModelRequest, reply: ModelReply, *, is_base64: bool) -> Json:
    """The vectors of a reply as the body of the protocol."""
    vectors = reply.extra.get("embeddings")
    if vectors is None:
        raise BadAnswerError(f"the model {request.model!r} answered without embeddings; ask a model that makes them")
    listed = [
        {"object": "embedding", "index": index, "embedding": _encode(vector) if is_base64 else vector}
        for index, vector in enumerate(vectors)
    ]
    tokens = reply.usage.input_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": listed, "model": request.model, "usage": usage}


def _write_input(given: Json) -> Message:
    return Message("user", given) if isinstance(given, str) else RichMessage("user", "", extra={"content": given})


def _encode(vector: list[float]) -> str:
    """A vector as OpenAI's SDK asks for it: 32-bit floats, little endian."""
    floats = array("f", vector)
    return base64.b64encode(floats.tobytes()).decode()
