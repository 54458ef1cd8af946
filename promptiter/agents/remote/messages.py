"""The messages between promptiter and a remote agent: what JSON documents of the protocol contain.

`GET /structure` is answered with a StructureAnswer. `POST /runs` takes a RunDocument and is answered with a RunAnswer.
The JSON Schemas of the protocol are generated from these classes; see `schemas`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptiter.errors import ServiceError
from promptiter.llm.messages import MessageRole
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from promptiter.wording import shorten
from traces import Edge, Failure, Snapshot, ToolCall, Usage
from traces.checked_documents import format_field_path
from traces.model import EMPTY, StepKind, TraceStatus

MAX_TOKENS = 10**12
"""The most tokens that an agent may report for a run or a step."""
MAX_USD = 10**6
"""The most dollars that an agent may report for a run or a step."""
MAX_NAME = 1000
"""The most characters of the type of an error, and of its place."""


class WireObject(BaseModel):
    """An object of the protocol. Its fields are documented by their docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class StructureDocument(WireObject):
    """The nodes of an agent, the edges between them, and the surfaces that may change."""

    nodes: Annotated[tuple[Node, ...], Field(min_length=1)]
    """The parts of the agent."""
    surfaces: tuple[Surface, ...] = ()
    """What may change, with the baseline values: prompts, tool descriptions, models, parameters."""
    edges: tuple[StructureEdge, ...] = ()
    """Which node may follow which. It may have cycles."""
    entry: str = ""
    """The node that runs first."""
    name: str = ""
    """The name of the agent."""
    schema_version: Literal[1] = 1
    """The version of this format."""
    structure_id: str = ""
    """Not used: promptiter computes it from nodes, edges, and the ids and types of the surfaces."""
    baseline_id: str = ""
    """Not used: promptiter computes it from the structure and the values."""

    def build_snapshot(self) -> StructureSnapshot:
        """The structure. InvalidStructureError if it contradicts itself."""
        surfaces = (
            replace(each, limits=each.limits.complete(each.value)) if each.type == "parameter" else each
            for each in self.surfaces
        )
        return StructureSnapshot(
            nodes=self.nodes,
            edges=self.edges,
            surfaces=tuple(surfaces),
            entry=self.entry,
            name=self.name or self.entry or self.nodes[0].id,
        )


class StructureAnswer(WireObject):
    """The answer to `GET /structure`."""

    protocol: Literal[1]
    """The version of the protocol."""
    structure: StructureDocument
    """The structure of the agent, the same at every request."""


class PastMessage(WireObject):
    """A message of the conversation before the input."""

    model_config = ConfigDict(extra="ignore")

    role: MessageRole
    content: str


class RunInput(WireObject):
    """What the agent is asked."""

    model_config = ConfigDict(extra="ignore")

    text: str
    """The message of the user."""
    history: tuple[PastMessage, ...] = ()
    """The conversation so far, without this message."""
    state: dict[str, Any] = Field(default_factory=dict)
    """The state of the session, as the case gives it."""


class ModelAccess(WireObject):
    """Where the agent calls models, so that its calls are cached, counted and limited."""

    model_config = ConfigDict(extra="ignore")

    base_url: str
    """The base URL for clients of OpenAI; without `/v1` at its end, it is that of Anthropic's."""
    api_key: str
    """The key for these calls. It is valid for this run only."""


class RunDocument(WireObject):
    """The body of `POST /runs`: one run of a case under one profile. Agents ignore fields that they do not know."""

    model_config = ConfigDict(extra="ignore")

    protocol: Literal[1] = 1
    """The version of the protocol."""
    structure_id: str
    """The hash of the structure that the values belong to."""
    values: dict[str, Any]
    """The value of every surface in this run, by surface id."""
    input: RunInput
    """What the agent is asked."""
    case_id: str = ""
    """The case that this run belongs to."""
    repeat: int = 0
    """Which repetition of the case this is."""
    turn: int = 0
    """Which turn of the conversation this is, from 0."""
    seed: int = 0
    """The seed of the run of promptiter, for agents that draw random numbers."""
    deadline_s: float | None = None
    """The caller stops waiting for the answer after this many seconds."""
    models: ModelAccess | None = None
    """Where to call models. Without it, the agent calls them as it does in production."""


class ReportedUsage(WireObject):
    """Tokens and cost. What is left out is unknown."""

    input_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    output_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    cached_input_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None
    cost_usd: Annotated[float, Field(ge=0, le=MAX_USD)] | None = None

    def build(self) -> Usage:
        return Usage(**self.model_dump())


class ReportedFailure(WireObject):
    """Why there is no answer. It `is_outage` if a service that the agent needs was down."""

    type: Annotated[str, Field(max_length=MAX_NAME)]
    message: str = ""
    where: Annotated[str, Field(max_length=MAX_NAME)] = ""
    is_outage: bool = False

    def build(self) -> Failure:
        return Failure(**self.model_dump())


class TraceStep(WireObject):
    """One step of a trace: one execution of one node."""

    step_id: str
    """The name of the step, unique in the trace and independent of timing: `planner`, and `planner~2` in a loop."""
    node_id: str
    """The node of the structure that was executed."""
    kind: StepKind = "function"
    """What the node is."""
    predecessor_step_ids: tuple[str, ...] = ()
    """The steps whose results this one used, or that triggered it."""
    edges: tuple[Edge, ...] = ()
    """How the step depends on its predecessors, if it did not read the output of all of them."""
    surface_reads: tuple[str, ...] | dict[str, str] | None = None
    """The ids of the surfaces that the step read; also as a mapping from the id to the digest of the value, as
    promptiter's own files have it. Without it, the step may have read every surface.
    """
    input: Snapshot = EMPTY
    """What went into the step."""
    output: Snapshot = EMPTY
    """What came out of the step."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tools that the step called."""
    error: ReportedFailure | None = None
    """Why the step failed."""
    usage: ReportedUsage | None = None
    """The tokens and the cost of the step."""
    start_ns: int | None = None
    """When it began: nanoseconds since 1970."""
    end_ns: int | None = None
    """When it ended: nanoseconds since 1970."""
    attributes: dict[str, Any] = Field(default_factory=dict)
    """Anything else."""


class TraceDocument(WireObject):
    """What happened in a run, as promptiter's own JSON."""

    schema_version: Literal[2] = 2
    """The version of the format of traces."""
    trace_id: str = ""
    """Not used: promptiter names the trace after case, repeat and profile."""
    steps: Annotated[tuple[TraceStep, ...], Field(min_length=1)]
    """The steps, in any order."""
    status: TraceStatus = "completed"
    """How the run ended."""
    conversation_id: str | None = None
    """Not used, as above."""
    attributes: dict[str, Any] = Field(default_factory=dict)
    """Anything else."""


class RemoteRun(WireObject):
    """The result of a run: an output or an error."""

    output: str | None = None
    """The answer as text. Without it, the answer is the JSON of `data`."""
    data: Any = None
    """The answer as data, if it is more than text."""
    error: ReportedFailure | None = None
    """Why there is no answer. It `is_outage` if a service that the agent needs was down: the case is run again."""
    usage: ReportedUsage | None = None
    """What the run used, for agents that call models in their own way. Calls to the given `base_url` are counted
    there.
    """
    trace: TraceDocument | None = None
    """What happened, as promptiter's own JSON."""
    otlp: dict[str, Any] | None = None
    """What happened, as OpenTelemetry spans: a document of OTLP/JSON, `{"resourceSpans": [...]}`, of one trace."""


class RunAnswer(WireObject):
    """The answer to `POST /runs`."""

    run: RemoteRun


Message = TypeVar("Message", bound=BaseModel)


def read_message(kind: type[Message], raw: str | bytes, *, sender: str) -> Message:
    """Parse a message. ServiceError says what is wrong with it, and who sent it."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if first["type"] == "json_invalid":
            raise ServiceError(f"{sender} answered with what is not JSON: {shorten(raw)}") from None
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        got = "" if first["type"] == "missing" else f", got {shorten(first['input'])}"
        where = format_field_path(first["loc"]) or "the document"
        raise ServiceError(
            f"{sender} answered with what is not a {kind.__name__} of the protocol: {where}: {first['msg']}{got}{more}"
        ) from None


def build_structure_document(snapshot: StructureSnapshot) -> dict[str, Any]:
    """The answer of an agent with this structure to `GET /structure`."""
    return {"protocol": 1, "structure": snapshot.to_json()}
