"""LLMBackwarder: a model reads one step of a failed run and blames a surface or a predecessor."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from promptiter.backprop.llm.model_stage import ModelStage
from promptiter.backprop.llm.rendering import collect_findings
from promptiter.backprop.llm.replies import BlameEntry, build_answer_adapter, build_gradient, grade, resolve_id
from promptiter.backprop.llm.step_prompt import alias_predecessors, alias_surfaces, render_backward
from promptiter.grouping import group_by
from promptiter.llm.messages import Message, Role
from promptiter.stages.contracts import BackwardRequest, BackwardResult, GradientPacket


class LLMBackwarder(ModelStage[BackwardRequest]):
    """Calls a model once for each step. A custom `render` may also name surfaces and steps by their ids."""

    role: ClassVar[Role] = "backwarder"

    def render_prompt(self, request: BackwardRequest) -> tuple[Message, ...]:
        """The messages to the model."""
        return self.render(request) if self.render else render_backward(request, limit=self.max_prompt_tokens)

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        """Return gradients and packets. Raises a ModelError if there is no usable answer even after repair."""
        if not request.blamable and not request.predecessors:
            return BackwardResult(step_id=request.step.id)
        surfaces, predecessors = alias_surfaces(request), alias_predecessors(request)
        shape = build_answer_adapter(tuple(surfaces), tuple(predecessors))
        answer = await self.ask(shape, self.render_prompt(request), request, node_id=request.step.node_id)
        surface_ids = {name: name for name in request.blamable} | surfaces
        step_ids = {step.id: step.id for step in request.predecessors}
        step_ids |= {alias: step.id for alias, step in predecessors.items()}
        findings = collect_findings(request.incoming)
        reports = [(packet.severity, packet.category) for packet in request.incoming]
        gradients = [(resolve_id(blame.of, surface_ids), blame) for blame in answer.gradients]
        packets = [(resolve_id(blame.of, step_ids), blame) for blame in answer.packets]
        return BackwardResult(
            step_id=request.step.id,
            gradients=tuple(
                build_gradient(blame, (name, request.step.id), request, reports=reports, findings=findings)
                for name, blame in gradients
                if name
            ),
            packets=_merge_packets([_build_packet(name, blame, request) for name, blame in packets if name]),
            dropped=sum(not name for name, _ in (*gradients, *packets)),
        )


def _build_packet(target: str, blame: BlameEntry, request: BackwardRequest) -> GradientPacket:
    severity, category = grade(blame, [(each.severity, each.category) for each in request.incoming])
    return GradientPacket(
        source=request.step.id,
        target=target,
        text=blame.text,
        severity=severity,
        category=category,
        findings=collect_findings(request.incoming),
    )


def _merge_packets(packets: list[GradientPacket]) -> tuple[GradientPacket, ...]:
    """One packet for each predecessor, with all texts and the worst severity."""
    return tuple(
        replace(
            min(same, key=lambda packet: packet.severity),
            text="\n".join(dict.fromkeys(packet.text for packet in same)),
        )
        for same in group_by(packets, lambda packet: packet.target).values()
    )
