"""LLMOptimizer: a model writes the new value of one surface from its signal, examples and rejected values.

A value that breaks a limit goes back to the model for repair. One that changes nothing or was rejected before is not
repaired: `PatchWriter` says so once, with what failed with it. A text that is too long to show whole is changed by
edits, so that the passages that were not shown are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import BaseModel, Field, StringConstraints, TypeAdapter

from promptiter.backprop.llm.hunks import NamedChange, build_edits, collect_evidence, select_points
from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.prompts import is_asked_for_points, is_shown_whole, render_optimize
from promptiter.backprop.llm.rendering import render_value
from promptiter.backprop.llm.truncation import approximate_tokens
from promptiter.backprop.llm.value_wrappers import unescape_marks, unwrap_passage, unwrap_value
from promptiter.errors import SurfaceValueError
from promptiter.llm.messages import Role
from promptiter.llm.structured import build_shape
from promptiter.profile import PatchEdit, PatchEvidence, SurfacePatch
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from promptiter.structure import EXAMPLE_ROLES, TEXT_TYPES, Surface
from traces.model import Json, holds_non_finite

SPARE_TOKENS = 1_000
"""Tokens that an answer may have in addition to one and a half times the current value."""


@dataclass(frozen=True, slots=True)
class NewValue:
    """A checked value proposed by the model."""

    value: Json
    reason: str
    edits: tuple[PatchEdit, ...] = ()


class LLMOptimizer(ModelStage[OptimizeRequest]):
    """Asks a model for one patch. A custom `render` must ask for `reason` and `value`."""

    role: ClassVar[Role] = "optimizer"

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        """Return a patch that the surface accepts. Raises a ModelError if there is none even after repair."""
        surface, limit = request.surface, self.max_prompt_tokens
        is_whole = self.render is not None or is_shown_whole(surface, limit=limit)
        if not is_whole and surface.type not in TEXT_TYPES:
            return PatchResult(
                patch=None,
                reason=f"the value of {surface.id!r} is too long for a prompt of {limit:,} tokens; "
                "raise max_prompt_tokens of the optimizer",
            )
        messages = self.render(request) if self.render else render_optimize(request, limit=limit)
        shape = build_value_adapter(request) if is_whole else build_edits_adapter(request)
        needed = SPARE_TOKENS + (approximate_tokens(render_value(surface.value)) * 3 // 2 if is_whole else 0)
        new = await self.ask(shape, messages, request, node_id=surface.node_id, answer_tokens=needed)
        patch = SurfacePatch(
            surface_id=surface.id,
            value=new.value,
            reason=new.reason,
            evidence=PatchEvidence(cases=request.signal.case_ids),
            edits=new.edits,
        )
        return PatchResult(patch=patch, reason=new.reason)


_Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class _Change(BaseModel):
    text: str
    points: list[int] = Field(default_factory=list)


class _ValueReply(BaseModel):
    reason: _Reason
    value: Any
    changes: list[_Change] = Field(default_factory=list)


class _Edit(BaseModel):
    find: str
    replace: str
    reason: str = ""
    points: list[int] = Field(default_factory=list)


class _EditsReply(BaseModel):
    reason: _Reason
    edits: Annotated[list[_Edit], Field(min_length=1)]


_NUMBERS = {"type": "array", "items": {"type": "integer"}}
_CHANGES = {"type": "array", "items": build_object_schema(text={"type": "string"}, points=_NUMBERS)}


def build_value_adapter(request: OptimizeRequest) -> TypeAdapter[NewValue]:
    """Build the adapter of an answer with the complete new value."""

    surface, points = request.surface, request.signal.points

    def parse(reply: _ValueReply) -> NewValue:
        value = unwrap_value(reply.value, surface)
        changes = [NamedChange(each.text, tuple(each.points)) for each in reply.changes]
        is_text = isinstance(value, str) and isinstance(surface.value, str) and surface.type in TEXT_TYPES
        is_known = is_text and (changes or len(points) == 1)
        edits = build_edits(surface.value, value, changes, points) if is_known else ()
        return check_value(NewValue(value, reply.reason, edits), request.surface)

    more = {"changes": _CHANGES} if is_asked_for_points(request) else {}
    schema = build_object_schema(reason={"type": "string"}, value=build_value_schema(surface), **more)
    return build_shape(_ValueReply, parse, schema=schema)


def build_edits_adapter(request: OptimizeRequest) -> TypeAdapter[NewValue]:
    """Build the adapter of an answer with edits: passages of the current value and their replacements.

    All edits answer the point of a signal that has only one.
    """
    is_asked = is_asked_for_points(request)

    def parse(reply: _EditsReply) -> NewValue:
        edits = tuple(
            PatchEdit(
                before=unescape_marks(each.find, request.surface),
                after=unwrap_passage(each.replace, request.surface),
                reason=each.reason.strip(),
                evidence=collect_evidence(select_points(each.points if is_asked else [1], request.signal.points)),
            )
            for each in reply.edits
        )
        value = apply_edits(request.surface.value, [(each.before, each.after) for each in edits])
        return check_value(NewValue(value, reply.reason, edits), request.surface)

    one = build_object_schema(
        find={"type": "string"},
        replace={"type": "string"},
        reason={"type": "string"},
        **({"points": _NUMBERS} if is_asked else {}),
    )
    schema = build_object_schema(reason={"type": "string"}, edits={"type": "array", "minItems": 1, "items": one})
    return build_shape(_EditsReply, parse, schema=schema)


def build_value_schema(surface: Surface) -> dict[str, Json]:
    """Build the JSON schema of the values that the surface accepts.

    The length of a text is left to the check of the value: servers hold no answer to a schema that limits it.
    """
    limits = surface.limits
    if surface.type in TEXT_TYPES:
        return {"type": "string"}
    if surface.type == "examples":
        message = build_object_schema(role={"type": "string", "enum": list(EXAMPLE_ROLES)}, content={"type": "string"})
        most = {"maxItems": limits.max_examples} if limits.max_examples is not None else {}
        return {"type": "array", "items": message} | most
    if limits.choices:
        is_text = all(isinstance(each, str) for each in limits.choices)
        return {"enum": list(limits.choices)} | ({"type": "string"} if is_text else {})
    if surface.type == "model":
        return {"type": "string"}
    bounds = {"minimum": limits.minimum, "maximum": limits.maximum}
    kind = "integer" if limits.kind == "integer" else "number"
    return {"type": kind} | {name: bound for name, bound in bounds.items() if bound is not None}


def check_value(new: NewValue, surface: Surface) -> NewValue:
    """Return the value, or raise a ValueError with the problem, which is shown to the model."""
    try:
        orjson.dumps(new.value)
        surface.check(new.value)
    except TypeError as error:
        raise ValueError(f"the value is not plain text or JSON: {error}") from error
    except SurfaceValueError as error:
        raise ValueError(f"the surface cannot take this value: {error.problem}") from error
    if holds_non_finite(new.value):
        raise ValueError("the value holds a NaN or infinite number")
    if isinstance(new.value, str) and surface.type in TEXT_TYPES and not any(map(str.isalnum, new.value)):
        raise ValueError("the value is empty; give the complete new value")
    return new


def apply_edits(text: str, edits: Sequence[tuple[str, ...]]) -> str:
    """Apply the edits in order; each passage must occur exactly once."""
    for find, replacement in edits:
        count = text.count(find) if find else 0
        if count != 1:
            raise ValueError(
                f"the passage {find[:200]!r} occurs {count} times in the value; it must occur exactly once"
            )
        text = text.replace(find, replacement)
    return text
