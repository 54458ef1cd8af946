"""The stores that promptiter has keep what a store promises."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from promptiter.runs.folder_store import FolderStore
from promptiter.runs.memory_store import MemoryStore
from promptiter.runs.store import Store
from promptiter.testing.store_contract import StoreContract

pytestmark = pytest.mark.slow

MACHINES = count()


class TestFolderStore(StoreContract):
    """Each client is another machine that shares the folder."""

    def make_store(self, place: Path, now: Callable[[], float]) -> Store:
        return FolderStore(place, now=now, machine=f"machine {next(MACHINES)}")

    def suspend_holder(self, place: Path, run_id: str) -> None:
        """Another machine has its own flock, which belongs to the file, so it sees another one here."""
        (place / run_id / "lock").unlink()

    def tear_next_event(self, place: Path, run_id: str) -> None:
        with (place / run_id / "journal.jsonl").open("ab") as file:
            file.write(b'{"checksum":"0123abcd","event":{"schema_vers')

    @pytest.mark.long  # test_kills.py does so with a larger run
    def test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(self, tmp_path: Path) -> None:
        super().test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(tmp_path)


class TestMemoryStore(StoreContract):
    """Clients of a store in memory are the store itself."""

    stores: ClassVar[dict[Path, MemoryStore]] = {}

    def make_store(self, place: Path, now: Callable[[], float]) -> Store:
        return self.stores.setdefault(place, MemoryStore(now=now))

    @pytest.mark.long
    def test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(self, tmp_path: Path) -> None:
        super().test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(tmp_path)
