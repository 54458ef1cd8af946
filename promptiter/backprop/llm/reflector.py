"""LLMReflector: a model rewrites one component after looking at the cases of a mini-batch. GEPA asks it."""

from __future__ import annotations

import logging
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, StringConstraints, TypeAdapter

from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.optimizer import SPARE_TOKENS, NewValue, build_value_schema, check_value
from promptiter.backprop.llm.reflection_prompt import render_reflect
from promptiter.backprop.llm.rendering import render_value
from promptiter.backprop.llm.truncation import approximate_tokens
from promptiter.backprop.llm.value_wrappers import unwrap_value
from promptiter.llm.messages import Message, Role
from promptiter.llm.redaction import process_redactor
from promptiter.llm.structured import build_shape
from promptiter.profile import PatchEvidence, SurfacePatch
from promptiter.stages.reflection import ReflectRequest
from promptiter.structure import Surface

_logger = logging.getLogger(__name__)


class LLMReflector(ModelStage[ReflectRequest]):
    """Asks a model for the new text of one component. A custom `render` must ask for `reason` and `value`."""

    role: ClassVar[Role] = "optimizer"

    async def reflect(self, request: ReflectRequest) -> SurfacePatch:
        """Return a patch that the surface accepts. Raises a ModelError if there is none even after repair."""
        surface = request.surface
        messages = self.render(request) if self.render else render_reflect(request, limit=self.max_prompt_tokens)
        _log_prompt(messages, surface)
        needed = SPARE_TOKENS + approximate_tokens(render_value(surface.value)) * 3 // 2
        new = await self.ask(build_adapter(surface), messages, request, node_id=surface.node_id, answer_tokens=needed)
        cases = tuple(each.case_id for each in request.records)
        return SurfacePatch(
            surface_id=surface.id, value=new.value, reason=new.reason, evidence=PatchEvidence(cases=cases)
        )


def _log_prompt(messages: tuple[Message, ...], surface: Surface) -> None:
    """Log what the model is asked, below INFO because it quotes texts."""
    if _logger.isEnabledFor(logging.DEBUG):
        text = "\n\n".join(f"[{each.role}]\n{each.content}" for each in messages)
        _logger.debug("reflection prompt for %s:\n%s", surface.id, process_redactor().redact_text(text))


class _Reply(BaseModel):
    reason: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    value: Any


def build_adapter(surface: Surface) -> TypeAdapter[NewValue]:
    """Build the adapter of an answer with the complete new value."""

    def parse(reply: _Reply) -> NewValue:
        return check_value(NewValue(unwrap_value(reply.value, surface), reply.reason), surface)

    schema = build_object_schema(reason={"type": "string"}, value=build_value_schema(surface))
    return build_shape(_Reply, parse, schema=schema)
