"""LLMOptimizer: a model writes the new value of one surface, from its signal and from what happened with it.

A value that breaks a limit, changes nothing or was rejected before is shown to the model as wrong. A text too long to
be shown whole is changed by edits, so that nothing of what was not shown is lost.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import orjson

from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.prompts import is_shown_whole, render_optimize
from promptiter.backprop.llm.rendering import render_value
from promptiter.backprop.llm.truncation import approximate_tokens
from promptiter.errors import SurfaceValueError
from promptiter.llm.messages import Role
from promptiter.llm.redaction import map_texts
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import OptimizeRequest, OptimizeResult
from promptiter.structure import EXAMPLE_ROLES, TEXT_TYPES, Surface
from traces.model import Json, holds_non_finite

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SPARE_TOKENS = 1_000
"""What an answer may have beyond one and a half times the current value."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """What the model proposes, checked."""

    value: Json
    reason: str


class LLMOptimizer(ModelStage[OptimizeRequest]):
    """Asks a model for one patch. An own `render` is to ask for `reason` and `value`."""

    role: ClassVar[Role] = "optimizer"

    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        """A patch that the surface can take; a ModelError if the model finds none, also after repair."""
        surface, limit = request.surface, self.max_prompt_tokens
        is_whole = self.render is not None or is_shown_whole(surface, limit=limit)
        if not is_whole and surface.type not in TEXT_TYPES:
            return OptimizeResult(
                patch=None,
                reason=f"the value of {surface.id!r} is too long for a prompt of {limit:,} tokens; "
                "raise max_prompt_tokens of the optimizer",
            )
        messages = self.render(request) if self.render else render_optimize(request, limit=limit)
        shape = build_value_adapter(request) if is_whole else build_edits_adapter(request)
        needed = SPARE_TOKENS + (approximate_tokens(render_value(surface.value)) * 3 // 2 if is_whole else 0)
        new = await self.ask(shape, messages, request, node_id=surface.node_id, answer_tokens=needed)
        patch = SurfacePatch(
            surface_id=surface.id, value=new.value, reason=new.reason, evidence=request.signal.case_ids
        )
        return OptimizeResult(patch=patch, reason=new.reason)


def build_value_adapter(request: OptimizeRequest) -> TypeAdapter[NewValue]:
    """An answer with the complete new value."""
    from pydantic import AfterValidator, TypeAdapter, WithJsonSchema, create_model

    def parse(reply: Any) -> NewValue:
        return check_value(NewValue(_unescape_marks(reply.value, request.surface), reply.reason), request)

    answer: Any = create_model("Answer", reason=(_build_reason_type(), ...), value=(Any, ...))
    schema = build_object_schema(reason={"type": "string"}, value=build_value_schema(request.surface))
    shape: Any = Annotated[answer, AfterValidator(parse), WithJsonSchema(schema)]
    return TypeAdapter(shape)


def build_edits_adapter(request: OptimizeRequest) -> TypeAdapter[NewValue]:
    """An answer with passages of the current value and what stands there instead."""
    from pydantic import AfterValidator, Field, TypeAdapter, WithJsonSchema, create_model

    def parse(reply: Any) -> NewValue:
        pairs = [
            tuple(_unescape_marks(text, request.surface) for text in (each.find, each.replace)) for each in reply.edits
        ]
        return check_value(NewValue(apply_edits(request.surface.value, pairs), reply.reason), request)

    edit: Any = create_model("Edit", find=(str, ...), replace=(str, ...))
    edits = Annotated[list[edit], Field(min_length=1)]
    answer: Any = create_model("Answer", reason=(_build_reason_type(), ...), edits=(edits, ...))
    one = build_object_schema(find={"type": "string"}, replace={"type": "string"})
    schema = build_object_schema(reason={"type": "string"}, edits={"type": "array", "minItems": 1, "items": one})
    shape: Any = Annotated[answer, AfterValidator(parse), WithJsonSchema(schema)]
    return TypeAdapter(shape)


def build_value_schema(surface: Surface) -> dict[str, Json]:
    """What the surface can take, as a JSON schema."""
    limits = surface.limits
    if surface.type in TEXT_TYPES:
        return {"type": "string"} | ({"maxLength": limits.max_chars} if limits.max_chars is not None else {})
    if surface.type == "examples":
        message = build_object_schema(role={"type": "string", "enum": list(EXAMPLE_ROLES)}, content={"type": "string"})
        most = {"maxItems": limits.max_examples} if limits.max_examples is not None else {}
        return {"type": "array", "items": message} | most
    if limits.choices:
        return {"enum": list(limits.choices)}
    if surface.type == "model":
        return {"type": "string"}
    bounds = {"minimum": limits.minimum, "maximum": limits.maximum}
    kind = "integer" if limits.kind == "integer" else "number"
    return {"type": kind} | {name: bound for name, bound in bounds.items() if bound is not None}


def check_value(new: NewValue, request: OptimizeRequest) -> NewValue:
    """The value, or a ValueError that tells the model what is wrong with it."""
    try:
        orjson.dumps(new.value)
        request.surface.check(new.value)
    except TypeError as error:
        raise ValueError(f"the value is no plain text or JSON: {error}") from error
    except SurfaceValueError as error:
        raise ValueError(f"the surface cannot take this value: {error.problem}") from error
    if holds_non_finite(new.value):
        raise ValueError("the value holds a NaN or infinite number")
    if isinstance(new.value, str) and not new.value.strip():
        raise ValueError("the value is empty; give the complete new value")
    if _is_same(new.value, request.surface.value):
        raise ValueError("the value is the current one; it has to change what the signal asks for")
    for rejection in request.rejected:
        if _is_same(new.value, rejection.value):
            raise ValueError(f"this very value was rejected before ({rejection.reason}); find another way")
    return new


def apply_edits(text: str, edits: Sequence[tuple[str, ...]]) -> str:
    """The text after the edits, one after the other; each passage must be there once."""
    for find, replacement in edits:
        count = text.count(find) if find else 0
        if count != 1:
            raise ValueError(
                f"the passage {find[:200]!r} occurs {count} times in the value; it must occur exactly once"
            )
        text = text.replace(find, replacement)
    return text


def _build_reason_type() -> Any:
    from pydantic import StringConstraints

    return Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


def _is_same(value: Json, other: Json) -> bool:
    """Equal, whatever the whitespace of a text is."""
    if isinstance(value, str) and isinstance(other, str):
        return value.split() == other.split()
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


_ESCAPED_MARK = re.compile(r"&lt;(?=\s*/?\s*data\b)", re.IGNORECASE)


def _unescape_marks(value: Json, surface: Surface) -> Json:
    """Marks as the surface writes them. Quoting escapes them in the prompt, and a model copies what it sees."""
    if _ESCAPED_MARK.search(render_value(surface.value)):
        return value
    return map_texts(value, lambda text: _ESCAPED_MARK.sub("<", text))
