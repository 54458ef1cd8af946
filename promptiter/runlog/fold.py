"""fold: computes the RunResult of a run from its events alone.

`fold(events)` keeps every round in memory. `fold_lazily(journal)` leaves them in the journal and reads them on demand,
so the result of ten thousand rounds takes no more memory than that of ten.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import overload

from promptiter.errors import JournalError
from promptiter.profile import Profile
from promptiter.runlog.codec import decode_candidate
from promptiter.runlog.events import Event
from promptiter.runlog.journal import Journal
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runlog.run_state import NOTHING, ReusedTraining, RunState


def fold(events: Iterable[Event]) -> RunResult:
    """Return the result of these events; for a run in progress, its state so far."""
    state = RunState()
    rounds = tuple(state.rounds(events))
    return replace(state.run, rounds=rounds)


def fold_lazily(journal: Journal) -> RunResult:
    """Return the result of all events of a journal, with rounds that are read from it on demand.

    The journal must stay where it is. `fold(journal.read())` gives a self-contained result, as does a round trip
    through `to_json` and `from_json`.
    """
    state, index = RunState(), _JournalIndex()
    for event in journal.read():
        state.take(event)
        index.add(event, state)
    return replace(state.run, rounds=LazyRounds(journal, state.run, index))


class LazyRounds(Sequence[RoundResult]):
    """The rounds of a run, read from its journal. Iteration reads it once; an index or a slice reads only that part.

    The round that was read last is cached. Events that are newer than the result are ignored.
    """

    def __init__(self, journal: Journal, run: RunResult, index: _JournalIndex) -> None:
        self._journal = journal
        self._run = run
        self._index = index
        self._last: tuple[int, RoundResult] | None = None
        self._reused: tuple[int, ReusedTraining] = (-1, NOTHING)
        self._profile: tuple[int, Profile] = (0, run.initial_profile)

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
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} rounds in a journal>"

    def _read_one(self, number: int) -> RoundResult:
        if self._last is None or self._last[0] != number:
            [found] = self._read(number, number + 1)
            self._last = number, found
        return self._last[1]

    def _read(self, start: int, stop: int) -> Iterator[RoundResult]:
        return self._fold(start, stop, self._find_reused(start)) if start < stop else iter(())

    def _fold(self, start: int, stop: int, reused: ReusedTraining) -> Iterator[RoundResult]:
        first, end = self._index.find_events(start, stop)
        run = replace(self._run, status="running", accepted_profile=self._find_accepted_profile(first))
        return RunState(run, reused).rounds(self._read_events(first, end - first))

    def _find_reused(self, number: int) -> ReusedTraining:
        """Return the train results that a round reuses. Those of its source may come from a still earlier round."""
        rounds = []
        while (source := self._index.find_source(number)) not in (number, self._reused[0]):
            rounds.append(source)
            number = source
        reused = NOTHING if source == number else self._reused[1]
        for source in reversed(rounds):
            [found] = self._fold(source, source + 1, reused)
            reused = ReusedTraining.of(found)
            self._reused = source, reused
        return reused

    def _find_accepted_profile(self, seq: int) -> Profile:
        """Return the profile that was accepted when this event was written, from the candidates accepted before."""
        accepted = self._index.accepted
        count = bisect_left(accepted, seq)
        known, profile = self._profile if self._profile[0] <= count else (0, self._run.initial_profile)
        for candidate in accepted[known:count]:
            [event] = self._read_events(candidate, 1)
            profile = decode_candidate(event.data, accepted=profile, structure=self._run.structure)
        self._profile = count, profile
        return profile

    def _read_events(self, start: int, count: int) -> Iterator[Event]:
        """Yield this number of events. The journal had them when the result was created."""
        taken = 0
        for event in islice(self._journal.read(start), count):
            taken += 1
            yield event
        if taken < count:
            raise JournalError(
                f"the rounds of run {self._run.run_id!r} are read from its journal, which ends before event "
                f"{start + taken}: it was removed or truncated; restore it from a copy"
            )


class _JournalIndex:
    """Sequence numbers of events in a journal, a few bytes per round.

    `rounds` has the first event of each round, `sources` that of the round whose train results it reuses, `accepted`
    the accepted candidates. `end` is the number after the last event.
    """

    def __init__(self) -> None:
        self.rounds = array("Q")
        self.sources = array("Q")
        self.accepted = array("Q")
        self.end = 0

    def add(self, event: Event, state: RunState) -> None:
        """Add an event that the state has already taken."""
        self.end = event.seq + 1
        if event.type == "round_started":
            self.rounds.append(event.seq)
            self.sources.append(state.source_seq)
        elif event.type == "evaluation_finished" and self.sources:
            self.sources[-1] = state.source_seq
        elif state.accepted_seq is not None and state.accepted_seq not in self.accepted[-1:]:
            self.accepted.append(state.accepted_seq)

    def find_events(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first event of round `start`, and the one after the last event of round `stop - 1`."""
        return self.rounds[start], self.rounds[stop] if stop < len(self.rounds) else self.end

    def find_source(self, number: int) -> int:
        return bisect_left(self.rounds, self.sources[number])
