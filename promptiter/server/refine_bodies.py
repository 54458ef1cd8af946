"""Bodies of requests for refinements, and of their answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from promptiter.config.fields import Section
from promptiter.config.refinement_settings import REFINEMENT, RefinementSettings
from promptiter.errors import RequestError, nearest
from promptiter.server.bodies import MAX_PROBLEMS
from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.sessions import RefinementSession
from promptiter.tasks.refine.tiers import TierPlan
from promptiter.user_files import Location, describe_problems
from traces.model import Json

ModelName = Annotated[str, Field(max_length=200)]


class TierBody(Section):
    """The models of a tier. What is empty is the model of the seed."""

    manager: ModelName | None = None
    """The model of the manager."""
    worker: ModelName | None = None
    """The model of the workers."""

    def build(self) -> ModelPair:
        return ModelPair(manager=self.manager or "", worker=self.worker or "")


class RefineBody(Section):
    """A refinement of a case of a run. Models must be those of the app's promptiter.yaml, or listed in it."""

    case: Annotated[str, Field(max_length=1000)] | None = None
    """The case; by default the one with the lowest score."""
    iterations: Annotated[int, Field(strict=True)] | None = None
    """Maximum number of iterations: fewer than 1 are 1, and more than 10 are 10."""
    tier_low: TierBody | None = None
    """Models of the first iterations."""
    tier_mid: TierBody | None = None
    """Models of the iterations in the middle."""
    tier_high: TierBody | None = None
    """Models of the last iterations."""
    model: ModelName | None = None
    """The model of the manager in all iterations. Ignored if a tier is given."""
    worker_model: ModelName | None = None
    """The model of the workers in all iterations. Ignored if a tier is given."""

    @property
    def models(self) -> ModelPair:
        return ModelPair(manager=self.model or "", worker=self.worker_model or "")

    @property
    def tiers(self) -> TierPlan | None:
        """The tiers, if any is given, with models or without."""
        given = {"low": self.tier_low, "mid": self.tier_mid, "high": self.tier_high}
        if not any(given.values()):
            return None
        return TierPlan(**{name: each.build() for name, each in given.items() if each is not None})


class StartedRefinement(BaseModel):
    """A refinement that has started. Its state is in the list of refinements of the run."""

    session_id: str
    run_id: str
    case: str


class StartedRefinementBody(BaseModel):
    """The answer to a request for a refinement."""

    refinement: StartedRefinement
    warnings: list[str] = Field(default_factory=list)


class RefinementState(RefinementSession):
    """One session. `chain` has the ids of runs from the seed to the last iteration, each the parent of the next."""

    case: str
    status: Literal["running", "ended", "interrupted"]
    chain: list[str]


class RefinementListBody(BaseModel):
    """The refinements of a run, oldest first."""

    refinements: list[RefinementState]


def read_refine_body(body: Json, *, models: Collection[str]) -> tuple[RefineBody, RefinementSettings]:
    """What a request asks for, also as settings. RequestError lists what is wrong."""
    if not isinstance(body, Mapping):
        raise RequestError(["the body must be an object"], subject=REFINEMENT)
    try:
        given = RefineBody.model_validate(dict(body))
    except ValidationError as error:
        found = describe_problems(error, RefineBody, Location("body"), limit=MAX_PROBLEMS)
        raise RequestError(found, subject=REFINEMENT) from error
    tiers, pair = given.tiers, given.models
    named = (*(() if tiers is None else tiers.models), *filter(None, (pair.manager, pair.worker)))
    problems = [
        f"body: the model {name!r} is not one of this app{nearest(name, sorted(models))}"
        for name in dict.fromkeys(named)
        if name not in models
    ]
    if problems:
        raise RequestError(problems, subject=REFINEMENT)
    return given, RefinementSettings(iterations=given.iterations, tiers=tiers, models=pair)
