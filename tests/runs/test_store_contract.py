"""The tests of a store fail for stores that break a promise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from promptiter.errors import RunLockedError
from promptiter.llm.cache.keys import CacheKey, StoredAnswer, encode_answer
from promptiter.llm.cache.memory_answers import MemoryAnswers, RecordedCalls
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.runlog.event_json import encode_event
from promptiter.runlog.events import Event
from promptiter.runs import memory_store
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.store import Store
from promptiter.testing.store_contract import StoreContract

JOURNAL, LEASE, READER, TRACES = (
    memory_store._MemoryRunJournal,
    memory_store._Lease,
    memory_store._MemoryReader,
    memory_store._MemoryTraces,
)


class Contract(StoreContract):
    """All clients of the test are one store."""

    __test__ = False

    def __init__(self) -> None:
        self.store: MemoryStore | None = None

    def make_store(self, place: Path, now: Callable[[], float]) -> Store:  # noqa: ARG002
        self.store = self.store or MemoryStore(now=now)
        return self.store


async def append_anything(self: Any, event: Event) -> None:
    self._lease.renew()
    self._run.events.append(encode_event(event))


def read_from_the_start(self: Any, _start: int = 0) -> Iterator[Event]:
    return (memory_store._decode(self._run, seq) for seq in range(len(self._run.events)))


async def keep_the_last_answer(self: Any, key: CacheKey, answer: StoredAnswer, **_: object) -> StoredAnswer:
    self._calls.answers[key.digest] = encode_answer(key, answer)
    return answer


@asynccontextmanager
async def ask_without_a_record(_self: Any, _key: CacheKey, **_: object) -> AsyncIterator[None]:
    yield


def lose_own_calls(self: RecordedCalls, _own_start: int | None = None) -> LedgerSnapshot:
    return add_up(self)


async def answer_zero(*_: object) -> int:
    return 0


async def answer_yes(*_: object) -> bool:
    return True


def do_nothing(*_: object) -> None: ...


add_up = RecordedCalls.add_up


@pytest.mark.parametrize(
    ("owner", "name", "broken", "test"),
    [
        (JOURNAL, "append", append_anything, "only_the_next_event_can_be_appended"),
        (READER, "read", read_from_the_start, "many_events_stay_in_order"),
        (LEASE, "renew", do_nothing, "an_expired_lease_is_taken_over_and_the_former_holder_writes_no_more"),
        (LEASE, "release", do_nothing, "a_run_that_was_left_can_be_opened_again"),
        (MemoryAnswers, "put", keep_the_last_answer, "the_first_answer_of_a_key_is_kept"),
        (MemoryAnswers, "asking", ask_without_a_record, "calls_in_flight_when_a_process_ended_are_lost"),
        (MemoryAnswers, "mark", answer_zero, "answers_paid_after_a_mark_are_known_also_in_a_later_process"),
        (MemoryAnswers, "is_since", answer_yes, "answers_paid_after_a_mark_are_known_also_in_a_later_process"),
        (RecordedCalls, "add_up", lose_own_calls, "calls_in_flight_when_a_process_ended_are_lost"),
        (TRACES, "has", answer_yes, "a_missing_trace_is_reported"),
    ],
)
def test_a_broken_promise_is_found(
    owner: type, name: str, broken: object, test: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises((AssertionError, RunLockedError)):
        getattr(Contract(), f"test_{test}")(tmp_path)
