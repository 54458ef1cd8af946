"""Scripted stages for the desk: they blame every instruction that does not ask for care, and add that sentence."""

from __future__ import annotations

from collections.abc import Callable

from promptiter.engine.engine import Engine
from promptiter.evaluation.trace_store import TraceStore
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    BackwardRequest,
    BackwardResult,
    GradientPacket,
    SurfaceGradient,
)
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds import desk


class Blames:
    """A Backwarder that blames a step whose instruction does not ask for care."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        self.asked.append(f"{request.case_id}/{request.step.id}")
        packets = tuple(
            GradientPacket(source=request.step.id, target=step.id, text="be careful") for step in request.predecessors
        )
        [instruction] = [surface for surface in request.surfaces if surface.type == "instruction"]
        if "careful" in str(instruction.value):
            return BackwardResult(step_id=request.step.id, packets=packets)
        gradient = SurfaceGradient(
            surface_id=instruction.id, case_id=request.case_id, step_id=request.step.id, text="be careful"
        )
        return BackwardResult(step_id=request.step.id, gradients=(gradient,), packets=packets)


class BlamesTheEarliest(Blames):
    """Sees a fault of `polish` only after `draft` is fixed."""

    async def backward(self, request: BackwardRequest) -> BackwardResult:
        result = await super().backward(request)
        if request.step.node_id == "polish" and "careful" not in str(request.predecessors[0].output.text):
            return BackwardResult(step_id=result.step_id, packets=result.packets)
        return result


class Merges:
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        self.asked.append(request.surface.id)
        cases = tuple(sorted({gradient.case_id for gradient in request.gradients}))
        return AggregateResult(
            surface_id=request.surface.id, text="be careful", case_ids=cases, support=float(len(cases))
        )


Writer = Callable[[OptimizeRequest], str | None]


class Writes:
    def __init__(self, write: Writer = lambda request: f"{request.surface.value} Be careful.") -> None:
        self.write = write
        self.requests: list[OptimizeRequest] = []

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.requests.append(request)
        value = self.write(request)
        if value is None:
            return PatchResult(patch=None, reason="nothing left")
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value=value, reason="care"))


def engine(
    backwarder: Blames | None = None, optimizer: Writes | None = None, *, trace_store: TraceStore | None = None
) -> Engine:
    evaluator = desk.evaluator(trace_store=trace_store)
    return Engine(desk.agent(), evaluator, backwarder or Blames(), Merges(), optimizer or Writes())
