from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.function import chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.config.loading import load_agent
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.errors import BadRequestError, RateLimitedError, SetupError
from promptiter.evaluation.case_runner import CaseJob
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import Executor, FinishedJob, LocalExecutor
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.workers.job_host import JobHost
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.retries import Retries
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.profile import Profile
from promptiter.registry import AGENTS
from promptiter.sources import FileSource
from promptiter.testing import office
from promptiter.testing.executor_contract import ExecutorContract
from tests.evaluation import process_agents
from tests.evaluation.process_agents import misbehave
from tests.marks import take_some
from tests.worlds import shop
from tests.worlds.results import drop_measured


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessExecutor]:
    with ProcessExecutor(workers=2) as executor:
        yield executor


@pytest.mark.slow
class TestProcessExecutor(ExecutorContract):
    @pytest.fixture(autouse=True)
    def _share(self, processes: ProcessExecutor) -> None:
        self.processes = processes

    def make_executor(self) -> Executor:
        return self.processes


def has_output(case: EvalCase, run: AgentRun) -> float:
    return float(bool(run.output))


def letters(*texts: str) -> EvalSet:
    return EvalSet(id="s", cases=tuple(EvalCase(id=text, turns=(Turn(user=text),)) for text in texts))


async def echo(request: ModelRequest, *, repeat: int) -> ModelReply:
    return ModelReply(text=f"{request.messages[-1].content}!")


def make_evaluator(executor: Executor, *, gateway: Gateway | None = None, **options: Any) -> Evaluator:
    return Evaluator(
        [FunctionMetric(name="any", function=has_output)],
        gateway=gateway or Gateway(models={"m": echo}),
        executor=executor,
        options=EvaluationOptions(**options),
    )


async def evaluate(executor: Executor, *texts: str, **options: Any) -> Evaluation:
    return await make_evaluator(executor, **options).evaluate(misbehave, letters(*texts))


@pytest.mark.long
async def test_a_process_that_dies_twice_gives_an_error_and_the_others_go_on(processes: ProcessExecutor) -> None:
    found = await evaluate(processes, "leave 7", "signal SIGKILL", "signal SIGSEGV", "hello", "world")
    errors = {row.case_id: str(row.error) for row in found.rows if row.error}
    assert errors == {
        "leave 7": "WorkerLostError: the worker process of this case ended with exit code 7, twice",
        "signal SIGKILL": "WorkerLostError: the worker process of this case was killed by SIGKILL, twice",
        "signal SIGSEGV": "WorkerLostError: the worker process of this case was killed by SIGSEGV, twice",
    }
    assert [row.output for row in found.rows if not row.error] == ["HELLO", "WORLD"]
    assert {score.error for row in found.rows for score in row.scores if row.error} == {
        f"the run failed: {error}" for error in errors.values()
    }


@pytest.mark.slow
async def test_a_case_whose_process_dies_once_is_run_again_and_pays_nothing_twice(
    processes: ProcessExecutor, tmp_path: Path
) -> None:
    gateway = Gateway(models={"m": echo})
    text = f"die_once {tmp_path / 'mark'}"
    found = await make_evaluator(processes, gateway=gateway).evaluate(misbehave, letters(text))
    assert [row.output for row in found.rows] == [f"{text}!"]
    spent = gateway.ledger.snapshot().total
    assert (spent.calls, spent.cache_hits) == (1, 1)


@pytest.mark.long
async def test_500_cases_lose_nothing_if_a_worker_of_4_is_killed() -> None:
    asked: list[str] = []

    async def echo_slowly(request: ModelRequest, *, repeat: int) -> ModelReply:
        asked.append(request.messages[-1].content)
        await asyncio.sleep(0.002)
        return await echo(request, repeat=repeat)

    async def run(executor: Executor, on_row: Callable[[CaseRow], None] = lambda _: None) -> tuple[object, ...]:
        asked.clear()
        gateway = Gateway(models={"m": echo_slowly})
        cases = letters(*(f"catch letter {number}" for number in range(500)))
        found = await make_evaluator(executor, gateway=gateway).evaluate(misbehave, cases, on_row=on_row)
        spent = gateway.ledger.snapshot().total
        return [(row.case_id, row.output, row.passed, row.error) for row in found.rows], sorted(asked), spent.calls

    rows: list[CaseRow] = []
    killed: list[int] = []

    def kill_one(row: CaseRow) -> None:
        rows.append(row)
        if len(rows) == 200:
            killed.append(find_workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    with ProcessExecutor(workers=4) as executor:
        found = await run(executor, kill_one)
    assert is_gone(killed[0])
    assert found == await run(LocalExecutor())
    assert len(asked) == 500


@pytest.mark.slow
async def test_prints_and_reads_of_user_code_do_not_disturb_the_frames(capfd: pytest.CaptureFixture[str]) -> None:
    with ProcessExecutor(workers=1) as executor:
        found = await evaluate(executor, "print a", "print b")
    assert [row.output for row in found.rows] == ["a, input ''", "b, input ''"]
    printed = capfd.readouterr()
    assert "printed a" in printed.out
    assert "written to descriptor 1" in printed.out
    assert "written to descriptor 2" in printed.err


@pytest.mark.slow
async def test_an_agent_that_blocks_beyond_its_deadline_is_ended(processes: ProcessExecutor, tmp_path: Path) -> None:
    found = await evaluate(processes, f"block {tmp_path / 'pid'}", "hello", case_timeout_s=0.1)
    assert [str(row.error) for row in found.rows] == ["TimeoutError: no answer in 0.1 s", "None"]
    assert is_gone(int((tmp_path / "pid").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("word", take_some(["block", "start"], ["block"]))
async def test_a_cancelled_evaluation_ends_its_processes_and_all_that_they_started(word: str, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with ProcessExecutor(workers=1) as executor:
        running = asyncio.ensure_future(evaluate(executor, f"{word} {file}"))
        pid = await asyncio.to_thread(read_pid, file)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert is_gone(pid)
        assert (await evaluate(executor, "hello")).mean_score == 1.0


@pytest.mark.slow
def test_processes_are_reused_by_other_event_loops_and_end_with_the_executor() -> None:
    executor = ProcessExecutor(workers=1)
    first = asyncio.run(evaluate(executor, "hello"))
    [worker] = executor._all
    assert asyncio.run(evaluate(executor, "hello")).rows == first.rows
    assert executor._all == {worker}
    executor.close()
    assert is_gone(worker._process.pid)
    assert asyncio.run(evaluate(executor, "hello")).rows == first.rows
    [worker] = executor._all
    del executor
    assert is_gone(worker._process.pid)


@pytest.mark.slow
async def test_evaluations_of_several_threads_share_the_processes() -> None:
    with ProcessExecutor(workers=1) as executor:
        other = threading.Thread(target=lambda: asyncio.run(evaluate(executor, "hello")))

        async def wait_for_other(request: ModelRequest, *, repeat: int) -> ModelReply:
            other.start()
            while other.is_alive() and not executor._slots._waiters:  # noqa: ASYNC110 - of another thread
                await asyncio.sleep(0.01)
            assert other.is_alive(), "it did not wait for a free process"
            return ModelReply(text="done")

        found = await evaluate(executor, "catch x", gateway=Gateway(models={"m": wait_for_other}))
        assert [row.output for row in found.rows] == ["done"]
        await asyncio.to_thread(other.join)
        assert len(executor._all) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_busy", take_some([True, False], [True]))
def test_processes_end_when_their_host_is_killed(is_busy: bool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    code = (
        "import asyncio, time; from pathlib import Path; from tests.evaluation.test_process_executor import *\n"
        "executor = ProcessExecutor(workers=1)\n"
        f"asyncio.run(evaluate(executor, {f'block {file}' if is_busy else 'hello'!r}))\n"
        f"Path({str(file)!r}).write_text(str([each._process.pid for each in executor._all][0])); time.sleep(600)"
    )
    host = subprocess.Popen([sys.executable, "-c", code])
    try:
        pid = read_pid(file)
    finally:
        host.kill()
        host.wait()
    assert is_gone(pid)


@pytest.mark.slow
async def test_errors_of_models_are_raised_in_the_agent_as_themselves(processes: ProcessExecutor) -> None:
    class OwnError(BadRequestError):
        pass

    async def fail(request: ModelRequest, *, repeat: int) -> ModelReply:
        word = request.messages[-1].content
        raise {"own": OwnError("my own"), "rate": RateLimitedError("slow down", retry_after_s=0.0)}[word]

    gateway = Gateway(models={"m": fail}, retries=Retries(attempts=1))
    found = await make_evaluator(processes, gateway=gateway).evaluate(misbehave, letters("catch own", "catch rate"))
    assert [row.output for row in found.rows] == [
        "caught OwnError: my own [('status', None)]",
        (
            "caught RateLimitedError: 'm' failed 1 times, last: slow down "
            "[('may_be_billed', False), ('retry_after_s', None)]"
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("reference", ["tests.evaluation.process_agents:make_agent", "made_in_tests"])
async def test_an_agent_of_a_factory_is_made_by_it_in_the_worker(reference: str, processes: ProcessExecutor) -> None:
    AGENTS.register("made_in_tests", process_agents.make_agent)
    found = await make_evaluator(processes).evaluate(load_agent(reference), letters("x"))
    assert found.rows[0].output == "made x"


@pytest.mark.long
async def test_each_job_runs_in_a_process_that_knows_nothing_but_its_bytes() -> None:
    expected = await office.make_evaluator().evaluate(office.agent, office.CASES)
    evaluator = office.make_evaluator(FreshProcesses())
    profile = Profile.baseline(office.agent.describe())
    runs = [(case.id, 1) for case in office.CASES.cases]
    rows = [row async for row in evaluator.stream_rows(office.agent, office.CASES, profile, runs=runs)]
    assert [row.case_id for row in rows] == [case.id for case in office.CASES.cases]
    assert sorted(rows, key=lambda row: row.case_id) == [row for row in expected.rows if row.repeat == 1]


class FreshProcesses:
    """Runs each job in a process of its own."""

    async def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        for job in jobs:
            with ProcessExecutor(workers=1) as executor:
                async for finished in executor.run([job], host):
                    yield finished


@pytest.mark.slow
async def test_an_agent_that_differs_in_the_worker_is_refused(
    processes: ProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = chain("changed", *shop.agent().nodes)
    monkeypatch.setattr(process_agents, "changed", other)
    with pytest.raises(SetupError, match=r"process_agents:changed.* has other nodes or values in a worker"):
        await make_evaluator(processes).evaluate(other, letters("x"))


def make_local_agent() -> GraphAgent:
    async def local(text: str) -> str:
        return text

    return chain("local", local)


async def test_what_cannot_be_sent_is_refused_before_any_case_runs(tmp_path: Path) -> None:
    executor = ProcessExecutor(workers=1)
    with pytest.raises(
        SetupError, match=r"the agent\.nodes\[0\]\.function cannot be sent to another process: it is <fu"
    ):
        await make_evaluator(executor).evaluate(make_local_agent(), letters("x"))
    metric = FunctionMetric(name="mine", function=lambda *_: 1.0)
    with pytest.raises(
        SetupError, match=r"the metric 'mine'\.function cannot be .*; define it at the top level of a m"
    ):
        await Evaluator([metric], executor=executor).evaluate(misbehave, letters("x"))

    class Mine:
        name, threshold, needs_reference = "mine", 1.0, False

        async def __call__(self, case: EvalCase, run: AgentRun) -> Any: ...

    with pytest.raises(SetupError, match=r"the metric 'mine' cannot be .* a Mine, .*; assign it to a name at the top"):
        await Evaluator([Mine()], executor=executor).evaluate(misbehave, letters("x"))
    assert not executor._all


async def test_a_process_that_cannot_start_is_a_wrong_setup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with pytest.raises(SetupError, match="a worker process ended with exit code 1 before it was ready"):
        await evaluate(ProcessExecutor(workers=1), "hello")


async def test_an_agent_that_writes_to_one_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("x")
    sources = {"misbehave#instruction": FileSource(tmp_path / "prompt.md")}
    subject = InPlaceAgent(misbehave, sources, state_folder=tmp_path / "state")
    with pytest.raises(SetupError, match="writes candidates to one place"):
        await make_evaluator(ProcessExecutor(workers=1)).evaluate(subject, letters("x"))


@pytest.mark.slow
@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", "if True:"])
def test_the_agent_of_a_script_is_found_and_its_run_must_be_guarded(guard: str, tmp_path: Path) -> None:
    script = tmp_path / "my_script.py"
    script.write_text(
        "import asyncio\n"
        "from promptiter.agents import agent, chain\n"
        "from promptiter.evaluation import *\n"
        "@agent(instruction='x')\n"
        "async def mine(text: str) -> str: return text + '?'\n"
        "def score(case, run): return 1.0\n"
        f"{guard}\n"
        "    cases = EvalSet(id='s', cases=(EvalCase(id='a', turns=(Turn(user='hello'),)),))\n"
        "    subject = Evaluator([FunctionMetric(name='e', function=score)], executor=ProcessExecutor(workers=1))\n"
        "    guarded = chain('guarded', mine)\n"
        "    print(asyncio.run(subject.evaluate(mine, cases)).rows[0].output)\n"
        "    print(asyncio.run(subject.evaluate(guarded, cases)).rows[0].output)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    if guard == "if True:":
        assert "SetupError" in done.stderr
        assert "start it under `if __name__ == '__main__':`" in done.stderr
    else:
        assert (done.stdout, done.returncode) == ("hello?\nhello?\n", 0), done.stderr


@pytest.mark.slow
async def test_a_run_is_the_same_in_other_processes(processes: ProcessExecutor) -> None:
    async def run(executor: Executor) -> tuple[object, object]:
        models = {"large": SimulatedModel(seed=3, compliance=0.9)}
        evaluator = Evaluator(
            [FunctionMetric(name="right", function=shop.score)], gateway=Gateway(models=models), executor=executor
        )
        built = shop.agent(instruction="Answer the customer.", nodes=2)
        request = RunRequest(train=shop.eval_set("train", 6), validation=shop.eval_set("validation", 6), max_rounds=2)
        result = await Engine(built, evaluator).run(request)
        assert len(result.rounds) == 2
        spent = result.measured.spent.total
        return drop_measured(orjson.loads(result.to_json())), (spent.calls, spent.cache_hits, spent.input_tokens)

    assert await run(processes) == await run(LocalExecutor())


def find_workers() -> list[int]:
    """The worker processes of this process."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"worker_process" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def read_pid(file: Path) -> int:
    """The process id that another process writes, within a minute."""
    for _ in range(1200):
        if file.exists() and file.read_text():
            return int(file.read_text())
        time.sleep(0.05)
    raise TimeoutError(file)


def is_gone(pid: int) -> bool:
    """Whether a process has ended, within some seconds."""
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":  # ended, and not yet reaped
            return True
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    return False
