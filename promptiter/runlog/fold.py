"""fold: computes the RunResult of a run from its events alone.

`fold(events)` keeps every round in memory. `fold_lazily(reader)` leaves them in the journal and reads them on demand,
so the result of ten thousand rounds takes no more memory than that of ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from typing import overload

from promptiter.errors import JournalError
from promptiter.profile import Profile
from promptiter.runlog.candidates import build_candidate
from promptiter.runlog.events import Event
from promptiter.runlog.journal import EventReader
from promptiter.runlog.payloads import CandidateProposed
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runlog.round_index import RoundIndex
from promptiter.runlog.run_state import RunState


def fold(events: Iterable[Event]) -> RunResult:
    """Return the result of these events; for a run in progress, its state so far."""
    state = RunState()
    rounds = tuple(state.rounds(events))
    return replace(state.run, rounds=rounds)


def fold_lazily(events: EventReader) -> RunResult:
    """Return the result of all events of a journal, with rounds that are read from it on demand.

    The journal must stay where it is. `fold(events.read())` gives a self-contained result, as does a round trip
    through `to_json` and `from_json`. Both read the journal and block, so the engine calls this in a thread.
    """
    state = RunState()
    for event in events.read():
        state.take(event)
    return build_result(state, events)


def build_result(state: RunState, events: EventReader) -> RunResult:
    """Return the result of a state that has taken all these events, without reading them again.

    The state may take more events afterwards; the result stays as it is.
    """
    return replace(state.run, rounds=LazyRounds(events, state.run, deepcopy(state.index)))


class LazyRounds(Sequence[RoundResult]):
    """The rounds of a run, read from its journal. Iteration reads it once; an index or a slice reads only that part.

    The round that was read last is cached. Events that are newer than the result are ignored.
    """

    def __init__(self, events: EventReader, run: RunResult, index: RoundIndex) -> None:
        self._events = events
        self._run = run
        self._index = index
        self._last: tuple[int, RoundResult] | None = None

    def __len__(self) -> int:
        return len(self._index.rounds)

    def __iter__(self) -> Iterator[RoundResult]:
        return self._read(0, len(self))

    @overload
    def __getitem__(self, index: int) -> RoundResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RoundResult]: ...

    def __getitem__(self, index: int | slice) -> RoundResult | Sequence[RoundResult]:
        wanted = range(len(self))[index]
        if isinstance(wanted, int):
            return self._read_one(wanted)
        if wanted.step == 1:
            return tuple(self._read(wanted.start, wanted.stop))
        return tuple(self._read_one(number) for number in wanted)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LazyRounds | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} rounds in a journal>"

    def _read_one(self, number: int) -> RoundResult:
        if self._last is None or self._last[0] != number:
            [found] = self._read(number, number + 1)
            self._last = number, found
        return self._last[1]

    def _read(self, start: int, stop: int) -> Iterator[RoundResult]:
        """Read the rounds from one number up to another."""
        if start >= stop:
            return iter(())
        first, end = self._index.get_events(start, stop)
        run = replace(self._run, status="running", working_profile=self._read_accepted_profile(first))
        return RunState(run).rounds(self._read_events(first, end - first))

    def _read_accepted_profile(self, seq: int) -> Profile:
        """Read the profile that was accepted before an event."""
        accepted = self._index.find_accepted(seq)
        if accepted is None:
            return self._run.initial_profile
        [event] = self._read_events(accepted, 1)
        assert isinstance(event.payload, CandidateProposed), "the index points at candidates"
        return build_candidate(event.payload, self._run.structure)

    def _read_events(self, start: int, count: int) -> Iterator[Event]:
        taken = 0
        for event in islice(self._events.read(start), count):
            taken += 1
            yield event
        if taken < count:
            raise JournalError(
                f"the rounds of run {self._run.run_id!r} are read from its journal, which ends before event "
                f"{start + taken}: it was removed or truncated; restore it from a copy"
            )
