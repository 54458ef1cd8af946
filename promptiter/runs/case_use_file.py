"""CaseUseFile: the uses of cases by all runs of a folder, in a file next to them that is only appended to.

    {"id":"9f…","run_id":"2026-11-15T…","kind":"search","place":"2026-11-15T…","train":["…"],"validation":["…"]}

The file outlives the runs, and its name starts with a dot, so that `rm -r runs/*` leaves it. A line that a killed
process left incomplete is skipped.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import orjson
from pydantic import ValidationError

from promptiter.concurrency import run_in_thread
from promptiter.runlog.case_uses import CaseUse
from promptiter.runlog.codec import from_plain, to_short_plain

FILE_NAME = ".case_uses.jsonl"


class CaseUseFile:
    """Keeps the uses of cases in a file, one per line."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FILE_NAME

    async def add(self, use: CaseUse) -> Sequence[CaseUse]:
        return await run_in_thread(lambda: self._add(use))

    def read(self) -> Sequence[CaseUse]:
        """Read all uses, in the order of the file; the first of each id counts."""
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return ()
        uses: dict[str, CaseUse] = {}
        for line in lines:
            if (use := _parse(line)) is not None:
                uses.setdefault(use.id, use)
        return tuple(uses.values())

    def _add(self, use: CaseUse) -> Sequence[CaseUse]:
        known = self.read()
        if any(each.id == use.id for each in known):
            return known
        # One write in append mode: lines of two processes do not mix. The line break before it ends a torn line.
        line = b"\n" + orjson.dumps(to_short_plain(use)) + b"\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return self.read()


def _parse(line: bytes) -> CaseUse | None:
    try:
        use: CaseUse = from_plain(CaseUse, orjson.loads(line))
    except (orjson.JSONDecodeError, ValidationError):
        return None
    return use
