"""RoundIndex: where the rounds of a run are in its journal, so that one of them can be read without the others."""

from __future__ import annotations

from array import array
from bisect import bisect_left


class RoundIndex:
    """Sequence numbers of a journal, a few bytes per round: where rounds start, and which candidates are accepted."""

    def __init__(self) -> None:
        self.rounds = array("Q")
        self.accepted = array("Q")
        self.end = 0

    def get_events(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first event of a round, and the event after the last round before another."""
        return self.rounds[start], self.rounds[stop] if stop < len(self.rounds) else self.end

    def find_accepted(self, seq: int) -> int | None:
        """Return the last accepted candidate before an event; None if there is none."""
        count = bisect_left(self.accepted, seq)
        return self.accepted[count - 1] if count else None
