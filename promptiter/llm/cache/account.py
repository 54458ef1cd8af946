"""Account: adds up what the calls of a run cost, from what its call log recorded."""

from __future__ import annotations

import asyncio

from promptiter.errors import TransientModelError
from promptiter.llm.ledger import TOOL, Ledger, LedgerEntry, LedgerSnapshot


class Account:
    """The cost of calls, added in the order in which they were recorded.

    A call that was started by an earlier process, and neither answered nor given up, was in flight when that process
    was killed. It counts as lost, at the most that it may have cost.
    """

    def __init__(self) -> None:
        self._paid = Ledger()
        self._open: dict[str, list[LedgerEntry]] = {}

    def pay(self, entry: LedgerEntry) -> None:
        """Add the cost of a call."""
        self._paid.count(entry)

    def start_call(self, key: str, *, lost: LedgerEntry) -> None:
        """Add a call of an earlier process that was about to be made, with what it counts as if it was lost."""
        self._open.setdefault(key, []).append(lost)

    def end_call(self, key: str) -> None:
        """End the last of equal calls: an earlier one that is still open was lost."""
        entries = self._open.get(key)
        if entries:
            entries.pop()
        if not entries:
            self._open.pop(key, None)

    def snapshot(self) -> LedgerSnapshot:
        """Return the sum, with the lost calls."""
        for entries in self._open.values():
            for entry in entries:
                self._paid.count(entry)
        self._open.clear()
        return self._paid.snapshot()


def may_be_billed(error: BaseException, lost: LedgerEntry) -> bool:
    """Whether a call that ended in this error may have been billed, so that it counts as lost. Tools are free."""
    if lost.model.startswith(TOOL):
        return False
    return isinstance(error, asyncio.CancelledError) or (isinstance(error, TransientModelError) and error.may_be_billed)
