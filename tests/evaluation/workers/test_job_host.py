"""JobHost and JobWorker without processes between them: what is sent, and who answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from promptiter.agents.base import RunContext
from promptiter.errors import SetupError
from promptiter.evaluation.case_runner import CaseJob, CaseRunner
from promptiter.evaluation.executor import Executor, FinishedJob, run_concurrently
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.evaluation.workers.job_host import HostHandles, JobHost
from promptiter.evaluation.workers.job_messages import ExecuteTool, WorkerLostError
from promptiter.evaluation.workers.job_worker import JobWorker, WorkerHandles
from promptiter.evaluation.workers.wire_format import pack, unpack
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.secret import Secret
from promptiter.llm.structured import ask_for
from promptiter.profile import Profile
from promptiter.testing import office
from promptiter.testing.executor_contract import ExecutorContract
from tests.evaluation.process_agents import ask_in_own_loop, ask_other, misbehave


class Pipe:
    """A channel that notes the calls of a worker and passes them to the host."""

    def __init__(self, host: JobHost) -> None:
        self.host = host
        self.calls: list[bytes] = []

    async def call(self, call: bytes, execute: ExecuteTool) -> bytes:
        self.calls.append(call)
        return await asyncio.create_task(self.host.answer(call, execute))


def make_host(gateway: Gateway | None = None, metrics: Any = None) -> JobHost:
    evaluator = office.make_evaluator()
    runner = CaseRunner(agent=office.agent, metrics=metrics or evaluator.metrics, context=RunContext())
    return JobHost(runner, gateway=gateway or evaluator.gateway, trace_store=FileTraceStore())


class BytesExecutor:
    """Sends jobs, calls and results as bytes, to workers in this process."""

    def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
        worker = JobWorker(Pipe(host))

        async def send(job: CaseJob) -> CaseRow:
            return await host.receive(await worker.run(host.pack(job)))

        return run_concurrently(jobs, send, concurrency=3)


@pytest.mark.slow
class TestJobsAsBytes(ExecutorContract):
    def make_executor(self) -> Executor:
        return BytesExecutor()


JOB = CaseJob(case=office.CASES.cases[0], profile=Profile.baseline(office.agent.describe()))


async def test_a_job_is_self_contained_and_its_result_is_the_row_of_this_process() -> None:
    host = make_host()
    pipe = Pipe(host)
    packed = host.pack(JOB)
    assert isinstance(packed, bytes)
    row = await host.receive(await JobWorker(pipe).run(packed))
    assert row == await make_host().run_here(JOB)
    assert len(pipe.calls) == row.measured.paid_calls + 2  # and two of the judge
    assert [await host.trace_store.has(name) for name in row.trace_digests] == [True]


async def test_active_profiles_reach_other_agents_that_the_agent_calls() -> None:
    sent: list[tuple[JobHost, bytes]] = []

    class Sender:
        def run(self, jobs: Iterable[CaseJob], host: JobHost) -> AsyncGenerator[FinishedJob, None]:
            sent.extend((host, host.pack(job)) for job in jobs)
            return run_concurrently((), host.run_here, concurrency=1)

    evaluator, cases = office.make_evaluator(Sender()), replace(office.CASES, cases=office.CASES.cases[:1])
    with Profile.of(misbehave.describe(), {"misbehave#instruction": "lower"}).active():
        await evaluator.evaluate(ask_other, cases)
    [(host, packed), _] = sent
    row = await host.receive(await JobWorker(Pipe(host)).run(packed))  # where no profile is active
    assert (row.output, row.error) == (cases.cases[0].turns[0].user, None)


async def test_the_limit_of_an_answer_that_was_cut_off_is_doubled_by_the_host() -> None:
    model = ScriptedModel([ModelReply(text='{"a', finish_reason="length"), '{"a": 1}'])
    host = make_host(Gateway(models={"m": model}, max_output_tokens=100))
    gateway = WorkerHandles(Pipe(host)).get_gateway(0)
    request = ModelRequest(model="m", messages=(Message("user", "hi"),))
    assert await ask_for(TypeAdapter(dict[str, int]), request, CallSite(role="judge"), gateway) == {"a": 1}
    assert [each.options["max_tokens"] for each in model.requests] == [100, 200]


async def test_secrets_of_a_judge_stay_in_the_host_and_reach_its_model() -> None:
    received: list[ModelRequest] = []

    async def judge(request: ModelRequest, *, repeat: int) -> ModelReply:
        received.append(request)
        return await office.answer_as_judge(request, repeat=repeat)

    gateway = office.make_evaluator().gateway
    gateway.add_model("judge", judge)
    extra = {"extra_fields": {"token": "hunter2-hunter2"}}
    document = {
        "metric_name": "judged",
        "evaluator_name": "llm_rubric_response",
        "criterion": {
            "llm_judge": {
                "judge_model": {"model_name": "judge", **extra},
                "rubrics": [{"id": "price", "content": {"text": "names the price"}}],
            }
        },
    }
    metrics = build_metrics(parse_eval_config([document]), gateway=gateway)
    name = metrics[0].judges[0].model  # type: ignore[attr-defined]
    gateway.add_model(name, judge)
    host = make_host(gateway, metrics)
    pipe = Pipe(host)
    packed = host.pack(JOB)
    row = await host.receive(await JobWorker(pipe).run(packed))
    assert row.scores[0].value == 1.0
    assert b"hunter2" not in packed + b"".join(pipe.calls)
    [request] = received
    token = request.options["extra_body"]["token"]
    assert isinstance(token, Secret)
    assert token.reveal() == "hunter2-hunter2"


async def test_a_judge_with_another_gateway_is_answered_by_that_one() -> None:
    other = office.make_evaluator()
    host = make_host(metrics=other.metrics)
    assert not host.gateway.shares_models_with(other.gateway)
    await host.receive(await JobWorker(Pipe(host)).run(host.pack(JOB)))
    assert [entry.role for entry in other.gateway.ledger.snapshot().entries] == ["judge"]
    assert {entry.role for entry in host.gateway.ledger.snapshot().entries} == {"agent"}


async def test_a_tool_of_a_lost_worker_is_executed_by_another_one_that_waits_for_it() -> None:
    host = make_host()
    waiting = asyncio.Event()

    class LostPipe(Pipe):
        async def call(self, call: bytes, execute: ExecuteTool) -> bytes:
            async def lose() -> bytes:
                waiting.set()
                await asyncio.sleep(0.05)
                raise WorkerLostError("gone")

            return await super().call(call, lose if b"ForwardedToolCall" in call else execute)

    packed = host.pack(JOB)
    lost = asyncio.create_task(JobWorker(LostPipe(host)).run(packed))
    await waiting.wait()
    row = await host.receive(await JobWorker(Pipe(host)).run(packed))
    assert row.error is None
    assert "kettle" in row.output
    assert "WorkerLostError: gone" in str((await host.receive(await lost)).error)


async def test_a_tool_that_returns_no_json_is_a_wrong_setup() -> None:
    gateway = WorkerHandles(Pipe(make_host())).get_gateway(0)
    with pytest.raises(SetupError, match=r"the result of tool 'look_up' cannot be written as JSON; return texts, num"):
        await gateway.call_tool("look_up", {}, lambda: {"a", "b"}, CallSite())


async def test_a_module_that_fails_in_the_worker_is_a_wrong_setup() -> None:
    host = make_host()
    packed = host.pack(JOB).replace(b"promptiter.testing.office:agent", b"json:no_such_name")
    with pytest.raises(SetupError, match="'json:no_such_name' does not exist"):
        await host.receive(await JobWorker(Pipe(host)).run(packed))


async def test_secrets_of_several_hosts_do_not_mix() -> None:
    """A worker serves one host after the other, and each numbers its secrets."""
    handles = WorkerHandles(Pipe(make_host()))
    for shown in ("${A}", "${B}"):
        kept = HostHandles(Gateway())
        secret = Secret("hunter2-hunter2", source=shown)
        received = unpack(pack(secret, kept), handles)
        assert (str(received), received.reveal()) == (shown, "***")
        assert unpack(pack(received, handles), kept) is secret
    with pytest.raises(SetupError, match="made in a worker"):
        pack(Secret("other"), handles)


async def test_calls_of_other_event_loops_are_forwarded_on_that_of_the_worker() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    class LoopPipe(Pipe):
        async def call(self, call: bytes, execute: ExecuteTool) -> bytes:
            loops.add(asyncio.get_running_loop())
            return await super().call(call, execute)

    evaluator = office.make_evaluator()
    evaluator.gateway.add_model("m", ScriptedModel(lambda request: f"{request.messages[-1].content}!"))
    runner = CaseRunner(agent=ask_in_own_loop, metrics=evaluator.metrics[:1], context=RunContext())
    host = JobHost(runner, gateway=evaluator.gateway, trace_store=FileTraceStore())
    worker = JobWorker(LoopPipe(host))
    for case in office.CASES.cases[:2]:
        job = CaseJob(case=case, profile=Profile.baseline(ask_in_own_loop.describe()))
        row = await host.receive(await worker.run(host.pack(job)))
        assert (row.error, row.output) == (None, f"{case.turns[0].user}!")
    assert loops == {asyncio.get_running_loop()}
