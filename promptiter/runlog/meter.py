"""Meter: the time and money that one run has spent, over all its processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from promptiter.llm.ledger import Ledger, LedgerSnapshot, Spending
from promptiter.runlog.codec import from_plain
from traces.model import Json


class Meter:
    """Counts from the start of a run, or, if the run is resumed, from what its journal says.

    `before` is what earlier processes paid, if that is known call by call; it takes precedence over the journal.
    """

    def __init__(self, clock: Callable[[], float], ledger: Ledger, *, before: LedgerSnapshot | None = None) -> None:
        self._clock = clock
        self._ledger = ledger
        self._has_ledger_before = before is not None
        self._before = before or LedgerSnapshot()
        self._spent_before = self._before.total
        self._before_s = 0.0
        self._started = clock()
        self._ledger_at_start = ledger.snapshot()
        self._spent_at_start = self._ledger_at_start.total

    @property
    def elapsed_s(self) -> float:
        """Working time; the time between a kill and the next start does not count."""
        return self._before_s + self._clock() - self._started

    @property
    def spent(self) -> Spending:
        """What the run has spent, in total."""
        return self._spent_before + (self._ledger.snapshot().total - self._spent_at_start)

    @property
    def ledger(self) -> LedgerSnapshot:
        """What the run has spent by role, model and node; for earlier processes, only what is known call by call."""
        return self._before + (self._ledger.snapshot() - self._ledger_at_start)

    def continue_from(self, measured: Mapping[str, Json]) -> None:
        """Continue from the figures that an earlier process recorded."""
        if "elapsed_s" in measured:
            self._before_s, self._started = measured["elapsed_s"], self._clock()
        if "spent" in measured and not self._has_ledger_before:
            self._spent_before = from_plain(Spending, measured["spent"])
            self._spent_at_start = self._ledger.snapshot().total
