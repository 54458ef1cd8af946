"""Embeddings: passed through to the model, cached and counted as any other call."""

from __future__ import annotations

import base64
from array import array

from promptiter.endpoint.bodies import Body, read_model_name, read_options
from promptiter.endpoint.http_messages import RefusedRequestError
from promptiter.errors import BadAnswerError
from promptiter.llm.messages import EmbeddingRequest, Message, ModelReply, ModelRequest, RichMessage
from traces.model import Json

_KNOWN = ("model", "input", "encoding_format")
_OPTIONS = ("dimensions", "user")


def read_embedding(body: Body) -> EmbeddingRequest:
    """The request of a body."""
    model, given = read_model_name(body), body.get("input")
    is_one = isinstance(given, str) or (isinstance(given, list) and bool(given) and isinstance(given[0], int))
    inputs = [given] if is_one else given
    if not isinstance(inputs, list) or not inputs or not all(isinstance(each, str | list) for each in inputs):
        raise RefusedRequestError(400, "`input` is neither a text nor a list of texts or tokens", param="input")
    options = read_options(body, known=_KNOWN, options=_OPTIONS)
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
