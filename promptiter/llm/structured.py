"""Structured output: ask for JSON of a schema, parse it leniently, and show the model its error until it fits."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import orjson

from promptiter.errors import BadAnswerError
from promptiter.llm.messages import CallSite, Message, ModelRequest
from traces.model import Json
from traces.text import cut, one_line

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from promptiter.llm.gateway import Gateway

T = TypeVar("T")

REPAIRS = 3
QUOTED = 100
"""Characters of an unusable answer that an error quotes."""
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)


async def ask_for(
    shape: TypeAdapter[T],
    request: ModelRequest,
    site: CallSite,
    gateway: Gateway,
    *,
    node_id: str = "",
    repairs: int = REPAIRS,
) -> T:
    """Ask for an answer of this shape. If it does not fit, the model sees its answer and the error, `repairs` times.

    The calls are numbered from `site.number`. Raises BadAnswerError if the last answer does not fit either.
    """
    from pydantic import ValidationError

    request = replace(request, schema=shape.json_schema())
    for number in range(repairs + 1):
        reply = await gateway.ask(request, replace(site, number=site.number + number), node_id=node_id)
        try:
            return shape.validate_python(parse_json(reply.text))
        except (ValueError, ValidationError) as error:
            problem = _describe_error(error)
        correction = f"That answer cannot be used: {problem}. Answer again with the JSON object only, corrected."
        messages = (*request.messages, Message("assistant", reply.text), Message("user", correction))
        request = replace(request, messages=messages)
    quoted = cut(one_line(reply.text), QUOTED)
    raise BadAnswerError(
        f"{request.model!r} gave no usable answer in {repairs + 1} tries: {problem}; the last one is {quoted!r}"
    )


def parse_json(text: str) -> Json:
    """The JSON in an answer: the whole text, the content of a code fence, or the first object or array."""
    for candidate in (text.strip(), *(found.strip() for found in _FENCE.findall(text))):
        try:
            return orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
    import json

    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        raise ValueError("it holds no JSON")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, min(starts))
    except json.JSONDecodeError as error:
        raise ValueError(f"its JSON is broken: {error}") from error
    return value


def _describe_error(error: Exception) -> str:
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the answer"
    return f"{place}: {first['msg']}"
