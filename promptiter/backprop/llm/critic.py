"""LLMCritic: a model diagnoses what is wrong with a text, from cases that fail with it. Coordinate descent asks it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, StringConstraints

from promptiter.backprop.llm.diagnosis_prompts import render_diagnose
from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.llm.messages import Role
from promptiter.llm.structured import build_shape
from promptiter.stages.diagnosis import DiagnoseRequest, Diagnosis

_TEXTS = {"type": "array", "items": {"type": "string"}}


class LLMCritic(ModelStage[DiagnoseRequest]):
    """Asks a model for a diagnosis. `prompt` replaces the packaged rules; the form of the answer stays the same."""

    role: ClassVar[Role] = "critic"

    def __init__(self, model: str, *, prompt: str | None = None, **options: Any) -> None:
        super().__init__(model, **options)
        self.prompt = prompt

    async def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        """Return a diagnosis. Raises a ModelError if there is none even after repair. Unknown citations are dropped."""
        messages = (
            self.render(request)
            if self.render
            else render_diagnose(request, rules=self.prompt, limit=self.max_prompt_tokens)
        )
        reply = await self.ask(_SHAPE, messages, request, node_id=request.surface.node_id)
        known = {each.case_id for each in request.failing}
        return Diagnosis(
            failing_pattern=reply.failing_pattern,
            root_cause_hypothesis=reply.root_cause_hypothesis,
            suggested_change_direction=reply.suggested_change_direction,
            confidence=reply.confidence,
            citations=tuple(each for each in dict.fromkeys(reply.citations) if each in known),
            avoid=tuple(reply.avoid),
        )


class _Reply(BaseModel):
    failing_pattern: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    root_cause_hypothesis: str = ""
    suggested_change_direction: str = ""
    confidence: Annotated[float, Field(ge=0, le=1)]
    citations: list[str] = Field(default_factory=list)
    avoid: list[str] = Field(default_factory=list)


_SHAPE = build_shape(
    _Reply,
    lambda reply: reply,
    schema=build_object_schema(
        failing_pattern={"type": "string"},
        root_cause_hypothesis={"type": "string"},
        suggested_change_direction={"type": "string"},
        confidence={"type": "number"},
        citations=_TEXTS,
        avoid=_TEXTS,
    ),
)
