from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.errors import RunLockedError, SetupError
from promptiter.runs import lock as lock_module
from promptiter.runs.lock import RunLock, find_holder, this_machine

SPAWN = multiprocessing.get_context("spawn")


class Clock:
    def __init__(self) -> None:
        self.time = 1_000_000.0

    def __call__(self) -> float:
        return self.time


def lease(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((folder / "lock").read_bytes())
    return found


def wait_for(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def hold(folder: str, ready: Connection, fork: bool) -> None:
    lock = RunLock(folder)
    lock.acquire()
    child = os.fork() if fork else None
    if child == 0:
        time.sleep(120)
        os._exit(0)
    ready.send(child)
    time.sleep(120)


@contextmanager
def holding(folder: Path, *, fork: bool = False) -> Iterator[tuple[SpawnProcess, int | None]]:
    receiver, sender = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=hold, args=(str(folder), sender, fork))
    process.start()
    try:
        yield process, receiver.recv()
    finally:
        process.kill()
        process.join()


def test_a_lock_leaves_nothing_behind(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []
    with RunLock(tmp_path):
        pass


def test_a_second_lock_in_one_process_is_refused(tmp_path: Path) -> None:
    with RunLock(tmp_path) as lock:
        with pytest.raises(RunLockedError, match=f"locked by process {os.getpid()} on"):
            RunLock(tmp_path).acquire()
        with pytest.raises(RunLockedError, match=r"this process already holds the run"):
            lock.acquire()
        lock.renew()


@pytest.mark.slow
def test_a_second_process_is_refused_with_the_name_of_the_holder(tmp_path: Path) -> None:
    with holding(tmp_path) as (process, _):
        message = f"locked by process {process.pid} on .*; wait until it ends, or end it with `kill {process.pid}`"
        with pytest.raises(RunLockedError, match=message):
            RunLock(tmp_path).acquire()
        found = find_holder(tmp_path)
        assert found is not None
        assert (found.pid, found.host) == (process.pid, socket.gethostname())


def test_a_killed_process_blocks_nothing(tmp_path: Path) -> None:
    with holding(tmp_path) as (process, _):
        process.kill()
        process.join()
        assert lease(tmp_path)["pid"] == process.pid
        assert find_holder(tmp_path) is None
        with RunLock(tmp_path):
            assert lease(tmp_path)["pid"] == os.getpid()


@pytest.mark.slow
def test_a_child_of_a_killed_process_blocks_nothing(tmp_path: Path) -> None:
    with holding(tmp_path, fork=True) as (process, child):
        assert child is not None
        try:
            with pytest.raises(RunLockedError):
                RunLock(tmp_path).acquire()
            process.kill()
            process.join()
            os.kill(child, 0)  # still alive
            with RunLock(tmp_path):
                pass
        finally:
            os.kill(child, 9)


def count_up(folder: str, times: int) -> None:
    counter = Path(folder) / "counter"
    for _ in range(times):
        lock = RunLock(folder)
        while True:
            try:
                lock.acquire()
                break
            except RunLockedError:
                time.sleep(0.001)
        value = int(counter.read_text())
        time.sleep(0.001)
        counter.write_text(str(value + 1))
        lock.release()


@pytest.mark.slow
def test_racing_processes_hold_a_run_one_after_another(tmp_path: Path) -> None:
    (tmp_path / "counter").write_text("0")
    racers = [SPAWN.Process(target=count_up, args=(str(tmp_path), 15)) for _ in range(3)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert (tmp_path / "counter").read_text() == "45"
    assert not (tmp_path / "lock").exists()


def test_a_lock_file_that_is_being_removed_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = RunLock(tmp_path), RunLock(tmp_path)
    first.acquire()
    flock = lock_module._flock

    def late(file: int, *, shared: bool) -> bool:
        first.release()  # after the second has opened the file
        return flock(file, shared=shared)

    monkeypatch.setattr(lock_module, "_flock", late)
    with second, pytest.raises(RunLockedError):
        RunLock(tmp_path).acquire()


def leave_lease(folder: Path, *, machine: str, clock: Clock) -> None:
    """The lock file of a process that was killed on another machine."""
    with RunLock(folder, machine=machine, now=clock):
        raw = (folder / "lock").read_bytes()
    (folder / "lock").write_bytes(raw)


def test_a_lease_of_another_machine_is_respected_until_it_ends(tmp_path: Path) -> None:
    clock = Clock()
    leave_lease(tmp_path, machine="another", clock=clock)
    clock.time += 25
    with pytest.raises(RunLockedError, match=r"locked by process \d+ on .*; .* try again in 35 s"):
        RunLock(tmp_path, now=clock).acquire()
    assert lease(tmp_path)["machine"] == "another"
    clock.time += 35
    with RunLock(tmp_path, now=clock):
        assert lease(tmp_path)["machine"] == this_machine()


def test_a_refused_process_locks_nothing(tmp_path: Path) -> None:
    clock = Clock()
    leave_lease(tmp_path, machine="another", clock=clock)
    with pytest.raises(RunLockedError):
        RunLock(tmp_path, now=clock).acquire()
    with RunLock(tmp_path, machine="another", now=clock):
        pass


def test_a_lease_of_a_dead_process_of_this_machine_does_not_count(tmp_path: Path) -> None:
    clock = Clock()
    leave_lease(tmp_path, machine=this_machine(), clock=clock)
    with RunLock(tmp_path, now=clock):
        pass


def test_a_lease_is_renewed_in_time_and_not_before(tmp_path: Path) -> None:
    clock = Clock()
    with RunLock(tmp_path, now=clock, lease_s=60) as lock:
        ends = lease(tmp_path)["expires_at"]
        assert ends == clock.time + 60
        clock.time += 14
        lock.renew()
        assert lease(tmp_path)["expires_at"] == ends
        clock.time += 1
        lock.renew()
        assert lease(tmp_path)["expires_at"] == clock.time + 60
        clock.time += 10_000  # a laptop that slept, and no other process took over
        lock.renew()
        assert lease(tmp_path)["expires_at"] == clock.time + 60


def test_a_lease_is_renewed_while_nothing_is_appended(tmp_path: Path) -> None:
    with RunLock(tmp_path, lease_s=0.2):
        first = lease(tmp_path)["expires_at"]
        wait_for(lambda: lease(tmp_path)["expires_at"] > first + 0.2)
        assert lease(tmp_path)["since"] == first - 0.2


def test_a_holder_that_slept_too_long_is_reported_and_leaves_the_lock_to_the_new_one(tmp_path: Path) -> None:
    clock = Clock()
    lock = RunLock(tmp_path, now=clock)
    lock.acquire()
    raw = (tmp_path / "lock").read_bytes().replace(this_machine().encode(), b"another")
    (tmp_path / "lock").write_bytes(raw)
    lock.renew()  # not due yet
    clock.time += 100
    for _ in range(2):
        with pytest.raises(
            RunLockedError, match=r"was taken over by process \d+ on .*; this process stops working on it"
        ):
            lock.renew()
    lock.release()
    assert (tmp_path / "lock").read_bytes() == raw


def test_a_removed_lock_file_is_reported(tmp_path: Path) -> None:
    clock = Clock()
    lock = RunLock(tmp_path, now=clock)
    lock.acquire()
    (tmp_path / "lock").unlink()
    clock.time += 100
    with pytest.raises(RunLockedError, match="lost: its lock file is gone"):
        lock.renew()
    lock.release()
    lock.release()


@pytest.mark.parametrize("raw", [b"", b"{}\n", b'{"host":"a', b"[]\n"])
def test_a_lock_whose_holder_wrote_no_lease_is_free(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "lock").write_bytes(raw)
    assert find_holder(tmp_path) is None
    with RunLock(tmp_path):
        assert lease(tmp_path)["pid"] == os.getpid()


def test_finding_the_holder_does_not_disturb_it(tmp_path: Path) -> None:
    assert find_holder(tmp_path) is None
    with RunLock(tmp_path) as lock:
        for _ in range(20):
            found = find_holder(tmp_path)
            assert found is not None
            assert found.pid == os.getpid()
        lock.renew()
    assert find_holder(tmp_path) is None


def test_the_holder_on_another_machine_is_known_by_its_lease(tmp_path: Path) -> None:
    clock = Clock()
    clock.time = time.time()
    leave_lease(tmp_path, machine="another", clock=clock)
    found = find_holder(tmp_path)
    assert found is not None
    assert found.machine == "another"
    clock.time -= 1000
    (tmp_path / "lock").unlink()
    leave_lease(tmp_path, machine="another", clock=clock)
    assert find_holder(tmp_path) is None


def test_a_folder_that_cannot_be_locked_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"the run '.*/gone' cannot be locked: No such file or directory; use another"):
        RunLock(tmp_path / "gone").acquire()


def test_renewing_and_releasing_a_free_lock_does_nothing(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.renew()
    lock.release()
    assert list(tmp_path.iterdir()) == []
