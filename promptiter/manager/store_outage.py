"""StoreOutage: the store of an app cannot be used for now, such as a database that is down, full or read-only.

While it lasts, the runs of the app are tried one at a time, with a pause that grows up to a minute. The log has a line
at the beginning and one at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0
WAITS = "the store cannot be used for now; the run is continued when it is back"
"""What is said of a run. The error itself may name folders and databases, which is for the log."""


class StoreOutage:
    """The outage of a store, if there is one. `runs` are those that wait for its end, `error` is its reason."""

    def __init__(self, name: str, *, first_pause_s: float = 1.0, now: Callable[[], float] = time.monotonic) -> None:
        self.error: str | None = None
        self.runs: set[str] = set()
        self._name = name
        self._first_pause_s = first_pause_s
        self._now = now
        self._pause_s = 0.0
        self._next_try = 0.0

    @property
    def is_pause(self) -> bool:
        """Whether it is too early for another try."""
        return self.error is not None and self._now() < self._next_try

    def begin(self, error: Exception, run_id: str | None = None) -> None:
        """Note a failure. The pause after it is longer if the one before was not long ago.

        What was in progress already when the pause began does not prolong it.
        """
        if run_id is not None:
            self.runs.add(run_id)
        if self.is_pause:
            return
        now = self._now()
        if now - self._next_try > LONGEST_PAUSE_S:
            self._pause_s = 0.0
        self._pause_s = min(max(2 * self._pause_s, self._first_pause_s), LONGEST_PAUSE_S)
        self._next_try = now + self._pause_s
        if self.error is None:
            logger.warning("%s: the store cannot be used, so runs wait until it is back: %s", self._name, error)
        self.error = str(error)

    def end(self) -> None:
        """Note that the store can be used again."""
        if self.error is not None:
            self.error = None
            self.runs.clear()
            logger.warning("%s: the store is back; runs are continued", self._name)
