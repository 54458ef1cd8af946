"""Structured output: ask for JSON of a schema, parse it leniently, and show the model its error until it fits."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import orjson
from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError, WithJsonSchema

from promptiter.errors import BadAnswerError
from promptiter.llm.messages import CallSite, Message, ModelRequest
from traces.model import Json
from traces.text import cut, one_line

if TYPE_CHECKING:
    from promptiter.llm.gateway import Gateway

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

REPAIRS = 3
QUOTED = 100
"""Characters of an unusable answer that an error quotes."""
_FENCE = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?[ \t]*```", re.DOTALL)


def build_shape(model: type[M], parse: Callable[[M], T], *, schema: Mapping[str, Json] | None = None) -> TypeAdapter[T]:
    """The shape of an answer that is checked as `model` and then parsed. `schema` is shown instead of the model's."""
    shape: Any = Annotated[model, AfterValidator(parse)]
    return TypeAdapter(shape if schema is None else Annotated[shape, WithJsonSchema(dict(schema))])


AskText: TypeAlias = Callable[[tuple[Message, ...], int], Awaitable[str]]
"""Asks for the text of an answer to these messages; the number counts the attempts from 0."""


async def ask_for(
    shape: TypeAdapter[T], request: ModelRequest, site: CallSite, gateway: Gateway, *, node_id: str = ""
) -> T:
    """Ask for an answer of this shape. If it does not fit, the model sees its answer and the error, REPAIRS times.

    The calls are numbered from `site.number`. Raises BadAnswerError if the last answer does not fit either.
    """
    schema = shape.json_schema()

    async def ask(messages: tuple[Message, ...], number: int) -> str:
        asked = replace(request, messages=messages, schema=schema)
        return (await gateway.ask(asked, replace(site, number=site.number + number), node_id=node_id)).text

    return await ask_until_usable(shape, request.messages, ask, name=repr(request.model))


async def ask_until_usable(shape: TypeAdapter[T], messages: tuple[Message, ...], ask: AskText, *, name: str) -> T:
    """Ask for an answer of this shape with any function. `name` is who answers, for the error."""
    for number in range(REPAIRS + 1):
        text = await ask(messages, number)
        try:
            return shape.validate_python(find_json(text))
        except (ValueError, ValidationError) as error:
            problem = _describe_error(error)
        correction = f"That answer cannot be used: {problem}. Answer again with the JSON object only, corrected."
        messages = (*messages, Message("assistant", text), Message("user", correction))
    quoted = cut(one_line(text), QUOTED)
    raise BadAnswerError(f"{name} gave no usable answer in {REPAIRS + 1} tries: {problem}; the last one is {quoted!r}")


def find_json(text: str) -> Json:
    """The JSON in an answer: the whole text, the content of a code fence, or the first object or array."""
    for candidate in (text.strip(), *(found.strip() for found in _FENCE.findall(text))):
        try:
            return orjson.loads(candidate)
        except orjson.JSONDecodeError:
            continue
    starts = [at for at in (text.find("{"), text.find("[")) if at >= 0]
    if not starts:
        raise ValueError("it holds no JSON")
    try:
        value, _ = json.JSONDecoder().raw_decode(text, min(starts))
    except json.JSONDecodeError as error:
        raise ValueError(f"its JSON is broken: {error}") from error
    return value


def _describe_error(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the answer"
    return f"{place}: {first['msg']}"
