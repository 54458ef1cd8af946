"""A run is killed at every event and resumed: same result, no recorded answer is paid for again, no file is left over.

The run is small but has events of every type. In most tests the kill is an exception, which loses what is only in
memory; in some it is a SIGKILL of a process, at an event or at any moment. `make test` takes some of the kills, `make
long` the others.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.record import PatchesWritten
from promptiter.engine.engine import Engine
from promptiter.engine.session import Session
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.policies.stop_limits import MaxEvaluations
from promptiter.policies.stopping import Patience, StopPolicy
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.runs.event_file import EventFile
from promptiter.testing.store_hooks import Killed
from tests.marks import take_some
from tests.worlds import desk
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How, SmallPool, SmallShop, kill_runs_at

pytestmark = pytest.mark.slow

ENVIRON = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
CHUNKS = 16
SIGKILLS = 10


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not killed."""
    folder = tmp_path_factory.mktemp("whole")
    SmallShop().run(folder)
    return folder


@pytest.fixture(scope="session")
def events(whole: Path) -> int:
    count = len(journal_path(whole).read_bytes().splitlines())
    assert {event.type for event in journal(whole).read()} >= {
        "case",
        "losses",
        "backward",
        "aggregation",
        "patches",
        "candidate",
        "decision",
        "ablation",
        "conclusion",
    }
    return count


def journal_path(folder: Path) -> Path:
    [path] = folder.glob("*/journal.jsonl")
    return path


def answer_keys(folder: Path) -> list[str]:
    """The keys of all recorded answers."""
    found = []
    for path in folder.glob("*/calls.jsonl"):
        raw = path.read_bytes()
        found += [line["key"] for line in map(orjson.loads, raw[: raw.rfind(b"\n") + 1].splitlines()) if "key" in line]
    return found


def kill_at(
    folder: Path,
    seq: int,
    how: How,
    *,
    concurrency: int = 4,
    world: type[SmallShop | SmallPool] = SmallShop,
) -> None:
    """Run until an event, then drop everything that is not on disk."""
    with kill_runs_at(seq, how), pytest.raises(Killed):
        world(concurrency=concurrency).run(folder)


def check_resume(
    folder: Path, whole: Path, *, concurrency: int = 4, world: type[SmallShop | SmallPool] = SmallShop
) -> None:
    """The resumed run gives the same result and the same files as `whole`, and asks for no recorded answer."""
    known = answer_keys(folder)
    shop = world(concurrency=concurrency)
    result = shop.run(folder)
    assert read_unmeasured(folder) == read_unmeasured(whole)
    assert shop.model.asked == len(answer_keys(whole)) - len(known)
    assert sorted(answer_keys(folder)) == sorted(answer_keys(whole))
    assert names(folder) == names(whole)
    assert [event.seq for event in journal(folder).read()] == list(
        range(len(journal_path(folder).read_bytes().splitlines()))
    )
    assert result.measured.spent.total.calls == len(answer_keys(whole))


def journal(folder: Path) -> EventFile:
    return EventFile(journal_path(folder))


def names(folder: Path) -> list[str]:
    [run] = folder.glob("[!.]*")
    return sorted(str(path.relative_to(run)) for path in run.rglob("*"))


@pytest.mark.parametrize("chunk", take_some(range(CHUNKS)))
def test_a_run_resumes_from_every_event(chunk: int, whole: Path, events: int, tmp_path: Path) -> None:
    for seq in range(chunk, events, CHUNKS):
        folder = tmp_path / str(seq)
        kill_at(folder, seq, get_args(How)[seq % 3])
        check_resume(folder, whole)


@pytest.mark.long
def test_a_run_that_is_killed_twice_resumes(whole: Path, events: int, tmp_path: Path) -> None:
    rng = random.Random(7)
    for seq in range(rng.randrange(36), events - 1, 36):
        folder = tmp_path / str(seq)
        kill_at(folder, seq, rng.choice(get_args(How)))
        kill_at(folder, rng.randrange(seq + 1, events), rng.choice(get_args(How)))
        check_resume(folder, whole)


@pytest.mark.long
@pytest.mark.parametrize("concurrency", [1, 64])
def test_a_run_resumes_with_another_concurrency(concurrency: int, whole: Path, events: int, tmp_path: Path) -> None:
    for seq in range(3, events, 40):
        folder = tmp_path / str(seq)
        kill_at(folder, seq, "before", concurrency=65 - concurrency)
        check_resume(folder, whole, concurrency=concurrency)


def run_process(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.worlds.starter", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRON)


def check_sigkill(
    folder: Path, seq: int, how: str, whole: Path, *, world: type[SmallShop | SmallPool] = SmallShop
) -> None:
    options = ["--pool"] if world is SmallPool else []
    done = run_process(folder, "--kill-at", str(seq), "--how", how, *options)
    assert done.returncode == -signal.SIGKILL, done.stderr
    check_resume(folder / "runs", whole, world=world)


@pytest.mark.parametrize("sample", take_some(range(SIGKILLS)))
def test_a_run_resumes_after_a_sigkill(sample: int, whole: Path, events: int, tmp_path: Path) -> None:
    rng = random.Random(sample)
    seq = sample * events // SIGKILLS + rng.randrange(events // SIGKILLS)
    check_sigkill(tmp_path, seq, get_args(How)[sample % 3], whole)


@pytest.fixture(scope="session")
def whole_pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a search with a pool that was not killed."""
    folder = tmp_path_factory.mktemp("pool")
    result = SmallPool().run(folder)
    assert [len(each.candidates) for each in result.rounds] == [3, 3]
    assert result.accepted_profile != result.initial_profile
    assert any(len(candidate.parents) == 2 for each in result.rounds for candidate in each.candidates)
    return folder


@pytest.mark.parametrize("chunk", take_some(range(CHUNKS)))
def test_a_search_with_a_pool_resumes_from_every_event(chunk: int, whole_pool: Path, tmp_path: Path) -> None:
    events = len(journal_path(whole_pool).read_bytes().splitlines())
    for seq in range(chunk, events, CHUNKS):
        folder = tmp_path / str(seq)
        kill_at(folder, seq, get_args(How)[seq % 3], world=SmallPool, concurrency=1 + 5 * (seq % 2))
        check_resume(folder, whole_pool, world=SmallPool)


@pytest.mark.parametrize("how", take_some(get_args(How), ("torn",)))
def test_a_search_with_a_pool_resumes_after_a_sigkill(how: str, whole_pool: Path, tmp_path: Path) -> None:
    events = len(journal_path(whole_pool).read_bytes().splitlines())
    seq = random.Random(how).randrange(events)
    check_sigkill(tmp_path, seq, how, whole_pool, world=SmallPool)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_run_resumes_after_sigkills_at_any_moment(seed: int, whole: Path, tmp_path: Path) -> None:
    """Not at events, but in the middle of calls and writes, and after the last event."""
    rng, runs = random.Random(seed), tmp_path / "runs"
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-m", "tests.worlds.starter", str(tmp_path)], env=ENVIRON) as process:
            while process.poll() is None and not list(runs.glob("*/lock")):
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.6))
            process.kill()
    SmallShop().run(runs)
    assert read_unmeasured(runs) == read_unmeasured(whole)
    assert names(runs) == names(whole)


@pytest.mark.parametrize("limit", take_some((4_000, 20_000, 60_000), (4_000,)))
def test_a_full_disk_ends_the_run_with_a_clear_error_and_it_can_be_resumed(
    limit: int, whole: Path, tmp_path: Path
) -> None:
    done = run_process(tmp_path, "--file-limit", str(limit))
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert "resume" in done.stderr
    check_resume(tmp_path / "runs", whole)


@pytest.mark.long
def test_traces_lost_in_a_power_failure_are_recorded_again_at_no_cost(whole: Path, events: int, tmp_path: Path) -> None:
    for seq in range(9, events - 8, 24):
        folder = tmp_path / str(seq)
        kill_at(folder, seq, "before")
        for number, trace in enumerate(sorted(folder.glob("*/traces/*/*"))):
            trace.unlink()
            if number % 2:
                trace.touch()
        known, shop = answer_keys(folder), SmallShop()
        shop.run(folder)
        assert shop.model.asked == len(answer_keys(whole)) - len(known)
        assert without_traces(folder) == without_traces(whole)


def without_traces(folder: Path) -> object:
    found = read_unmeasured(folder)
    assert isinstance(found, tuple)
    return found[:2]


class RandomSearch:
    """A search that uses randomness inside and outside recorded work: both must be the same after a resume."""

    async def search(self, session: Session) -> None:
        surface_id = min(session.targets)
        while not await session.should_stop():
            await session.begin_round()

            async def work() -> PatchesWritten:
                text = f"text {session.rng.random()}"
                patch = SurfacePatch(surface_id=surface_id, value=text, reason="random")
                return PatchesWritten(patches=PatchSet((patch,)))

            found = await session.record(PatchesWritten, work)
            patches = [replace(each, value=f"{each.value} and {session.rng.random()}") for each in found.patches]
            await session.validate(PatchSet(tuple(patches)))
            await session.complete_round()


def desk_run(folder: Path, **changes: object) -> RunResult:
    engine, request = desk.engine(search=RandomSearch()), desk.request(run_id="", max_rounds=2, **changes)
    there = sorted(folder.glob("*/run.json"))
    run = RunDirectory.resume(there[0].parent, engine, request) if there else None
    return (run or RunDirectory.begin(folder, engine, request)).run_sync()


@pytest.mark.long
@pytest.mark.parametrize("stop", [Patience(9), MaxEvaluations(9)], ids=["repeats", "evaluations"])
def test_random_state_and_paid_runs_are_those_of_a_run_that_was_not_killed(stop: StopPolicy, tmp_path: Path) -> None:
    whole = desk_run(tmp_path / "whole", stop=stop)
    for seq in range(1, len(journal_path(tmp_path / "whole").read_bytes().splitlines()), 5):
        folder = tmp_path / str(seq)
        with kill_runs_at(seq), pytest.raises(Killed):
            desk_run(folder, stop=stop)
        again = desk_run(folder, stop=stop)
        assert again == whole
        assert again.measured.paid_case_runs == whole.measured.paid_case_runs


def test_a_cap_holds_for_live_nodes_over_all_processes(tmp_path: Path) -> None:
    asked: list[object] = []
    live = GraphAgent(
        name="bot", nodes=(ModelNode(name="draft", instruction="Draft.", model="scripted", is_live=True),)
    )

    def run(path: Path | None) -> RunDirectory:
        gateway = Gateway(models={"scripted": desk.model(asked.append)}, budget=Budget(max_calls=12))
        engine = Engine(live, desk.evaluator(gateway), search=desk.Tries(desk.DRAFT, desk.DRAFT))
        request = desk.request(run_id="")
        return RunDirectory.resume(path, engine, request) if path else RunDirectory.begin(tmp_path, engine, request)

    path = None
    for seq in (3, 5, 9, 12, 15):
        with kill_runs_at(seq), suppress(Killed):
            directory = run(path)
            path = directory.path
            directory.run_sync()
    result = run(path).run_sync()
    assert result.stop_reason == "max_calls"
    assert result.measured.spent.total.calls == len(asked) <= 12
