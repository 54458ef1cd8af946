from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from promptiter.llm.ledger import Ledger
from promptiter.llm.redaction import Redactor
from promptiter.runlog.event_log import EventLog, is_skipped
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.meter import Meter
from promptiter.runlog.payloads import RoundCompleted, ValidationRead
from tests.worlds import desk


def open_log(journal: MemoryJournal) -> EventLog:
    return EventLog("r", journal, meter=Meter(time.monotonic, Ledger()), redactor=Redactor(()))


class SlowJournal(MemoryJournal):
    """Takes its time to read each event."""

    async def read(self, start: int = 0) -> AsyncIterator[Event]:
        for event in self.events[start:]:
            await asyncio.sleep(0.0001)
            yield event


async def test_a_replay_that_is_cancelled_while_it_reads_loses_no_event() -> None:
    journal = SlowJournal()
    await desk.engine(desk.DRAFT).run(desk.request(), journal=journal)
    log = open_log(journal)
    replayed = [event for event in journal.events if not is_skipped(event)]
    for event in replayed:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await log.take(type(event.payload))
        assert await log.take(type(event.payload)) == event.payload
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await log.is_replaying()
    assert not await log.is_replaying()
    await log.append(RoundCompleted())
    assert journal.events[-1].seq == len(journal.events) - 1


class WaitingJournal(MemoryJournal):
    """Waits before or after it stores an event, the first time."""

    def __init__(self, *, stores_first: bool) -> None:
        super().__init__()
        self.stores_first, self.wait_s = stores_first, 60.0

    async def append(self, event: Event) -> None:
        if self.stores_first:
            await super().append(event)
        wait_s, self.wait_s = self.wait_s, 0.0
        await asyncio.sleep(wait_s)
        if not self.stores_first:
            await super().append(event)


@pytest.mark.parametrize("stores_first", [True, False])
async def test_an_append_that_is_cancelled_is_finished(stores_first: bool) -> None:
    journal = WaitingJournal(stores_first=stores_first)
    log = open_log(journal)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await log.append(RoundCompleted())
    assert [event.seq for event in journal.events] == [0]
    await log.append(RoundCompleted())
    assert [event.seq for event in journal.events] == [0, 1]


async def test_an_event_that_waits_for_the_end_of_a_replay_is_written_once_and_skipped_later() -> None:
    journal = MemoryJournal()
    await open_log(journal).append(RoundCompleted())
    for _ in range(2):
        log = open_log(journal)
        await log.append_when_live(ValidationRead(by="reviewer"))
        while await log.is_replaying():
            await log.note(RoundCompleted())
        await log.append(RoundCompleted())
    assert [event.type for event in journal.events] == [
        "round_completed",
        "validation_read",
        "round_completed",
        "round_completed",
    ]


async def test_a_withdrawn_event_is_not_written() -> None:
    journal = MemoryJournal()
    await open_log(journal).append(RoundCompleted())
    log = open_log(journal)
    await log.append_when_live(ValidationRead(by="reviewer"))
    await log.note(RoundCompleted())
    log.withdraw()
    await log.append(RoundCompleted())
    assert [event.type for event in journal.events] == ["round_completed", "round_completed"]
