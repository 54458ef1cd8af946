"""The backward walk: blame flows from the losses of one trace back along its steps. This is the heart of promptiter.

It is dataflow: a step is asked as soon as the last step behind it has answered, so as many steps are in flight as the
trace allows. What cannot change anything is not asked: a step from which no target surface can be reached is left out,
and one that has nothing to be blamed itself and a single way upstream passes its packets on. The outcome does not
depend on timing, and nothing recurses: a chain of 100,000 steps is as good as one of ten.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import replace

from promptiter.backprop.stages import (
    AttributeRequest,
    Backwarder,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.errors import BudgetEndedError, SetupError, UnexpectedCallError
from promptiter.structure import Surface
from traces import Step


class Stepwise:
    """The Attributor over a Backwarder: walks every trace, so many steps at once over all of them together."""

    def __init__(self, backwarder: Backwarder, *, concurrency: int = 64) -> None:
        self.backwarder = backwarder
        self.concurrency = concurrency
        self._limit: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        loop = asyncio.get_running_loop()
        if self._limit is None or self._limit[0] is not loop:
            self._limit = (loop, asyncio.Semaphore(self.concurrency))
        return await propagate(request, self.backwarder, limit=self._limit[1])


async def propagate(
    request: AttributeRequest, backwarder: Backwarder, *, limit: asyncio.Semaphore | None = None
) -> list[BackwardResult]:
    """Walk one trace from its losses to its roots; the results come in the order of the trace, last step first."""
    limit = limit or asyncio.Semaphore(64)
    view = _View(request)
    waiting_for = view.waiting_for
    packets = view.losses
    results: dict[str, BackwardResult] = {}
    ready = [step_id for step_id, count in waiting_for.items() if count == 0]

    async def ask(question: BackwardRequest) -> None:
        async with limit:
            result = await _answer(backwarder, question)
        release(question.step, result)
        go_on()

    def release(step: Step, result: BackwardResult | None) -> None:
        if result is not None:
            results[step.id] = result
            for packet in result.packets:
                packets[packet.target].append(packet)
        for source in step.predecessors:
            if source in waiting_for:
                waiting_for[source] -= 1
                if waiting_for[source] == 0:
                    ready.append(source)

    def go_on() -> None:
        while ready:
            step = view.steps[ready.pop()]
            incoming = packets.pop(step.id, None)
            if incoming is None:
                release(step, None)
                continue
            question = view.question(step, incoming)
            if not question.blamable and len(question.predecessors) == 1:
                release(step, _passed_on(question))
            else:
                group.create_task(ask(question))

    try:
        async with asyncio.TaskGroup() as group:
            go_on()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[step_id] for step_id in waiting_for if step_id in results]


class _View:
    """One trace as the walk sees it: who waits for whom, and what each step is to be shown."""

    def __init__(self, request: AttributeRequest) -> None:
        self.request = request
        self.steps = {step.id: step for step in request.trace.steps}
        self.position = {step.id: index for index, step in enumerate(request.trace.steps)}
        self._surfaces: dict[str, tuple[Surface, ...]] = {}
        self._by_node: defaultdict[str, list[str]] = defaultdict(list)
        for surface in request.snapshot.surfaces:
            self._by_node[surface.node_id].append(surface.id)
        self.losses = self._losses()
        self.waiting_for = self._waiting_for()
        losses = request.case_loss.losses
        self._reasons = tuple(dict.fromkeys(loss.text for loss in losses if loss.text))
        self._expected = next((loss.expected for loss in losses if loss.expected is not None), None)

    def _losses(self) -> defaultdict[str, list[GradientPacket]]:
        packets: defaultdict[str, list[GradientPacket]] = defaultdict(list)
        for loss in self.request.case_loss.losses:
            packet = GradientPacket(
                source="",
                target=loss.step_id,
                text=f"{loss.metric}: {loss.text}" if loss.metric else loss.text,
                severity=loss.severity,
                category=loss.category,
                findings=loss.findings,
            )
            packets[loss.step_id].append(packet)
        return packets

    def _waiting_for(self) -> dict[str, int]:
        """The steps of the walk, last first, with how many steps behind each must answer before it."""
        is_useful: dict[str, bool] = {}
        for step in self.request.trace.steps:
            is_useful[step.id] = any(map(is_useful.__getitem__, step.predecessors)) or bool(self.blamable(step))
        waiting_for: dict[str, int] = {}
        behind: defaultdict[str, int] = defaultdict(int)
        for step in reversed(self.request.trace.steps):
            if is_useful[step.id] and (step.id in behind or step.id in self.losses):
                waiting_for[step.id] = behind[step.id]
                for source in step.predecessors:
                    behind[source] += 1
        return waiting_for

    def blamable(self, step: Step) -> tuple[str, ...]:
        """The targets that the step read; if nobody knows what it read, those of its node."""
        targets = self.request.targets
        read = self._by_node[step.node_id] if step.surface_reads is None else sorted(step.surface_reads)
        return tuple(surface_id for surface_id in read if surface_id in targets)

    def question(self, step: Step, incoming: list[GradientPacket]) -> BackwardRequest:
        if len(incoming) > 1:
            incoming.sort(key=lambda packet: self.position.get(packet.source, -1))
        case = self.request.case_loss
        return BackwardRequest(
            case_id=case.case_id,
            draw=case.draw,
            turn=case.turn,
            step=step,
            incoming=tuple(incoming),
            surfaces=self.surfaces(step),
            blamable=self.blamable(step),
            predecessors=tuple(self.steps[source] for source in step.predecessors if source in self.waiting_for),
            input=case.input,
            expected=self._expected,
            reasons=self._reasons,
        )

    def surfaces(self, step: Step) -> tuple[Surface, ...]:
        """The surfaces of the step's node, and others that it read, with their current values."""
        known = self._surfaces.get(step.node_id)
        if known is None:
            ids = dict.fromkeys((*self._by_node[step.node_id], *sorted(step.surface_reads or ())))
            known = self._surfaces[step.node_id] = tuple(
                replace(surface, value=self.request.profile.value(surface_id, self.request.snapshot))
                for surface_id in ids
                for surface in [self.request.snapshot.surface(surface_id)]
            )
        return known


async def _answer(backwarder: Backwarder, question: BackwardRequest) -> BackwardResult:
    """What the backwarder says of one step. Its failure is that step's alone."""
    try:
        result = await backwarder.backward(question)
    except (BudgetEndedError, UnexpectedCallError, SetupError):
        raise
    except Exception as error:  # noqa: BLE001 - a stage may be the user's own; the round says what failed
        return BackwardResult(step_id=question.step.id, error=f"{type(error).__name__}: {error}")
    return _checked(result, question)


def _checked(result: BackwardResult, question: BackwardRequest) -> BackwardResult:
    """The result without what it may not name; an id that was left out is filled in where only one is possible."""
    sources = [step.id for step in question.predecessors]
    gradients: list[SurfaceGradient] = []
    packets: list[GradientPacket] = []
    for gradient in result.gradients:
        if not gradient.surface_id and len(question.blamable) == 1:
            gradient = replace(gradient, surface_id=question.blamable[0])
        if gradient.surface_id in question.blamable:
            gradients.append(gradient)
    for packet in result.packets:
        if not packet.target and len(sources) == 1:
            packet = replace(packet, target=sources[0])
        if packet.target in sources:
            packets.append(packet if packet.source == question.step.id else replace(packet, source=question.step.id))
    made_up = len(result.gradients) + len(result.packets) - len(gradients) - len(packets)
    return BackwardResult(
        step_id=question.step.id,
        gradients=tuple(gradients),
        packets=tuple(packets),
        dropped=result.dropped + made_up,
        error=result.error,
    )


def _passed_on(question: BackwardRequest) -> BackwardResult:
    step_id, [only] = question.step.id, question.predecessors
    packets = tuple(replace(packet, source=step_id, target=only.id) for packet in question.incoming)
    return BackwardResult(step_id=step_id, packets=packets)
