"""RunRecord: what is known about a finished run, seed or iteration. Gradient, loss and budget are made of it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """Something that is wrong with the deliverable, as a critique or a metric found it."""

    description: str
    severity: str = ""
    category: str = ""
    location: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRejection:
    """A gate that did not let the deliverable pass."""

    gate: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """The value of a metric, and what it should reach, if anything."""

    name: str
    value: float
    threshold: float | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedUse:
    """What a run took. None: unknown. `max_depth` is a cap, because depth is structure, not a cost."""

    loops: int | None = None
    workers: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    wall_time_s: float | None = None
    max_depth: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPair:
    """The models of the manager and of the workers. Empty: not given."""

    manager: str = ""
    worker: str = ""

    def or_else(self, fallback: ModelPair) -> ModelPair:
        """These models, and those of the fallback where one is empty."""
        return ModelPair(manager=self.manager or fallback.manager, worker=self.worker or fallback.worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A finished run. `rejections` are the last ones of its gates."""

    run_id: str
    task: str
    status: str = "completed"
    parent_run_id: str = ""
    defects: tuple[Defect, ...] = ()
    rejections: tuple[GateRejection, ...] = ()
    metrics: tuple[MetricValue, ...] = ()
    use: ObservedUse = field(default_factory=ObservedUse)
    models: ModelPair = field(default_factory=ModelPair)
