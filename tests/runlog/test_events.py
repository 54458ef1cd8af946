from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from promptiter.errors import SetupError
from promptiter.llm.ledger import Ledger
from promptiter.llm.redaction import Redactor
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.meter import Meter


@event_type("tests.anything")
@dataclass(frozen=True, slots=True, kw_only=True)
class Anything(Payload):
    value: object = None
    names: tuple[str, ...] = ()
    raw: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unregistered(Payload):
    value: int = 1


class Derived(Anything):
    pass


def test_a_class_that_is_not_a_dataclass_yet_is_not_registered() -> None:
    """`@dataclass(slots=True)` makes a new class, so one above `@event_type` would not be the registered one."""
    with pytest.raises(SetupError, match=r"Swapped is not a dataclass; write @event_type\('tests.swapped'\) above"):

        @dataclass(frozen=True, slots=True, kw_only=True)
        @event_type("tests.swapped")
        class Swapped(Payload):
            value: int = 1


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (Unregistered(), "Unregistered is not registered; write @event_type"),
        (Derived(), "Derived is not registered; write @event_type"),
        ({"value": 1}, "an event has a payload, and dict is not one"),
        (Anything(value=object()), "Anything cannot be recorded as JSON: .*; give its fields plain values"),
        (Anything(raw=b"\xff"), "Anything cannot be recorded as JSON: .*utf-8"),
        (Anything(names=None), "Anything cannot be read back: .*names"),  # type: ignore[arg-type]
    ],
)
async def test_a_payload_that_cannot_be_read_back_is_not_recorded(payload: Payload, message: str) -> None:
    journal = MemoryJournal()
    log = EventLog("r", journal, meter=Meter(time.monotonic, Ledger()), redactor=Redactor(()))
    with pytest.raises(SetupError, match=f"(?s){message}"):
        await log.append(payload)
    assert not journal.events
