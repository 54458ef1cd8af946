"""Structured output: ask for JSON of a schema, parse it leniently, and show the model its error until it fits.

The last JSON of an answer that fits counts. An answer that was cut off is asked for again, with a larger limit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from pydantic import AfterValidator, BaseModel, TypeAdapter, ValidationError, WithJsonSchema

from promptiter.errors import BadAnswerError
from promptiter.llm.answer_json import drop_reasoning, find_json
from promptiter.llm.messages import AnswerSchema, CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.schema_example import render_example
from traces.model import Json
from traces.text import cut, one_line

if TYPE_CHECKING:
    from promptiter.llm.gateway import Gateway

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

REPAIRS = 3
QUOTED = 100
"""Characters of an unusable answer that an error quotes."""
SHOWN_OF_CUT = 500
"""Characters that the model is shown again of an answer that was cut off."""
MOST_PROBLEMS = 3
"""Problems of one answer that the model is shown."""


def build_shape(model: type[M], parse: Callable[[M], T], *, schema: Mapping[str, Json] | None = None) -> TypeAdapter[T]:
    """The shape of an answer that is checked as `model` and then parsed. `schema` is shown instead of the model's."""
    shape: Any = Annotated[model, AfterValidator(parse)]
    return TypeAdapter(shape if schema is None else Annotated[shape, WithJsonSchema(dict(schema))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt to get an answer. `number` counts those before it, `cut_off` those whose answer was cut off."""

    messages: tuple[Message, ...]
    number: int = 0
    cut_off: int = 0


AskOnce: TypeAlias = Callable[[Attempt], Awaitable[ModelReply]]
"""Makes one attempt."""


async def ask_for(
    shape: TypeAdapter[T], request: ModelRequest, site: CallSite, gateway: Gateway, *, node_id: str = ""
) -> T:
    """Ask for an answer of this shape. If it does not fit, the model sees its answer and the error, REPAIRS times.

    Each time that an answer is cut off, the limit of its tokens is doubled. The calls are numbered from `site.number`.
    Raises BadAnswerError if the last answer does not fit either.
    """
    schema = find_schema(shape)

    async def ask(attempt: Attempt) -> ModelReply:
        is_complete = request.schema is schema and not attempt.number
        asked = request if is_complete else replace(request, messages=attempt.messages, schema=schema)
        numbered = replace(site, number=site.number + attempt.number) if attempt.number else site
        return await gateway.ask(asked, numbered, node_id=node_id, doublings=attempt.cut_off)

    return await ask_until_usable(shape, request.messages, ask, name=repr(request.model))


async def ask_until_usable(shape: TypeAdapter[T], messages: tuple[Message, ...], ask: AskOnce, *, name: str) -> T:
    """Ask for an answer of this shape with any function. `name` is who answers, for the error."""
    attempt = Attempt(messages=messages)
    for number in range(1, REPAIRS + 2):
        reply = await ask(attempt)
        try:
            return parse_answer(shape, reply)
        except (ValueError, ValidationError) as error:
            problem = _describe_error(error)
        attempt = Attempt(
            messages=(*attempt.messages, *_ask_again(reply, problem, render_example(find_schema(shape)))),
            number=number,
            cut_off=attempt.cut_off + reply.is_cut_off,
        )
    quoted = cut(one_line(reply.text), QUOTED)
    raise BadAnswerError(f"{name} gave no usable answer in {REPAIRS + 1} tries: {problem}; the last one is {quoted!r}")


def parse_answer(shape: TypeAdapter[T], reply: ModelReply) -> T:
    """Parse the last JSON of an answer that has this shape. Raises ValueError or ValidationError if none has.

    An answer that was cut off counts only if it ends with its JSON; otherwise a draft could be taken for the answer.
    """
    try:
        return shape.validate_json(reply.text)  # most answers are nothing but their JSON
    except ValueError:
        found = find_json(reply.text)
    if reply.is_cut_off and not (found and found[-1].ends_answer):
        raise ValueError("it was cut off at the limit of its length")
    if not found:
        raise ValueError("it holds no JSON" if reply.text.strip() else "it is empty")
    if found[-1].is_unfinished:
        raise ValueError(found[-1].problem)
    problems: list[tuple[bool, Exception]] = []
    for each in reversed(found):
        if each.problem:
            problems.append((each.is_object, ValueError(each.problem)))
            continue
        for value in _unwrap(each.value):
            try:
                return shape.validate_python(value)
            except ValidationError as error:
                problems.append((each.is_object, error))
    raise next((error for is_object, error in problems if is_object), problems[0][1])


_schemas: WeakKeyDictionary[TypeAdapter[Any], AnswerSchema] = WeakKeyDictionary()
"""Schemas of the shapes in use: building one takes longer than the rest of a call."""


def find_schema(shape: TypeAdapter[Any]) -> AnswerSchema:
    """The JSON schema of a shape, which is the same object for the same shape."""
    known = _schemas.get(shape)
    if known is None:
        known = _schemas[shape] = AnswerSchema(shape.json_schema())
    return known


def _unwrap(value: Json) -> Iterator[Json]:
    """The value, and what it holds if that is all it holds: `{"answer": {...}}` or `[{...}]`."""
    yield value
    parts = list(value.values()) if isinstance(value, dict) else value
    if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
        yield parts[0]


def _ask_again(reply: ModelReply, problem: str, example: str) -> tuple[Message, Message]:
    """The unusable answer, and why and how to answer again."""
    wanted = f"one JSON object like {example}" if example.startswith("{") else f"JSON like {example}"
    if reply.is_cut_off:
        shown = cut(drop_reasoning(reply.text), SHOWN_OF_CUT)
        problem = "Your answer was cut off at the limit of its length. Answer again from the start, and be shorter"
        correction = f"{problem}: {wanted}, and nothing else."
    else:
        shown = drop_reasoning(reply.text)
        correction = f"That answer cannot be used: {problem}. Answer again with {wanted}, and nothing else."
    return Message("assistant", shown.strip() or "(empty)"), Message("user", correction)


def _describe_error(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'the answer'}: {each['msg'].removeprefix('Value error, ')}"
        for each in error.errors(include_url=False)[:MOST_PROBLEMS]
    )
