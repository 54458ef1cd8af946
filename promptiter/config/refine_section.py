"""The section `refine` of promptiter.yaml: how `promptiter refine` improves one finished result."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from promptiter.config.fields import Amount, Count, File, Names, Section, Share
from promptiter.tasks.refine.budget import BudgetFloors
from promptiter.tasks.refine.loss import LossWeights
from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.tiers import DEFAULT_ITERATIONS, MAX_ITERATIONS, TierPlan, parse_pair
from traces.model import Json


def _parse_models(value: Json) -> Json:
    if isinstance(value, str):
        pair = parse_pair(value)
        return {"manager": pair.manager, "worker": pair.worker}
    return value


class ModelPairEntry(Section):
    """The models of one tier. What is empty is the model of the seed."""

    manager: str = ""
    """The model of the nodes that manage."""
    worker: str = ""
    """The model of the other nodes."""

    def build(self) -> ModelPair:
        return ModelPair(manager=self.manager, worker=self.worker)


ModelPairItem = Annotated[ModelPairEntry, BeforeValidator(_parse_models, json_schema_input_type=str | ModelPairEntry)]


class TiersSection(Section):
    """Models by tier, from the first iterations to the last: `manager:worker`, or both by name."""

    low: ModelPairItem = ModelPairEntry()
    """The first third of the iterations."""
    mid: ModelPairItem = ModelPairEntry()
    """The second third."""
    high: ModelPairItem = ModelPairEntry()
    """The last third."""

    def build(self) -> TierPlan:
        return TierPlan(low=self.low.build(), mid=self.mid.build(), high=self.high.build())


class LossSection(Section):
    """What each open point adds to the loss, besides 1 minus the mean of the metrics."""

    critical: Amount = 0.10
    """A critical defect."""
    high: Amount = 0.05
    """A defect of high severity."""
    medium: Amount = 0.03
    """A defect of medium or unknown severity."""
    low: Amount = 0.01
    """A defect of low severity."""
    gate_rejection: Amount = 0.05
    """A gate that rejected the deliverable."""

    def build(self) -> LossWeights:
        weights = self.model_dump()
        return LossWeights(rejection=weights.pop("gate_rejection"), defects=weights)


class FloorsSection(Section):
    """The least that an iteration may use. Its budget is half of what the seed used, but never less than this."""

    loops: Count | None = None
    """Steps of the manager. By default 1; for a run of a black box, as many as it made."""
    workers: Count | None = None
    """Steps of the other nodes. By default 1; for a run of promptiter, as many as there are such nodes; for a run of a
    black box, as many as it made.
    """
    tool_calls: Count | None = None
    """Tool calls. By default 1."""
    tokens: Count | None = None
    """Tokens. By default 1; for a run of promptiter 20,000, because a call reserves the longest answer."""
    wall_time_s: Count | None = None
    """Seconds. By default 60."""

    def build(self, defaults: BudgetFloors) -> BudgetFloors:
        given = self.model_dump(exclude_none=True)
        return BudgetFloors(**{name: given.get(name, getattr(defaults, name)) for name in type(self).model_fields})


class RefineSection(Section):
    """How `promptiter refine` improves one finished result."""

    manager: Names = ()
    """The nodes that manage. By default the first model of the agent."""
    workers: Names = ()
    """The nodes that work. By default all others."""
    prefix_node: str | None = None
    """The node whose first step begins with what was wrong. By default the manager; of an agent without models, or a
    command, it comes before the task.
    """
    iterations: Annotated[int, Field(strict=True, ge=1, le=MAX_ITERATIONS)] = DEFAULT_ITERATIONS
    """Maximum number of iterations."""
    tiers: TiersSection = TiersSection()
    """Models by tier."""
    models: Names = ()
    """Other models that requests to `promptiter serve` may name for a refinement."""
    loss: LossSection = LossSection()
    """What each open point adds to the loss."""
    floors: FloorsSection = FloorsSection()
    """The least that an iteration may use."""
    rubric: File | None = None
    """What a good deliverable has, as a list in Markdown. A judge measures by it."""
    threshold: Share = 1.0
    """The share of the rubric that must hold."""
