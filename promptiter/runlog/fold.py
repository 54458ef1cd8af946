"""fold: events in, RunResult out. What a run is can always be told from its events alone.

`fold(events)` has every round in memory; `fold_lazily(journal)` leaves them in the journal and reads those that are
asked for, so that the result of ten thousand rounds is no larger than that of ten.
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
from promptiter.runlog.candidate_codec import candidate_of
from promptiter.runlog.events import Event
from promptiter.runlog.journal import Journal
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runlog.run_state import NOTHING, ReusedTraining, RunState


def fold(events: Iterable[Event]) -> RunResult:
    """The result that such events add up to; of a run that is not at its end, its state so far."""
    state = RunState()
    rounds = tuple(state.rounds(events))
    return replace(state.run, rounds=rounds)


def fold_lazily(journal: Journal) -> RunResult:
    """The same of all events of a journal, with rounds that are read from it when they are asked for.

    The journal has to stay where it is. A result that stands alone is `fold(journal.read())`, or one that went through
    `to_json` and `from_json`.
    """
    state, places = RunState(), _Places()
    for event in journal.read():
        state.take(event)
        places.note(event, state)
    return replace(state.run, rounds=Rounds(journal, state.run, places))


class Rounds(Sequence[RoundResult]):
    """The rounds of a run, in its journal. Going through them reads it once; an index or a slice jumps there.

    The last round that was asked for is kept. Events that came after the result was made do not count.
    """

    def __init__(self, journal: Journal, run: RunResult, places: _Places) -> None:
        self._journal = journal
        self._run = run
        self._places = places
        self._last: tuple[int, RoundResult] | None = None
        self._findings: tuple[int, ReusedTraining] = (-1, NOTHING)
        self._profile: tuple[int, Profile] = (0, run.initial_profile)

    def __len__(self) -> int:
        return len(self._places.rounds)

    def __iter__(self) -> Iterator[RoundResult]:
        return self._read(0, len(self))

    @overload
    def __getitem__(self, index: int) -> RoundResult: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[RoundResult]: ...

    def __getitem__(self, index: int | slice) -> RoundResult | Sequence[RoundResult]:
        wanted = range(len(self))[index]
        if isinstance(wanted, int):
            return self._one(wanted)
        if wanted.step == 1:
            return tuple(self._read(wanted.start, wanted.stop))
        return tuple(self._one(number) for number in wanted)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rounds | tuple):
            return NotImplemented
        return len(self) == len(other) and all(one == another for one, another in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} rounds in a journal>"

    def _one(self, number: int) -> RoundResult:
        if self._last is None or self._last[0] != number:
            [found] = self._read(number, number + 1)
            self._last = number, found
        return self._last[1]

    def _read(self, start: int, stop: int) -> Iterator[RoundResult]:
        """The rounds from one number up to another."""
        return self._told(start, stop, self._known_before(start)) if start < stop else iter(())

    def _told(self, start: int, stop: int, known: ReusedTraining) -> Iterator[RoundResult]:
        """What their events add up to, with what is known before."""
        first, end = self._places.events_of(start, stop)
        run = replace(self._run, status="running", accepted_profile=self._profile_before(first))
        return RunState(run, known).rounds(self._events(first, end - first))

    def _known_before(self, number: int) -> ReusedTraining:
        """What earlier rounds found about the profile of this one; they may rest on still earlier ones."""
        rounds = []
        while (source := self._places.source_of(number)) not in (number, self._findings[0]):
            rounds.append(source)
            number = source
        known = NOTHING if source == number else self._findings[1]
        for source in reversed(rounds):
            [found] = self._told(source, source + 1, known)
            known = ReusedTraining.of(found)
            self._findings = source, known
        return known

    def _profile_before(self, place: int) -> Profile:
        """The profile that was accepted when that event came: all candidates that were accepted until then."""
        accepted = self._places.accepted
        count = bisect_left(accepted, place)
        known, profile = self._profile if self._profile[0] <= count else (0, self._run.initial_profile)
        for candidate in accepted[known:count]:
            [event] = self._events(candidate, 1)
            profile = candidate_of(event.data, accepted=profile, structure=self._run.structure)
        self._profile = count, profile
        return profile

    def _events(self, start: int, count: int) -> Iterator[Event]:
        """So many events of the journal, which had them when the result was made."""
        taken = 0
        for event in islice(self._journal.read(start), count):
            taken += 1
            yield event
        if taken < count:
            raise JournalError(
                f"the rounds of run {self._run.run_id!r} are read from its journal, which ends before event "
                f"{start + taken}: it was removed or cut; bring it back from a copy"
            )


class _Places:
    """Where things are in a journal, as numbers of events: some bytes a round.

    `rounds` is where each begins, `sources` where the round begins that its findings come from, `accepted` the
    candidates that were accepted, and `end` comes after the last event.
    """

    def __init__(self) -> None:
        self.rounds = array("Q")
        self.sources = array("Q")
        self.accepted = array("Q")
        self.end = 0

    def note(self, event: Event, state: RunState) -> None:
        """Take in the place of an event, which the state has taken already."""
        self.end = event.seq + 1
        if event.type == "round_started":
            self.rounds.append(event.seq)
            self.sources.append(state.source_seq)
        elif event.type == "evaluation_finished" and self.sources:
            self.sources[-1] = state.source_seq
        elif state.accepted_seq is not None and state.accepted_seq not in self.accepted[-1:]:
            self.accepted.append(state.accepted_seq)

    def events_of(self, start: int, stop: int) -> tuple[int, int]:
        """The first event of a round, and the one after the last event of the round before another."""
        return self.rounds[start], self.rounds[stop] if stop < len(self.rounds) else self.end

    def source_of(self, number: int) -> int:
        return bisect_left(self.rounds, self.sources[number])
