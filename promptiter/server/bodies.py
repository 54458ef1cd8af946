"""Bodies of requests and answers, in snake_case: `{"run": ...}`, `{"result": ...}`, `{"structure": ...}`.

A run is asked for with the keys of `RunOverlay`, or with those of trpc-agent's PromptIter: `train_eval_set_ids`,
`target_surface_ids`, `acceptance_policy` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptiter.agents.remote.messages import TraceStep
from promptiter.config.fields import Amount, Count, Finite, Flag, Section
from promptiter.config.overlay import RunOverlay
from promptiter.errors import RequestError
from promptiter.policies.verdict import Verdict
from promptiter.runlog.results import RunResult
from promptiter.runs.run_list import ListedStatus
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from promptiter.user_files import Location, describe_problems
from traces.model import Json, TraceStatus

MAX_PROBLEMS = 50
"""The most problems of a run that are listed."""
CURSOR = "after:"
"""How the cursors of lists begin. The id of a run follows."""


class AcceptancePolicyBody(Section):
    """When a candidate is accepted."""

    min_score_gain: Amount = 0.0
    """The least gain in the validation score."""


class StopPolicyBody(Section):
    """When the search ends."""

    max_rounds_without_acceptance: Count | None = None
    """Rounds in a row without an accepted candidate."""
    target_score: Finite | None = None
    """The validation score to reach."""


class EvaluationOptionsBody(Section):
    """How cases are run. Runs and scores of cases are always made in parallel."""

    eval_case_parallelism: Count | None = None
    """Cases run at the same time."""
    eval_case_parallel_inference_enabled: Flag = True
    """Ignored."""
    eval_case_parallel_evaluation_enabled: Flag = True
    """Ignored."""


class RunBody(RunOverlay):
    """A run to start: what it changes about the app's promptiter.yaml."""

    train_eval_set_ids: tuple[str, ...] | None = None
    """The same as `train`."""
    validation_eval_set_ids: tuple[str, ...] | None = None
    """The same as `validation`."""
    target_surface_ids: tuple[str, ...] | None = None
    """The same as `targets`."""
    acceptance_policy: AcceptancePolicyBody | None = None
    """`min_score_gain` is `acceptance.min_gain`."""
    stop_policy: StopPolicyBody | None = None
    """`max_rounds_without_acceptance` is `stop.patience`."""
    evaluation_options: EvaluationOptionsBody | None = None
    """`eval_case_parallelism` is `evaluation.concurrency`."""


class RunEnvelope(BaseModel):
    """The body of a request for a run."""

    model_config = ConfigDict(extra="forbid")

    run: RunBody = RunBody()


class ErrorBody(BaseModel):
    """The answer to a request that failed. An invalid run has a list of everything that is wrong with it."""

    error: str
    problems: list[str] = Field(default_factory=list)


class ListedRunBody(BaseModel):
    """One run in a list."""

    run_id: str
    status: ListedStatus
    created_at: str
    verdict: Verdict | None = None
    stop_reason: str | None = None
    rounds: int = 0
    baseline: float | None = None
    best: float | None = None
    calls: int = 0
    cost_usd: float | None = None
    duration_s: float | None = None
    error: str | None = None
    can_resume: bool = False


class RunListBody(BaseModel):
    """A page of runs, newest first. The next page is at `cursor=<next_cursor>`."""

    runs: list[ListedRunBody]
    next_cursor: str | None = None


class HealthBody(BaseModel):
    """Whether a server works, and for which apps. One that is degraded says why."""

    status: Literal["ok", "degraded"]
    apps: list[str]
    version: str
    error: str | None = None


class ResultBody(BaseModel):
    """The state of a run, finished or in progress, as in result.json."""

    result: RunResult


class StructureFields(BaseModel):
    """The nodes of an agent, the edges between them, and the surfaces that may change. Defaults are left out."""

    schema_version: Literal[1]
    structure_id: str
    """Hashes nodes, edges, and the ids and types of the surfaces."""
    baseline_id: str
    """Hashes the values, too."""
    nodes: tuple[Node, ...]
    surfaces: tuple[Surface, ...] = ()
    edges: tuple[StructureEdge, ...] = ()
    entry: str = ""
    name: str = ""


class StructureBody(BaseModel):
    """What may change about an agent."""

    structure: StructureFields


class TraceBody(BaseModel):
    """What happened in one run of a case. Defaults are left out."""

    schema_version: Literal[2]
    trace_id: str
    steps: tuple[TraceStep, ...]
    status: TraceStatus = "completed"
    conversation_id: str | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)


def describe_structure(snapshot: StructureSnapshot) -> dict[str, Json]:
    """A structure as it is stored, and the id of each surface, which is what a run names as its target."""
    plain = snapshot.to_json()
    surfaces = [{"id": each.id, **shown} for each, shown in zip(snapshot.surfaces, plain["surfaces"], strict=True)]
    return {**plain, "surfaces": surfaces}


def read_run_body(body: Json) -> dict[str, Json]:
    """What a request changes about the run of an app, with the keys of RunOverlay. Raises RequestError."""
    if not isinstance(body, Mapping):
        raise RequestError(['the body must be an object: {"run": {...}}'])
    try:
        run = RunEnvelope.model_validate(dict(body)).run
    except ValidationError as error:
        raise RequestError(describe_problems(error, RunEnvelope, Location("body"), limit=MAX_PROBLEMS)) from error
    given = run.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    problems: list[str] = []
    for other, (section, keys) in _SAME.items():
        if (value := given.pop(other, None)) is None:
            continue
        renamed = value if keys is None else {keys[key]: each for key, each in value.items() if key in keys}
        if section in given:
            problems.append(f"body: run.{other} is the same as run.{section}; give one of them")
        elif renamed != {}:
            given[section] = renamed
    if problems:
        raise RequestError(problems)
    return given


_SAME: Mapping[str, tuple[str, Mapping[str, str] | None]] = {
    "train_eval_set_ids": ("train", None),
    "validation_eval_set_ids": ("validation", None),
    "target_surface_ids": ("targets", None),
    "acceptance_policy": ("acceptance", {"min_score_gain": "min_gain"}),
    "stop_policy": ("stop", {"max_rounds_without_acceptance": "patience", "target_score": "target_score"}),
    "evaluation_options": ("evaluation", {"eval_case_parallelism": "concurrency"}),
}
