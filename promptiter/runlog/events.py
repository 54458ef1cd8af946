"""Event: a frozen fact about a run, and the envelope that journal, stream and observers carry.

A run is its events: RunResult is `fold(events)`. The envelope is the same for all; what an event says is its payload,
one frozen record per event type. Searches add types of their own:

    @event_type("evolution.pool")
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Pool(Payload):
        members: tuple[str, ...]

An event of a type that is unknown here, or of a newer version, keeps its data as they are (UnknownPayload).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from promptiter.errors import SetupError
from promptiter.runlog.codec import from_plain
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
    """The data of an event whose type or version is not known here."""

    data: dict[str, Json] = field(default_factory=dict)


P = TypeVar("P", bound=Payload)

_types: dict[str, type[Payload]] = {}
_unknown: set[str] = set()


def event_type(name: str, *, version: int = 1) -> Callable[[type[P]], type[P]]:
    """Register a payload class under the type of its events. A changed class gets a higher version."""

    def register(payload: type[P]) -> type[P]:
        if not is_dataclass(payload):
            raise SetupError(
                f"{payload.__qualname__} is not a dataclass; write @event_type({name!r}) "
                "above @dataclass(frozen=True, slots=True, kw_only=True)"
            )
        known = _types.get(name)
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
        if known is None or known.version < self.version:
            return UnknownPayload(data=self.data)
        payload: Payload = from_plain(known, self.data)
        return payload

    def __copy__(self) -> Event:
        copied = super().__copy__()
        copied.__dict__.pop("payload", None)  # a copy may get other data
        return copied


class Observer(Protocol):
    """Watches a run. Called with each event in order, once it is in the journal. A failure is reported once."""

    async def observe(self, event: Event) -> None:
        """Handle one event. The run waits for this, so long work belongs in a separate task."""


_OWN_PAYLOADS = (
    "promptiter.runlog.payloads",
    "promptiter.backprop.record",
    "promptiter.search.cheaper",
    "promptiter.search.shorter",
)
"""Modules with payload classes, imported when one of their types is first read. Searches are a higher package."""


def _find_type(name: str) -> type[Payload] | None:
    if name not in _types and name not in _unknown:
        for module in _OWN_PAYLOADS:
            import_module(module)
        for point in entry_points(group=ENTRY_POINTS, name=name):
            point.load()
        if name not in _types:
            _unknown.add(name)
    return _types.get(name)
