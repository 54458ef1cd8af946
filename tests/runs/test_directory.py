from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.engine import interrupts
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.run import RunFailedError
from promptiter.errors import (
    AccessDeniedError,
    ChangedInputsError,
    JournalError,
    ModelUnavailableError,
    RunLockedError,
    SetupError,
)
from promptiter.evaluation.trace_file import TraceFile
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import open_cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.retries import Retries
from promptiter.policies.stop_limits import Deadline
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory, check_folder
from promptiter.runs.lock import RunLock
from promptiter.sources import FileSource
from promptiter.testing.store_hooks import Killed
from tests.marks import take_some
from tests.worlds import desk
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import Shop, cases, kill_runs_at


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}


def begin(tmp_path: Path, *rounds: dict[str, str], **changes: object) -> RunDirectory:
    """A small run with scripted rounds."""
    return RunDirectory.begin(tmp_path / "runs", desk.engine(*rounds), desk.request(run_id="", **changes))


def test_a_wrong_value_of_keep_traces_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    wrong = "some"
    expected = r"keep_traces is 'some'; give one of 'all', 'failed', 'none'"
    with pytest.raises(SetupError, match=expected):
        RunDirectory.begin(tmp_path, desk.engine(), desk.request(run_id=""), keep_traces=wrong)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    path = begin(tmp_path).path
    with pytest.raises(SetupError, match=expected):
        RunDirectory.resume(path, desk.engine(), desk.request(run_id=""), keep_traces=wrong)  # type: ignore[arg-type]


class StopsInRound:
    """An observer that asks to stop while a round is running."""

    def __init__(self, number: int, ask: Callable[[], object]) -> None:
        self.number, self.ask = number, ask

    async def observe(self, event: Event) -> None:
        if event.type == "candidate" and event.round == self.number:
            self.ask()


@pytest.mark.slow
def test_a_run_leaves_the_files_of_the_design(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT, desk.POLISH)
    result = run.run_sync()
    assert result.verdict == "improved_on_validation"
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name == result.run_id
    assert files(run.path) == {
        *("run.json", "journal.jsonl", "calls.jsonl", "traces.jsonl.gz", "result.json", "profiles", "surfaces"),
        *("report.html", "report.md", "trajectory.csv"),
    }
    assert Profile.load(run.path / "profiles" / "best.json") == result.accepted_profile
    assert (run.path / "result.json").read_bytes() == result.to_json() == fold(run.journal.read()).to_json()


@pytest.mark.slow
def test_candidates_are_kept_as_parents_and_patches(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT, desk.WORSE, desk.POLISH)
    result = run.run_sync()
    lines = (run.path / "profiles" / "candidates.jsonl").read_bytes().splitlines()
    found = [orjson.loads(line) for line in lines]
    assert [each["patches"] for each in found] == [desk.DRAFT, desk.WORSE, desk.POLISH]
    assert [each["accepted"] for each in found] == [True, False, True]
    assert found[0]["parents"] == [result.initial_profile.digest]
    assert found[1]["parents"] == found[2]["parents"] == [found[0]["digest"]]
    assert found[2]["digest"] == result.accepted_profile.digest


def test_two_runs_that_begin_in_one_second_have_two_folders(tmp_path: Path) -> None:
    engine, request = desk.engine(desk.DRAFT), desk.request(run_id="same")
    paths = [RunDirectory.begin(tmp_path, engine, request).path.name for _ in range(3)]
    assert paths == ["same", "same~2", "same~3"]


@pytest.mark.slow
def test_resuming_a_finished_run_returns_its_result_and_restores_its_files(tmp_path: Path) -> None:
    shop = Shop()
    first = shop.run(tmp_path)
    before = read_unmeasured(tmp_path)
    [result] = tmp_path.glob("*/result.json")
    result.unlink()
    again = Shop()
    assert again.run(tmp_path) == first
    assert again.model.asked == 0
    assert read_unmeasured(tmp_path) == before


@pytest.mark.slow
def test_a_run_keeps_its_name_when_it_is_resumed_from_inside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt = Interrupt()
    interrupt.stop("a button")
    run = RunDirectory.begin(tmp_path, desk.engine(desk.DRAFT, desk.POLISH), desk.request(run_id="mine"))
    run.run_sync(interrupt=interrupt)
    monkeypatch.chdir(run.path)
    again = RunDirectory.resume(".", desk.engine(desk.DRAFT, desk.POLISH), desk.request(run_id=""))
    assert again.run_sync().verdict == "improved_on_validation"
    assert {event.run_id for event in again.journal.read()} == {"mine"}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"max_rounds": 9}, "max_rounds was 4 and is now 9"),
        ({"train": cases("train", 7)}, "train: case 'keyboard' was removed"),
        ({"seed": 5}, "seed was 0 and is now 5"),
    ],
)
def test_changed_inputs_are_refused_and_named(changed: dict[str, object], expected: str, tmp_path: Path) -> None:
    shop = Shop()
    run = RunDirectory.begin(tmp_path, shop.engine, shop.request)
    other = replace(shop.request, **changed)  # type: ignore[arg-type]
    with pytest.raises(ChangedInputsError, match="cannot be resumed, its inputs have changed") as error:
        RunDirectory.resume(run.path, shop.engine, other)
    assert expected.partition("'")[0] in error.value.changes[0]
    assert "rerun" in str(error.value)


@pytest.mark.slow
def test_a_second_process_on_the_same_run_is_refused(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT)
    with RunLock(run.path), pytest.raises(RunLockedError, match=f"locked by process {os.getpid()}"):
        run.run_sync()
    assert run.run_sync().verdict == "improved_on_validation"


@pytest.mark.slow
def test_the_stop_file_ends_a_run_after_the_work_in_progress_and_it_can_be_resumed(tmp_path: Path) -> None:
    rounds = (desk.DRAFT, desk.POLISH)
    run = begin(tmp_path, *rounds)
    stopped = run.run_sync(observers=[StopsInRound(1, (run.path / "stop").touch)])
    assert (stopped.status, stopped.stop_reason, stopped.current_round) == ("succeeded", "user_stop", 1)
    assert stopped.stop is not None
    assert stopped.stop.text == "stopped on request: a file 'stop' in the run's folder"
    assert stopped.rounds[0].decision is None
    resumed = RunDirectory.resume(run.path, desk.engine(*rounds), desk.request(run_id="")).run_sync()
    assert resumed == begin(tmp_path / "other", *rounds).run_sync()
    assert not (run.path / "stop").exists()


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> set[signal.Signals]:
    """The signals that this process has received in a run. Those of a test are forgotten after it."""
    signals: set[signal.Signals] = set()
    monkeypatch.setattr(interrupts, "_received", signals)
    return signals


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_after_the_work_in_progress_and_it_can_be_resumed(
    number: signal.Signals, tmp_path: Path, received: set[signal.Signals]
) -> None:
    rounds = (desk.DRAFT, desk.POLISH)
    messages: list[str] = []
    run = begin(tmp_path, *rounds)
    stopped = run.run_sync(observers=[StopsInRound(1, lambda: os.kill(os.getpid(), number))], notify=messages.append)
    assert (stopped.status, stopped.stop_reason, stopped.current_round) == ("succeeded", "user_stop", 1)
    name = "Ctrl-C" if number == signal.SIGINT else "SIGTERM"
    assert messages == [f"{name}: finishing the work in progress; a second one stops at once"]
    assert (run.path / "result.json").exists()
    received.clear()  # another process resumes it
    assert RunDirectory.resume(run.path, desk.engine(*rounds), desk.request(run_id="")).run_sync().current_round == 2


@pytest.mark.slow
def test_a_loop_over_runs_ends_on_sigterm(tmp_path: Path, received: set[signal.Signals]) -> None:
    stops = StopsInRound(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert begin(tmp_path, desk.DRAFT).run_sync(observers=[stops]).stop_reason == "user_stop"
    with pytest.raises(SystemExit, match="143"):
        begin(tmp_path, desk.DRAFT).run_sync()
    assert received == {signal.SIGTERM}


@pytest.mark.slow
def test_a_second_signal_stops_at_once_with_a_complete_journal_and_result(
    tmp_path: Path, received: set[signal.Signals]
) -> None:
    rounds = (desk.DRAFT, desk.POLISH)
    run = begin(tmp_path, *rounds)

    def twice() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)

    cut = run.run_sync(observers=[StopsInRound(2, twice)])
    assert cut.status == "cancelled"
    assert cut.rounds[1].decision is None
    assert orjson.loads((run.path / "result.json").read_bytes())["status"] == "cancelled"
    assert list(run.journal.read())[-1].type == "run_completed"
    received.clear()  # another process resumes it
    resumed = RunDirectory.resume(run.path, desk.engine(*rounds), desk.request(run_id="")).run_sync()
    assert resumed == begin(tmp_path / "other", *rounds).run_sync()


@pytest.mark.slow
def test_a_failed_run_can_be_resumed_when_the_cause_is_gone(tmp_path: Path) -> None:
    def breaks(number: int) -> None:
        if number == 2 and is_down:
            raise OSError("the network is down")

    def engine() -> Engine:
        return desk.engine(search=desk.Tries(desk.DRAFT, desk.POLISH, at_round=breaks))

    is_down = True
    run = RunDirectory.begin(tmp_path, engine(), desk.request(run_id=""))
    with pytest.raises(RunFailedError, match="the network is down"):
        run.run_sync()
    assert orjson.loads((run.path / "result.json").read_bytes())["status"] == "failed"
    is_down = False
    result = RunDirectory.resume(run.path, engine(), desk.request(run_id="")).run_sync()
    assert (result.status, result.error, result.verdict) == ("succeeded", None, "improved_on_validation")


class Hours:
    """A clock by which each round takes an hour."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def observe(self, event: Event) -> None:
        self.now_s += 3600.0 * (event.type == "decision")


def test_a_deadline_counts_the_working_time_of_all_processes(tmp_path: Path) -> None:
    request = desk.request(run_id="", stop=Deadline(minutes=110))

    def engine(clock: Hours) -> Engine:
        return Engine(desk.agent(), desk.evaluator(), search=desk.Tries(*[desk.WORSE] * 4), clock=clock)

    first, second = Hours(), Hours()
    run = RunDirectory.begin(tmp_path, engine(first), request)
    with kill_runs_at(28), pytest.raises(Killed):
        run.run_sync(observers=[first])
    assert first.now_s == 3600.0
    result = RunDirectory.resume(run.path, engine(second), request).run_sync(observers=[second])
    assert (result.stop_reason, result.current_round) == ("deadline", 2)
    assert result.measured.duration_s == 7200.0


@pytest.mark.slow
def test_result_files_that_cannot_be_written_do_not_make_a_run_fail(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT)
    (run.path / "profiles").touch()
    assert run.run_sync().verdict == "improved_on_validation"
    assert "the result could not be written" in run.notes[-1]


@pytest.mark.slow
def test_a_torn_last_line_is_dropped_and_reported(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT, desk.POLISH)
    whole = run.run_sync()
    path = run.path / "journal.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    resumed = RunDirectory.resume(run.path, desk.engine(desk.DRAFT, desk.POLISH), desk.request(run_id=""))
    assert resumed.run_sync() == whole
    [note] = resumed.notes
    assert "was torn by a crash; the run continues from the line before it" in note


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "left"), [("all", True), ("failed", True), ("none", False)])
def test_traces_are_kept_as_asked(keep: str, left: bool, tmp_path: Path) -> None:
    engine, request = desk.engine(desk.DRAFT, desk.POLISH), desk.request(run_id="")
    run = RunDirectory.begin(tmp_path, engine, request, keep_traces=keep)  # type: ignore[arg-type]
    result = run.run_sync()
    traces = TraceFile(run.path / "traces.jsonl.gz")
    assert result.accepted is not None
    assert result.baseline is not None
    passed, failed = (
        {name for row in each.rows for name in row.trace_digests} for each in (result.accepted, result.baseline)
    )
    assert {name in traces for name in passed} == {keep == "all"}
    assert {name in traces for name in failed} == {left}


@pytest.mark.slow
def test_a_shared_cache_serves_other_runs_and_each_run_has_its_own_answers(tmp_path: Path) -> None:
    cache = open_cache(tmp_path / "shared.sqlite")
    first, second = Shop(cache=cache), Shop(cache=cache)
    result = first.run(tmp_path / "one")
    again = second.run(tmp_path / "two")
    assert again == result
    assert second.model.asked == 0
    assert again.measured.spent.total.calls == 0
    cache.close()
    (tmp_path / "shared.sqlite").unlink()
    [journal] = (tmp_path / "two").glob("*/journal.jsonl")
    journal.unlink()
    (tmp_path / "two" / ".case_uses.jsonl").unlink()
    alone = Shop()
    assert alone.run(tmp_path / "two") == result
    assert alone.model.asked == 0


@pytest.mark.slow
def test_a_cap_holds_over_all_processes_of_a_run(tmp_path: Path) -> None:
    with kill_runs_at(12), pytest.raises(Killed):
        Shop(budget=Budget(max_calls=100)).run(tmp_path)
    result = Shop(budget=Budget(max_calls=100)).run(tmp_path)
    assert result.stop_reason == "max_calls"
    assert result.measured.spent.total.calls <= 100


@pytest.mark.slow
def test_a_candidate_in_place_is_gone_when_the_run_ends(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Answer.")

    def bot(question: str) -> str:
        return f"{question} careful careful" if "careful" in prompt.read_text() else question

    agent = InPlaceAgent(bot, {"bot#instruction": FileSource(prompt)}, state_folder=tmp_path / "state")
    engine = Engine(agent, desk.evaluator(), search=desk.Tries({"bot#instruction": "Be careful."}))
    result = RunDirectory.begin(tmp_path / "runs", engine, desk.request(run_id="")).run_sync()
    assert result.verdict == "improved_on_validation"
    assert prompt.read_text() == "Answer."
    assert not (tmp_path / "state" / "in_place.json").exists()


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="is not a run"):
        RunDirectory.resume(tmp_path, desk.engine(), desk.request())


def test_an_unusable_folder_is_reported_before_anything_is_spent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=r"'.*file' is a file; choose another folder"):
        check_folder(tmp_path / "file" / "runs")
    check_folder(tmp_path / "new" / "runs")
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_run_inside_a_running_loop_can_be_stopped_from_another_thread(tmp_path: Path) -> None:
    run, interrupt = begin(tmp_path, desk.DRAFT, desk.POLISH), Interrupt()

    async def notebook() -> RunResult:
        return run.run_sync(interrupt=interrupt, observers=[StopsInRound(1, lambda: interrupt.stop("the button"))])

    result = asyncio.run(notebook())
    assert result.stop_reason == "user_stop"


BOT = """
import os, signal, sys
from pathlib import Path
from promptiter import Engine, InPlaceAgent
from promptiter.agents import FileSource
from promptiter.runs import RunDirectory
from tests.worlds import desk

folder, kill_at = Path(sys.argv[1]), int(sys.argv[2])
prompt, asked = folder / "prompt.txt", 0


def bot(question):
    global asked
    asked += 1
    if asked == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{question} careful careful" if "careful" in prompt.read_text() else question


agent = InPlaceAgent(bot, {"bot#instruction": FileSource(prompt)}, state_folder=folder / "state")
tries = [{"bot#instruction": "Answer badly."}, {"bot#instruction": "Be careful."}]
engine = Engine(agent, desk.evaluator(concurrency=1), search=desk.Tries(*tries))
request, there = desk.request(run_id=""), sorted((folder / "runs").glob("[!.]*"))
run = RunDirectory.resume(there[0], engine, request) if there else RunDirectory.begin(folder / "runs", engine, request)
print(run.run_sync().verdict, asked)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", take_some((1, 3, 6, 8, 10), (8,)))
def test_a_run_in_place_that_is_killed_leaves_the_baseline_or_is_restored_by_resume(
    kill_at: int, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"Answer.\r\n")
    (tmp_path / "bot.py").write_text(BOT)

    def process(kill_at: int) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(tmp_path / "bot.py"), str(tmp_path), str(kill_at)]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)

    assert process(kill_at).returncode == -signal.SIGKILL
    done = process(0)
    assert done.stdout == f"improved_on_validation {30 - kill_at + 1}\n", done.stderr
    assert (tmp_path / "prompt.txt").read_bytes() == b"Answer.\r\n"
    assert not [path for path in tmp_path.iterdir() if "promptiter-lock" in path.name]


@pytest.mark.slow
def test_calls_in_flight_at_a_kill_are_counted_as_lost(tmp_path: Path) -> None:
    """The process dies inside a call: what it asked for is asked again, and the summary says so."""
    run = begin(tmp_path, desk.DRAFT)
    calls = run.path / "calls.jsonl"
    run.run_sync()
    lines = calls.read_bytes().splitlines(keepends=True)
    last_asked = max(number for number, line in enumerate(lines) if b'"asked"' in line)
    left = lines[: last_asked + 1]
    lost = sum(b'"asked"' in line for line in left) - sum(b'"paid"' in line for line in left)
    assert lost > 0
    calls.write_bytes(b"".join(left))
    (run.path / "journal.jsonl").unlink()
    result = RunDirectory.resume(run.path, desk.engine(desk.DRAFT), desk.request(run_id="")).run_sync()
    spent = result.measured.spent.total
    assert (spent.lost_calls, spent.calls) == (lost, len(lines) // 2)


@pytest.mark.slow
def test_a_run_out_of_budget_resumes_with_a_larger_one(tmp_path: Path) -> None:
    def run(most: int) -> RunDirectory:
        shop = Shop(budget=Budget(max_calls=most))
        return shop.directory(tmp_path / "runs")

    ended = run(60).run_sync()
    assert (ended.status, ended.stop_reason, ended.is_final) == ("succeeded", "max_calls", False)
    again = run(60).run_sync()
    assert again == ended
    resumed = run(600).run_sync()
    assert (resumed.verdict, resumed.is_final) == ("improved_on_validation", True)
    assert resumed == Shop().run(tmp_path / "other")
    assert resumed.measured.spent.total.calls == 398


class Outage:
    """A model whose service fails from one call on, until it is fixed."""

    def __init__(self, error: Exception, *, after: int) -> None:
        self.error, self.after, self.calls = error, after, 0

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        self.calls += 1
        if self.calls > self.after:
            raise self.error
        return await desk.model()(request, repeat=repeat)


@pytest.mark.slow
@pytest.mark.parametrize("error", [AccessDeniedError("the key has expired"), ModelUnavailableError("no route")])
def test_an_outage_fails_the_run_and_it_resumes_when_the_service_is_back(error: Exception, tmp_path: Path) -> None:
    def run(model: Outage) -> RunDirectory:
        gateway = Gateway(models={"scripted": model}, retries=Retries(attempts=1))
        engine, request = desk.engine(desk.DRAFT, desk.POLISH, gateway=gateway), desk.request(run_id="")
        for header in (tmp_path / "runs").glob("*/run.json"):
            return RunDirectory.resume(header.parent, engine, request)
        return RunDirectory.begin(tmp_path / "runs", engine, request)

    with pytest.raises(RunFailedError, match="case runs were lost to such errors; fix the cause, then run"):
        run(Outage(error, after=6)).run_sync()
    result = run(Outage(error, after=99)).run_sync()
    assert result == begin(tmp_path / "other", desk.DRAFT, desk.POLISH).run_sync()


def test_a_few_cases_that_a_service_lost_are_results(tmp_path: Path) -> None:
    gateway = Gateway(models={"scripted": Outage(ModelUnavailableError("no"), after=14)}, retries=Retries(attempts=1))
    engine = desk.engine(gateway=gateway)
    many = desk.request(run_id="", validation=desk.eval_set("validation", 8), max_rounds=0)
    result = RunDirectory.begin(tmp_path, engine, many).run_sync()
    assert result.baseline is not None
    assert sum(row.error is not None for row in result.baseline.rows) in (1, 2)


class Exits:
    """An observer that ends the program, as rich does when its output pipe is closed."""

    async def observe(self, _: Event) -> None:
        raise SystemExit(1)


@pytest.mark.slow
def test_an_observer_that_exits_does_not_end_the_run(tmp_path: Path) -> None:
    result = begin(tmp_path, desk.DRAFT).run_sync(observers=[Exits()])
    assert result.verdict == "improved_on_validation"
    assert "observer Exits failed at event 0" in result.measured.problems[0]


def test_a_journal_that_is_removed_ends_the_run(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT, desk.POLISH)
    with pytest.raises(JournalError, match="was removed while the run was writing it"):
        run.run_sync(observers=[StopsInRound(1, (run.path / "journal.jsonl").unlink)])


@pytest.mark.slow
def test_foreign_files_beside_the_surfaces_stay(tmp_path: Path) -> None:
    run = begin(tmp_path, desk.DRAFT)
    (run.path / "surfaces" / "mine").mkdir(parents=True)
    (run.path / "surfaces" / "mine.md").write_text("mine")
    run.run_sync()
    assert (run.path / "surfaces" / "mine.md").read_text() == "mine"
    assert (run.path / "result.json").exists()


@pytest.mark.slow
def test_a_hangup_stops_the_run_unless_it_is_ignored(tmp_path: Path, received: set[signal.Signals]) -> None:
    run = begin(tmp_path, desk.DRAFT, desk.POLISH)
    stopped = run.run_sync(observers=[StopsInRound(1, lambda: os.kill(os.getpid(), signal.SIGHUP))])
    assert stopped.stop_reason == "user_stop"
    received.clear()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        again = begin(tmp_path, desk.DRAFT, desk.POLISH)
        result = again.run_sync(observers=[StopsInRound(1, lambda: os.kill(os.getpid(), signal.SIGHUP))])
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert result.stop_reason != "user_stop"
