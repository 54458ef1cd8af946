"""Event: a frozen fact about a run, and the envelope that journal, stream and observers carry.

A run is its events: RunResult is `fold(events)`. The envelope is the same for all; what an event says is its payload,
one frozen record per event type. Searches add types of their own:

    @event_type("evolution.pool")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pool(Payload):
        members: tuple[str, ...]

An event that cannot be read here, because its type is unknown or its version newer, keeps its data (UnknownPayload).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptiter.errors import SetupError
from promptiter.runlog.codec import describe_first_problem, from_plain
from traces.model import Json

SCHEMA_VERSION = 2

Phase: TypeAlias = str
"""What a part of a run is for: start, baseline, train, rerun, train_again, validation, ablation, final_test, test, end,
or a word of a search's own."""

ENTRY_POINTS = "promptiter.events"
"""Installed packages offer payload classes of their searches under this group."""


class Payload:
    """What an event says: a frozen dataclass, registered under its event type. Only plain data.

    What differs between equal runs, such as times and costs, is in a field called `measured`.
    """

    __slots__ = ()
    event_type: ClassVar[str] = ""
    version: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownPayload(Payload):
    """The data of an event that cannot be read here, and why."""

    data: dict[str, Json] = field(default_factory=dict)
    problem: str = ""


ENGINE_EVENTS = frozenset(
    (
        "run_started",
        "references",
        "evaluation_started",
        "case",
        "evaluation_finished",
        "budget_reserved",
        "cases_used",
        "round_started",
        "candidate",
        "audit",
        "decision",
        "validation_read",
        "round_completed",
        "stop",
        "budget_ended",
        "ablation",
        "final_test_begun",
        "test_set_opened",
        "final_test",
        "conclusion",
        "run_completed",
    )
)
"""The event types of the engine itself."""

BUILT_IN = {
    **dict.fromkeys(ENGINE_EVENTS, "promptiter.runlog.payloads"),
    **dict.fromkeys(
        ("losses", "backward", "gradient_check", "aggregation", "patches", "patch_variants"),
        "promptiter.backprop.record",
    ),
    **dict.fromkeys(("reflection", "iteration", "search_stop"), "promptiter.backprop.iteration_record"),
    **dict.fromkeys(
        ("phase_started", "points", "diagnosis", "edits", "trial", "phase_ended"), "promptiter.backprop.trial_record"
    ),
    **dict.fromkeys(("mutations", "front"), "promptiter.search.edit_record"),
    "swaps": "promptiter.search.cheaper",
    "reads_counted": "promptiter.search.shorter",
}
"""promptiter's own event types, with the module to import when one is first read: some are in higher packages."""

P = TypeVar("P", bound=Payload)

_types: dict[str, type[Payload]] = {}
_unknown: set[str] = set()


def event_type(name: str, *, version: int = 1) -> Callable[[type[P]], type[P]]:
    """Register a payload class under the type of its events.

    Events are stored without the fields that have their default value, so raise the version when the class or one of
    its defaults changes.
    """

    def register(payload: type[P]) -> type[P]:
        if not is_dataclass(payload):
            raise SetupError(
                f"{payload.__qualname__} is not a dataclass; write @event_type({name!r}) "
                "above @dataclass(frozen=True, slots=True, kw_only=True)"
            )
        known, module = _types.get(name), BUILT_IN.get(name)
        if module is not None and module != payload.__module__:
            raise SetupError(f"the event type {name!r} is one of promptiter's own; choose another, such as 'my.{name}'")
        if known is not None and (known.__module__, known.__qualname__) != (payload.__module__, payload.__qualname__):
            raise SetupError(f"the event type {name!r} is taken by {known.__qualname__}; choose another name")
        payload.event_type, payload.version = name, version
        _types[name] = payload
        _unknown.discard(name)
        return payload

    return register


def check_payload_class(kind: object) -> None:
    """Raise if events of this class could not be read back, because it is not registered."""
    if not isinstance(kind, type) or not issubclass(kind, Payload):
        name = getattr(kind, "__qualname__", repr(kind))
        raise SetupError(
            f"an event has a payload, and {name} is not one; record a dataclass registered with @event_type"
        )
    if kind is not _find_type(kind.event_type):
        raise SetupError(f"{kind.__qualname__} is not registered; write @event_type(...) above its @dataclass")


class EventMeasured(BaseModel):
    """What differs between the events of equal runs: the working time of the run when the event was written."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    elapsed_s: float = 0.0


class Event(BaseModel):
    """One fact. `seq` counts from 0 without gaps; `round` is 0 before the first round.

    `data` is the payload as plain JSON. `request` is the digest of what the recorded work depended on, if anything: in
    a resumed run it must be the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA_VERSION
    seq: int
    run_id: str
    round: int = 0
    phase: Phase = "start"
    type: str
    version: int = 1
    request: str | None = None
    data: dict[str, Json] = Field(default_factory=dict)
    measured: EventMeasured = EventMeasured()

    @cached_property
    def payload(self) -> Payload:
        """What the event says, as the record of its type."""
        known = _find_type(self.type)
        if known is None:
            return UnknownPayload(data=self.data, problem=f"the event type {self.type!r} is not known here")
        if known.version < self.version:
            package = "promptiter" if self.type in BUILT_IN else "the package of its search"
            problem = f"it is {self.type!r} in version {self.version}, and {known.version} is known here"
            return UnknownPayload(data=self.data, problem=f"{problem}; update {package}")
        try:
            payload: Payload = from_plain(known, self.data)
        except ValidationError as error:
            problem = f"it is {self.type!r} in version {self.version}, and does not fit {known.__qualname__}"
            return UnknownPayload(data=self.data, problem=f"{problem}: {describe_first_problem(error)}")
        return payload

    def __copy__(self) -> Event:
        copied = super().__copy__()
        copied.__dict__.pop("payload", None)  # a copy may get other data
        return copied


class Observer(Protocol):
    """Watches a run. Called with each event in order, once it is in the journal. A failure is reported once."""

    async def observe(self, event: Event) -> None:
        """Handle one event. The run waits for this, so long work belongs in a separate task."""


def _find_type(name: str) -> type[Payload] | None:
    if name not in _types and name not in _unknown:
        if name in BUILT_IN:
            import_module(BUILT_IN[name])
        for point in entry_points(group=ENTRY_POINTS, name=name):
            point.load()
        if name not in _types:
            _unknown.add(name)
    return _types.get(name)
