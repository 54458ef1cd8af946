"""The small run of the starter with every tracker, in a process that can be killed.

    python -m tests.observers.tracked_shop FOLDER TRACKERS [--kill-at SEQ]

starts the run in FOLDER/runs, or resumes it. TRACKERS are observers by name with their options, as JSON. With --kill-at
the process kills itself at an event, once the trackers have stored all events before it. It prints the verdict, the
warnings that were logged, and the addresses that it connected to.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path

import orjson

from promptiter.observers.tracker import Tracker
from promptiter.registry import OBSERVERS
from tests.worlds.starter import SmallShop, kill_runs_at

SLOWEST_S = 120.0


class Warnings(logging.Handler):
    """Collects warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def die_when_stored(trackers: list[Tracker], seq: int) -> None:
    """Kill this process once all trackers have stored the events before `seq`."""
    feeds = [feed for each in trackers for feed in each._feeds.values()]
    deadline = time.monotonic() + SLOWEST_S
    while any(feed._written < seq for feed in feeds) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("trackers", type=orjson.loads)
    parser.add_argument("--kill-at", type=int, default=-1)
    given = parser.parse_args()
    addresses: set[str] = set()

    def note_connection(event: str, arguments: tuple[object, ...]) -> None:
        if event == "socket.connect":
            addresses.add(str(arguments[1]))

    sys.addaudithook(note_connection)
    os.chdir(given.folder)
    logging.getLogger().addHandler(warnings := Warnings())
    trackers = [OBSERVERS.get(name)(**options) for name, options in given.trackers.items()]
    with kill_runs_at(given.kill_at, die=lambda: die_when_stored(trackers, given.kill_at)):
        result = SmallShop().run(given.folder / "runs", observers=tuple(trackers))
    printed = {"verdict": result.verdict, "warnings": warnings.found, "connections": sorted(addresses)}
    sys.stdout.write(orjson.dumps(printed).decode())


if __name__ == "__main__":
    main()
