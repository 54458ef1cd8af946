"""The backward walk: blame flows from the losses of one trace back along its steps. This is the heart of promptiter.

It is dataflow: a step is asked as soon as all its successors have answered, so as many steps are in flight as the trace
and the limit allow. If more are ready than the limit allows, the last of the trace is first: the longest paths begin
there. Steps that cannot matter are not asked: one from which no target surface can be reached is left out, and one with
nothing to blame and a single predecessor passes its packets on. The result does not depend on timing, and nothing
recurses: a chain of 100,000 steps works like one of ten.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from heapq import heappop, heappush

from promptiter.backprop.loss import split_losses
from promptiter.backprop.stage_calls import call_stage
from promptiter.backprop.tool_calls import FirstCalls
from promptiter.concurrency import Slots
from promptiter.errors import FATAL_ERRORS, SetupError
from promptiter.grouping import group_by
from promptiter.stages.contracts import (
    AttributeRequest,
    Backwarder,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.routes import MissedRoute, RouteMap, find_missing_tool, is_inside
from promptiter.structure import Surface
from traces import Failure, Step, ToolCall

CONCURRENCY = 64
"""Maximum number of steps that are asked at the same time."""


class StepwiseAttributor:
    """The Attributor over a Backwarder: walks each trace, with at most `concurrency` steps at once over all traces."""

    def __init__(self, backwarder: Backwarder, *, concurrency: int = CONCURRENCY) -> None:
        if concurrency < 1:
            raise SetupError(f"concurrency must be at least 1, got {concurrency}")
        self.backwarder = backwarder
        self.concurrency = concurrency
        self._slots = Slots(concurrency)

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        return await propagate(request, self.backwarder, slots=self._slots)


async def propagate(
    request: AttributeRequest, backwarder: Backwarder, *, slots: Slots | None = None
) -> list[BackwardResult]:
    """Walk one trace from its losses to its roots. The results are in reverse order of the trace, last step first."""
    slots = slots or Slots(CONCURRENCY)
    view = TraceView(request)
    steps, packets = request.trace.steps, view.losses
    results: dict[str, BackwardResult] = {}
    ready: list[int] = []  # a heap of the steps to ask, by position, the last of the trace first

    def receive(step: Step, result: BackwardResult) -> list[Step]:
        """Deliver the packets of a step, and return the predecessors that wait for no other step."""
        results[step.id] = result
        for packet in result.packets:
            packets[packet.target].append(packet)
        return view.release_predecessors(step)

    def prepare(waiting: list[Step]) -> int:
        """Queue steps that wait for no other step, and return how many must be asked. The others pass packets on."""
        queued = len(ready)
        while waiting:
            step = waiting.pop()
            if step.id not in packets:
                waiting += view.release_predecessors(step)
            elif view.is_asked(step.id):
                heappush(ready, -view.position[step.id])
            else:
                waiting += receive(step, _pass_on(view.build_request(step, packets.pop(step.id))))
        return len(ready) - queued

    async def visit() -> None:
        """Ask the last step that is ready. Of those that it made ready, one is asked here, the others in new tasks."""
        count = 1
        while count:
            async with slots:
                step = steps[-heappop(ready)]
                result = await _ask(backwarder, view.build_request(step, packets.pop(step.id)))
            count = prepare(receive(step, result))
            for _ in range(count - 1):
                group.create_task(visit())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(prepare([view.steps[step_id] for step_id, count in view.waiting_for.items() if not count])):
                group.create_task(visit())
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [results[step.id] for step in reversed(request.trace.steps) if step.id in results]


class TraceView:
    """One trace as the walk sees it: the order of the steps, and the request for each step.

    `waiting_for` has the steps of the walk, each with the number of successors that must answer first; `predecessors`
    has, for each of them, the steps that its packets may go to.
    """

    def __init__(self, request: AttributeRequest) -> None:
        self.request = request
        self.steps = {step.id: step for step in request.trace.steps}
        self.position = {step_id: index for index, step_id in enumerate(self.steps)}
        self._surfaces: dict[str, Surface] = {}
        self._by_node: defaultdict[str, list[str]] = defaultdict(list)
        self._has_tools = any(surface.type == "tool" for surface in request.snapshot.surfaces)
        changed = request.profile.overrides
        for surface_id, surface in zip(request.snapshot.surface_ids, request.snapshot.surfaces, strict=True):
            if surface_id in changed:
                surface = replace(surface, value=changed[surface_id])
            self._surfaces[surface_id] = surface
            self._by_node[surface.node_id].append(surface_id)
        self.split_losses = split_losses(request.case_loss.losses)
        self.blamable = {step.id: self._find_blamable(step) for step in request.trace.steps}
        self.losses = self._place_losses()
        self.waiting_for, self.predecessors = self._plan_walk()
        losses = request.case_loss.losses
        self.reasons = tuple(dict.fromkeys(loss.text for loss in losses if loss.text))
        self.expected = next((loss.expected for loss in losses if loss.expected is not None), None)

    def _find_blamable(self, step: Step) -> tuple[str, ...]:
        """The targets that the step read; those of its node if its reads are unknown."""
        read = self._by_node[step.node_id] if step.surface_reads is None else sorted(step.surface_reads)
        return tuple([surface_id for surface_id in read if surface_id in self.request.targets])

    def _place_losses(self) -> defaultdict[str, list[GradientPacket]]:
        packets: defaultdict[str, list[GradientPacket]] = defaultdict(list)
        for loss in self.split_losses:
            packet = GradientPacket(
                source="",
                target=loss.step_id,
                text=loss.report,
                severity=loss.severity,
                category=loss.category,
                findings=loss.findings,
                reasons=(loss.report,),
            )
            packets[loss.step_id].append(packet)
        return packets

    def _plan_walk(self) -> tuple[dict[str, int], dict[str, tuple[Step, ...]]]:
        """Find the steps between a loss and a target surface; all others are left out."""
        steps = self.request.trace.steps
        useful: set[str] = set()
        for step in steps:
            if self.blamable[step.id] or not useful.isdisjoint(step.predecessors):
                useful.add(step.id)
        waiting_for = {step_id: 0 for step_id in self.losses if step_id in useful}
        predecessors: dict[str, tuple[Step, ...]] = {}
        for step in reversed(steps):
            if step.id in waiting_for:
                before = tuple([self.steps[source] for source in step.predecessors if source in useful])
                predecessors[step.id] = before
                for source in before:
                    waiting_for[source.id] = waiting_for.get(source.id, 0) + 1
        return waiting_for, predecessors

    def release_predecessors(self, step: Step) -> list[Step]:
        """Count a step as done, and return its predecessors that wait for no other step."""
        released = []
        for source in self.predecessors[step.id]:
            self.waiting_for[source.id] -= 1
            if not self.waiting_for[source.id]:
                released.append(source)
        return released

    def is_asked(self, step_id: str) -> bool:
        """Whether the backwarder must decide about the step; otherwise its packets are passed on unchanged."""
        return bool(self.blamable[step_id]) or len(self.predecessors[step_id]) > 1

    def build_request(self, step: Step, incoming: list[GradientPacket]) -> BackwardRequest:
        if len(incoming) > 1:  # they arrived in the order of the answers
            incoming.sort(key=lambda packet: self.position.get(packet.source, -1))
        case, surfaces = self.request.case_loss, self.surfaces_of(step)
        return BackwardRequest(
            case_id=case.case_id,
            repeat=case.repeat,
            turn=case.turn,
            step=step,
            incoming=tuple(incoming),
            surfaces=surfaces,
            blamable=self.blamable[step.id],
            predecessors=self.predecessors[step.id],
            input=case.input,
            earlier=case.earlier,
            expected=self.expected,
            reasons=self.reasons,
            losses=self.split_losses,
            readers={packet.source: self.steps[packet.source].node_id for packet in incoming if packet.source},
            calls_seen=self._find_calls_seen(step, surfaces),
            missed_routes=self._find_missed_routes(step),
            absent_owners=self.absent_owners,
        )

    def _find_calls_seen(self, step: Step, surfaces: Iterable[Surface]) -> dict[str, ToolCall]:
        """A call of each tool that the step did not call, from this run or from others."""
        if not self._has_tools:
            return {}
        called = {call.name for call in step.tool_calls}
        tools = (each for each in surfaces if each.type == "tool" and each.part not in called)
        return {each.id: call for each in tools if (call := self._calls.find(each))}

    @cached_property
    def _calls(self) -> FirstCalls:
        return FirstCalls((self.request.trace, *(peer.trace for peer in self.request.peers)))

    def _find_missed_routes(self, step: Step) -> tuple[MissedRoute, ...]:
        """The branches that were missed after the step, or after a predecessor that led to the step instead."""
        if not self.missed_routes:
            return ()
        places = sorted({self.position[step.id], *(self.position[source] for source in step.predecessors)})
        routes = (route for place in places for route in self._routes_at.get(place, ()))
        return tuple(route for route in routes if _is_at(step, route))

    @cached_property
    def _routes_at(self) -> dict[int, list[MissedRoute]]:
        """The missed branches by the position of their steps. They are in the order of the trace."""
        return group_by(self.missed_routes, lambda route: self.position[route.step.id])

    @cached_property
    def missed_routes(self) -> tuple[MissedRoute, ...]:
        """The branches that the run did not take."""
        return self._route_map.list_missed(self.request.trace)

    @cached_property
    def absent_owners(self) -> Mapping[str, tuple[str, ...]]:
        """The expected tools that only nodes have which did not run, with these nodes."""
        findings = (finding for loss in self.request.case_loss.losses for finding in loss.findings)
        tools = dict.fromkeys(tool for finding in findings if (tool := find_missing_tool(finding)))
        return self._route_map.find_absent_owners(tools, self.request.trace)

    @cached_property
    def _route_map(self) -> RouteMap:
        return RouteMap(self.request.snapshot)

    def surfaces_of(self, step: Step) -> tuple[Surface, ...]:
        """The surfaces of the step's node and the others that it read, with their current values."""
        own, known = self._by_node[step.node_id], self._surfaces
        others = [each for each in sorted(step.surface_reads or ()) if each not in own and each in known]
        return tuple([known[surface_id] for surface_id in (*own, *others)])


def _is_at(step: Step, route: MissedRoute) -> bool:
    """Whether a branch was missed after the step, or after a predecessor that led to the step instead."""
    is_led_here = route.step.id in step.predecessors and any(is_inside(step.node_id, each) for each in route.taken)
    return route.step is step or is_led_here


async def _ask(backwarder: Backwarder, step_request: BackwardRequest) -> BackwardResult:
    """Ask the backwarder about one step. A failure affects only that step."""
    try:
        answer = await call_stage(backwarder.backward, step_request, returns=BackwardResult)
        return _drop_unknown_ids(answer, step_request)
    except FATAL_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - a stage may be the user's own; the round reports its errors
        return BackwardResult(step_id=step_request.step.id, error=str(Failure(type(error).__name__, str(error))))


def _drop_unknown_ids(result: BackwardResult, step_request: BackwardRequest) -> BackwardResult:
    """Drop unknown surfaces and steps from a result; fill in a missing id where only one is possible."""
    step_id, sources = step_request.step.id, {step.id for step in step_request.predecessors}
    if _has_known_ids(result, step_request, sources):
        return result
    gradients: list[SurfaceGradient] = []
    packets: list[GradientPacket] = []
    for gradient in result.gradients:
        if not gradient.surface_id and len(step_request.blamable) == 1:
            gradient = replace(gradient, surface_id=step_request.blamable[0])
        if gradient.surface_id in step_request.blamable:
            gradients.append(gradient)
    for packet in result.packets:
        if not packet.target and len(sources) == 1:
            packet = replace(packet, target=step_request.predecessors[0].id)
        if packet.target in sources:
            packets.append(packet if packet.source == step_id else replace(packet, source=step_id))
    unknown = len(result.gradients) + len(result.packets) - len(gradients) - len(packets)
    return BackwardResult(
        step_id=step_id,
        gradients=tuple(gradients),
        packets=tuple(packets),
        dropped=result.dropped + unknown,
        error=result.error,
        note=result.note,
    )


def _has_known_ids(result: BackwardResult, step_request: BackwardRequest, sources: set[str]) -> bool:
    """Whether a result names its step, blamable surfaces and predecessors, as those of most stages do."""
    step_id, blamable = step_request.step.id, step_request.blamable
    return (
        result.step_id == step_id
        and all(gradient.surface_id in blamable for gradient in result.gradients)
        and all(packet.source == step_id and packet.target in sources for packet in result.packets)
    )


def _pass_on(step_request: BackwardRequest) -> BackwardResult:
    step_id, [only] = step_request.step.id, step_request.predecessors
    packets = tuple(replace(packet, source=step_id, target=only.id) for packet in step_request.incoming)
    return BackwardResult(step_id=step_id, packets=packets)
