"""LLMCorrector: a model writes the output that a blamed step should have had with the input it got.

It makes one call per step. The answer is compared with the trace: a correction that contains
something that had been lost before the step is refused.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, StringConstraints

from promptiter.backprop.corrections import Correction, CorrectionKind, CorrectionRequest, FindLostValues, parse_like
from promptiter.backprop.llm.model_stage import ModelStage, build_object_schema
from promptiter.backprop.llm.prompts import CORRECT, DATA_RULE, EXPECTED, MAX_PROMPT_TOKENS
from promptiter.backprop.llm.rendering import (
    EARLIER,
    USER,
    build_optional_section,
    build_step_section,
    collect_literals,
    describe_findings,
    quote_numbered,
    quote_optional,
    quote_surface,
    render_call,
    render_snapshot,
)
from promptiter.backprop.llm.reports import collect_findings, collect_reports
from promptiter.backprop.llm.truncation import PromptSection, approximate_tokens, compose, compute_room
from promptiter.backprop.loss import split_losses
from promptiter.llm.messages import Message, Role
from promptiter.llm.structured import build_shape
from promptiter.registry import OFFLINE_STAGES

OTHER_ACTION = "other_action"
"""What a step needed that had to call a tool or take another branch. Its output cannot show that."""

_RULES = CORRECT.format(data_rule=DATA_RULE)


class LLMCorrector(ModelStage[CorrectionRequest]):
    """Asks a model for the corrected output of one step. A custom `render` gets the whole request."""

    role: ClassVar[Role] = "corrector"

    async def correct(self, request: CorrectionRequest) -> Correction:
        """Return a correction. Raises a ModelError if there is no usable answer even after repair."""
        if not request.is_whole:
            return Correction(
                kind="unknown", reason="the trace does not have the complete input and output of the step"
            )
        messages = self.render(request) if self.render else render_correction(request, limit=self.max_prompt_tokens)
        room = 2 * approximate_tokens(render_snapshot(request.step.output))
        reply = await self.ask(_CORRECTION, messages, request, node_id=request.step.node_id, answer_tokens=room)
        if not reply.is_correctable:
            kind: CorrectionKind = "unknown" if reply.needs == OTHER_ACTION else "no_better"
            return Correction(kind=kind, reason=reply.reason)
        find_values_lost_earlier: FindLostValues = OFFLINE_STAGES.get("lost_values")
        if lost := find_values_lost_earlier(request, reply.output):
            return Correction(kind="no_better", reason=f"{lost[0]!r} had been lost before the step")
        try:
            output = parse_like(reply.output, request.step.output)
        except ValueError:
            return Correction(
                kind="unknown", reason="the step returns data, but the model's correction is not valid JSON"
            )
        return Correction(kind="corrected", output=output, reason=reply.reason)


def render_correction(request: CorrectionRequest, *, limit: int = MAX_PROMPT_TOKENS) -> tuple[Message, ...]:
    """Render the prompt for the corrected output of one blamed step."""
    step, losses = request.step, request.case_loss.losses
    found = collect_findings(collect_reports(split_losses(losses)))
    diagnosis = list(dict.fromkeys(gradient.text for gradient in request.gradients))
    sections = [
        PromptSection(title="# The diagnosis", quotes=quote_numbered("diagnosis", diagnosis), weight=6),
        *build_optional_section(
            "# What the user said",
            (*quote_optional(EARLIER, request.case_loss.earlier), *quote_optional("user", request.case_loss.input)),
            weight=3,
        ),
        build_step_section(step, {USER: request.case_loss.input}),
        *build_optional_section(
            "# Its tool calls", quote_numbered("call", map(render_call, step.tool_calls)), weight=6
        ),
        *build_optional_section(
            "# Its surfaces", tuple(quote_surface(each, name="surface") for each in request.surfaces), weight=4
        ),
        *build_optional_section(
            "# What is wrong with the result of the run",
            (*quote_numbered("report", dict.fromkeys(loss.text for loss in losses if loss.text)),)
            or quote_optional("findings", "\n".join(describe_findings(found))),
            weight=4,
        ),
        *build_optional_section(EXPECTED, quote_optional("expected", request.expected), weight=6),
    ]
    message = compose(sections, compute_room(_RULES, limit=limit), around=collect_literals(found, [request.expected]))
    return Message("system", _RULES), Message("user", message)


class _CorrectionReply(BaseModel):
    reason: Annotated[str, StringConstraints(strip_whitespace=True)] = ""
    is_correctable: bool = True
    needs: str = ""
    output: str = ""


def _check_reply(reply: _CorrectionReply) -> _CorrectionReply:
    if reply.is_correctable and not reply.output.strip():
        raise ValueError("the output is empty; give what the step should have given, or set is_correctable to false")
    return reply


_CORRECTION = build_shape(
    _CorrectionReply,
    _check_reply,
    schema=build_object_schema(
        reason={"type": "string"},
        is_correctable={"type": "boolean"},
        needs={"type": "string", "enum": ["nothing", "other_input", OTHER_ACTION]},
        output={"type": "string"},
    ),
)
