"""LLMBackwarder: a model reads one step of a failed run and blames a surface or a predecessor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from promptiter.backprop.llm.model_stage import ModelStage
from promptiter.backprop.llm.replies import BlameEntry, build_answer_adapter, build_gradient, grade, resolve_id
from promptiter.backprop.llm.reports import Report, cite_reports, collect_findings
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
        surface_ids = {name: name for name in request.blamable} | shown.surfaces
        step_ids = {step.id: step.id for step in request.predecessors}
        step_ids |= {alias: step.id for alias, step in predecessors.items()}
        gradients = [(resolve_id(blame.of, surface_ids), blame) for blame in answer.gradients]
        packets = [(resolve_id(blame.of, step_ids), blame) for blame in answer.packets]
        return BackwardResult(
            step_id=request.step.id,
            gradients=tuple(
                build_gradient(blame, (name, request.step.id), request, reports=_cite(blame, reports))
                for name, blame in gradients
                if name
            ),
            packets=_merge_packets(
                [_build_packet(name, blame, request, _cite(blame, reports)) for name, blame in packets if name]
            ),
            dropped=sum(not name for name, _ in (*gradients, *packets)),
        )


def _cite(blame: BlameEntry, reports: Mapping[str, Report]) -> tuple[Report, ...]:
    """The reports that an entry explains; all of them, if it cites none."""
    return cite_reports(blame.cited, reports, otherwise=tuple(reports.values()))


def _build_packet(
    target: str, blame: BlameEntry, request: BackwardRequest, reports: Sequence[Report]
) -> GradientPacket:
    severity, category = grade(blame, reports)
    return GradientPacket(
        source=request.step.id,
        target=target,
        text=blame.text,
        severity=severity,
        category=category,
        findings=collect_findings(reports),
        reasons=tuple(report.text for report in reports),
    )


def _merge_packets(packets: list[GradientPacket]) -> tuple[GradientPacket, ...]:
    """One packet for each predecessor, with all texts and the worst severity."""
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
