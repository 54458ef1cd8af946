"""RefinementSettings: what a command or a request says about a refinement."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.tiers import TierPlan

REFINEMENT = "the refinement"
"""What cannot start, to a RequestError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinementSettings:
    """What a command or a request says about a refinement. None: what promptiter.yaml says."""

    iterations: int | None = None
    models: ModelPair = field(default_factory=ModelPair)
    tiers: TierPlan | None = None
    agent: str | None = None
    command: tuple[str, ...] = ()
    config: Path | None = None
    rubric: Path | None = None
    task: str = ""
    judge: str | None = None
    work: Path | None = None
    max_usd: float | None = None
