"""Every kind of database keeps what a store promises."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from promptiter.runs.sql.store import SqlStore
from promptiter.runs.store import Store
from promptiter.testing.store_contract import StoreContract

pytestmark = pytest.mark.slow


class _SqlContract(StoreContract):
    @pytest.mark.long
    def test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(self, tmp_path: Path) -> None:
        super().test_a_run_that_is_killed_at_any_event_and_resumed_gives_the_same_result(tmp_path)


class TestSqlite(_SqlContract):
    def make_store(self, place: Path, now: Callable[[], float]) -> Store:
        return SqlStore(f"sqlite:///{place}/runs.db", now=now)


class _ServerContract(_SqlContract):
    """Each place is an app of its own in one database."""

    url: str

    def make_store(self, place: Path, now: Callable[[], float]) -> Store:
        return SqlStore(self.url, now=now).for_app(sha256(str(place).encode()).hexdigest()[:40])


class TestPostgresql(_ServerContract):
    @pytest.fixture(autouse=True)
    def connect(self, postgresql_url: str) -> None:
        self.url = postgresql_url


class TestMariadb(_ServerContract):
    @pytest.fixture(autouse=True)
    def connect(self, mariadb_url: str) -> None:
        self.url = mariadb_url
