"""LLMBackwarder: a model reads one step of a failed run and blames a surface or a predecessor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import ClassVar

from promptiter.backprop.llm.model_stage import ModelStage
from promptiter.backprop.llm.replies import BlameEntry, build_answer_adapter, build_gradient, grade, resolve_id
from promptiter.backprop.llm.reports import CitedReports
from promptiter.backprop.llm.step_prompt import StepPrompt
from promptiter.grouping import group_by
from promptiter.llm.messages import Message, Role
from promptiter.stages.contracts import BackwardRequest, BackwardResult, GradientPacket


class LLMBackwarder(ModelStage[BackwardRequest]):
    """Calls a model once for each step. A custom `render` may also name surfaces and steps by their ids."""

    role: ClassVar[Role] = "backwarder"

    def render_prompt(self, request: BackwardRequest) -> tuple[Message, ...]:
        """The messages to the model."""
        return self.render(request) if self.render else StepPrompt(request).render(limit=self.max_prompt_tokens)

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        """Return gradients and packets. Raises a ModelError if there is no usable answer even after repair."""
        if not request.blamable and not request.predecessors:
            return BackwardResult(step_id=request.step.id)
        shown = StepPrompt(request)
        reports, predecessors = shown.reports, shown.predecessors
        shape = build_answer_adapter(tuple(shown.surfaces), tuple(predecessors), reports=tuple(reports))
        messages = self.render(request) if self.render else shown.render(limit=self.max_prompt_tokens)
        answer = await self.ask(shape, messages, request, node_id=request.step.node_id)
        step_ids = {alias: step.id for alias, step in predecessors.items()}
        step_id, cite = request.step.id, shown.shown.cite
        gradients = [
            build_gradient(blame, (surface_id, step_id), request, cited=cite(blame.cited))
            for blame in answer.gradients
            if (surface_id := resolve_id(blame.of, shown.surfaces, others=request.blamable))
        ]
        packets = [
            _build_packet(target, blame, request, cite(blame.cited))
            for blame in answer.packets
            if (target := resolve_id(blame.of, step_ids, others=map(_get_id, request.predecessors)))
        ]
        return BackwardResult(
            step_id=step_id,
            gradients=tuple(gradients),
            packets=_merge_packets(packets),
            dropped=len(answer.gradients) + len(answer.packets) - len(gradients) - len(packets),
            diagnosis="" if answer.gradients or answer.packets else answer.diagnosis,
        )


_get_id = attrgetter("id")


def _build_packet(target: str, blame: BlameEntry, request: BackwardRequest, cited: CitedReports) -> GradientPacket:
    severity, category = grade(blame, cited)
    return GradientPacket(
        source=request.step.id,
        target=target,
        text=blame.text,
        severity=severity,
        category=category,
        findings=cited.findings,
        reasons=cited.texts,
    )


def _merge_packets(packets: list[GradientPacket]) -> tuple[GradientPacket, ...]:
    """One packet for each predecessor, with all texts and the worst severity."""
    if len({packet.target for packet in packets}) == len(packets):
        return tuple(packets)
    return tuple(
        same[0] if len(same) == 1 else _merge_same(same)
        for same in group_by(packets, lambda packet: packet.target).values()
    )


def _merge_same(packets: Sequence[GradientPacket]) -> GradientPacket:
    return replace(
        min(packets, key=lambda packet: packet.severity),
        text="\n".join(dict.fromkeys(packet.text for packet in packets)),
        findings=tuple({repr(each): each for packet in packets for each in packet.findings}.values()),
        reasons=tuple(dict.fromkeys(reason for packet in packets for reason in packet.reasons)),
    )
