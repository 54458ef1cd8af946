"""Meter: what one run has spent, in time and money, over all processes that worked on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from promptiter.llm.ledger import Ledger, LedgerSnapshot, Spending
from promptiter.runlog.codec import from_plain
from traces.model import Json


class Meter:
    """Counts from the start of a run, or from what its journal says of it when it goes on.

    `before` is what earlier processes paid, if that is known call by call; then the journal is not asked.
    """

    def __init__(self, clock: Callable[[], float], ledger: Ledger, *, before: LedgerSnapshot | None = None) -> None:
        self._clock = clock
        self._ledger = ledger
        self._knows_all = before is not None
        self._before = before or LedgerSnapshot()
        self._spent_before = self._before.total
        self._before_s = 0.0
        self._started = clock()
        self._at_first = ledger.snapshot()
        self._at_start = self._at_first.total

    @property
    def elapsed_s(self) -> float:
        """Working time: what passed between a kill and the next start does not count."""
        return self._before_s + self._clock() - self._started

    @property
    def spent(self) -> Spending:
        return self._spent_before + (self._ledger.snapshot().total - self._at_start)

    @property
    def ledger(self) -> LedgerSnapshot:
        """The same by role, model and node; of earlier processes only what is known call by call."""
        return self._before + (self._ledger.snapshot() - self._at_first)

    def continue_from(self, measured: Mapping[str, Json]) -> None:
        """Count from what an earlier process wrote down."""
        if "elapsed_s" in measured:
            self._before_s, self._started = measured["elapsed_s"], self._clock()
        if "spent" in measured and not self._knows_all:
            self._spent_before, self._at_start = from_plain(Spending, measured["spent"]), self._ledger.snapshot().total
