"""LLMApplier: a model edits a text as a diagnosis says. Coordinate descent asks it after the critic."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, TypeAdapter

from promptiter.backprop.llm.diagnosis_prompts import render_apply
from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.optimizer import SPARE_TOKENS, NewValue, check_value
from promptiter.backprop.llm.rendering import render_value
from promptiter.backprop.llm.truncation import approximate_tokens
from promptiter.backprop.llm.value_wrappers import unwrap_value
from promptiter.llm.messages import Role
from promptiter.llm.structured import build_shape
from promptiter.stages.diagnosis import ApplyRequest, EditType, TextEdit
from promptiter.structure import Surface


class LLMApplier(ModelStage[ApplyRequest]):
    """Asks a model for an edit. `prompt` replaces the packaged rules; the form of the answer stays the same."""

    role: ClassVar[Role] = "applier"

    def __init__(self, model: str, *, prompt: str | None = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.prompt = prompt

    async def apply(self, request: ApplyRequest) -> TextEdit:
        """Return an edit that the surface accepts. Raises a ModelError if there is none even after repair."""
        surface = request.surface
        messages = (
            self.render(request)
            if self.render
            else render_apply(request, rules=self.prompt, limit=self.max_prompt_tokens)
        )
        needed = SPARE_TOKENS + approximate_tokens(render_value(surface.value)) * 3 // 2
        return await self.ask(build_adapter(surface), messages, request, node_id=surface.node_id, answer_tokens=needed)


class _Reply(BaseModel):
    edit_type: EditType = "replace"
    rationale: str = ""
    new_text: str
    diff_summary: str = ""


def build_adapter(surface: Surface) -> TypeAdapter[TextEdit]:
    """Build the adapter of an answer with the complete new text."""

    def parse(reply: _Reply) -> TextEdit:
        new = check_value(NewValue(unwrap_value(reply.new_text, surface), reply.rationale), surface)
        return TextEdit(
            new_text=str(new.value),
            rationale=reply.rationale.strip(),
            edit_type=reply.edit_type,
            summary=reply.diff_summary.strip(),
        )

    text = {"type": "string"}
    kinds = {"type": "string", "enum": ["insert", "replace", "delete", "restructure"]}
    schema = build_object_schema(edit_type=kinds, rationale=text, new_text=text, diff_summary=text)
    return build_shape(_Reply, parse, schema=schema)
