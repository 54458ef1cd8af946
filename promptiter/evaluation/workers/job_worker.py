"""JobWorker: runs jobs that arrive as bytes. It builds the agent and the metrics, and forwards calls to the host."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import orjson

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext, run_agent
from promptiter.concurrency import HomeLoop
from promptiter.errors import PromptiterError, SetupError
from promptiter.evaluation.case_runner import GRACE_S, CaseJob, CaseRunner
from promptiter.evaluation.workers.job_messages import (
    ExecuteTool,
    ForwardedAnswer,
    ForwardedRequest,
    ForwardedToolCall,
    name_agent,
    unpack_runner,
)
from promptiter.evaluation.workers.wire_format import pack, unpack, unpack_plain
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import record_call
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest
from promptiter.llm.redaction import MASK, Redactor
from promptiter.llm.secret import Secret
from promptiter.llm.tools import ToolFunction, execute_tool
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces.model import Json

MAX_RUNNERS = 8
"""A worker keeps the agents and metrics of this many evaluations."""


class HostChannel(Protocol):
    """The way from a worker to its host."""

    async def call(self, call: bytes, execute: ExecuteTool) -> bytes:
        """Let `JobHost.answer` answer a call. `execute` is its second argument. Called many times at once."""


class JobWorker:
    """Runs jobs in a process without a gateway of its own. `on_overdue` is called if an agent blocks the event loop.

    That is in another thread, some time after the deadline that the agent missed.
    """

    def __init__(self, channel: HostChannel, *, on_overdue: Callable[[], None] | None = None) -> None:
        self._handles = WorkerHandles(channel)
        self._on_overdue = on_overdue
        self._runners: dict[str, CaseRunner] = {}

    async def run(self, raw: bytes) -> bytes:
        """Run a job that `JobHost.pack` returned. The result is for `JobHost.receive`, also if it is an error."""
        return await self.prepare(raw)()

    def prepare(self, raw: bytes) -> Callable[[], Coroutine[Any, Any, bytes]]:
        """Build what a job needs, and return the function that runs it.

        This imports the user's modules. Some of these start an event loop of their own, which works only where no other
        one is running.
        """
        try:
            document = orjson.loads(raw)
            runner = self._find_runner(document)
            job = unpack_plain(document["job"], self._handles)
        except Exception as error:  # noqa: BLE001 - raised in the host
            return partial(self._fail, error)
        return partial(self._run, runner, job)

    async def _run(self, runner: CaseRunner, job: CaseJob) -> bytes:
        try:
            gateway = self._handles.get_gateway(0)
            self._handles.bind_to_running_loop()
            return pack(await runner.run(job, gateway), self._handles)
        except Exception as error:  # noqa: BLE001 - raised in the host
            return await self._fail(error)

    async def _fail(self, error: Exception) -> bytes:
        if not isinstance(error, PromptiterError):
            where = "".join(traceback.format_exception(error))
            error.add_note(f"In the worker process:\n{where}")
        return pack(error, self._handles)

    def _find_runner(self, document: Json) -> CaseRunner:
        name = document["digest"]
        if name not in self._runners:
            if len(self._runners) >= MAX_RUNNERS:
                self._runners.clear()
            runner = _build_runner(document["runner"], self._handles)
            if self._on_overdue is not None:
                runner = replace(runner, agent=_WatchedAgent(runner.agent, self._on_overdue))
            self._runners[name] = runner
        return self._runners[name]


def _build_runner(plain: Json, handles: WorkerHandles) -> CaseRunner:
    try:
        return unpack_runner(plain, handles)
    except PromptiterError:
        raise
    except (Exception, SystemExit) as error:
        raise SetupError(
            f"a worker process cannot build {name_agent(plain)} and the metrics: {type(error).__name__}: {error}"
        ) from error


class WorkerHandles:
    """Gateways that forward their calls, and secrets of which only the number is known."""

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._gateways: dict[int, Gateway] = {}
        self._secrets: dict[tuple[int, str], Secret] = {}

    def get_number(self, item: Secret | Gateway) -> int:
        if isinstance(item, ForwardingGateway):
            return item.number
        found = (number for (number, _), secret in self._secrets.items() if secret is item)
        if (number := next(found, None)) is None:
            raise SetupError("a secret or a gateway that was made in a worker cannot be sent to the host")
        return number

    def get_secret(self, number: int, shown: str) -> Secret:
        return self._secrets.setdefault((number, shown), Secret(MASK, source=shown))

    def get_gateway(self, number: int) -> Gateway:
        if number not in self._gateways:
            self._gateways[number] = ForwardingGateway(number, self._channel, self)
        return self._gateways[number]

    def bind_to_running_loop(self) -> None:
        """Forward calls on the running event loop, from whichever thread they come."""
        for gateway in self._gateways.values():
            gateway.bind_to_running_loop()


class ForwardingGateway(Gateway):
    """A gateway of the host: each call is forwarded to it. Tools are executed here if their answer is not known."""

    def __init__(self, number: int, channel: HostChannel, handles: WorkerHandles) -> None:
        super().__init__(redactor=Redactor())  # the host redacts
        self.number = number
        self._channel = channel
        self._handles = handles
        self._home = HomeLoop()

    def bind_to_running_loop(self) -> None:
        """Forward calls on the running event loop, even if a thread that an earlier case left behind has one too."""
        self._home.bind(replace=True)

    async def _ask(
        self, request: ModelRequest, site: CallSite, node_id: str, *, is_live: bool, doublings: int
    ) -> ModelReply:
        call = ForwardedRequest(
            gateway=self, request=request, site=site, node_id=node_id, is_live=is_live, doublings=doublings
        )
        reply: ModelReply = await self._forward(call, _refuse_to_execute)
        return reply

    async def _call_tool(
        self, name: str, arguments: Json, function: ToolFunction, site: CallSite, node_id: str, *, is_live: bool
    ) -> Json:
        call = ForwardedToolCall(
            gateway=self, name=name, arguments=arguments, site=site, node_id=node_id, is_live=is_live
        )

        async def execute() -> bytes:
            try:
                answer = ForwardedAnswer(value=await execute_tool(function, arguments))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - raised in the host
                answer = ForwardedAnswer(error=error)
            try:
                return pack(answer, self._handles)
            except SetupError:
                message = f"the result of tool {name!r} cannot be written as JSON"
                advice = "return texts, numbers, lists, and dicts with text keys"
                return pack(ForwardedAnswer(error=SetupError(f"{message}; {advice}")), self._handles)

        return await self._forward(call, execute)

    async def _forward(self, call: ForwardedRequest | ForwardedToolCall, execute: ExecuteTool) -> Json:
        raw = pack(call, self._handles, place=f"a call of node {call.node_id!r}")
        answer: ForwardedAnswer = unpack(await self._channel.call(raw, execute), self._handles)
        for paid, count in ((True, answer.paid), (False, answer.cached)):
            for _ in range(count):
                record_call(paid=paid)
        if answer.error is not None:
            raise answer.error
        return answer.value


class _WatchedAgent:
    """An agent with a timer in another thread, for code that holds the event loop beyond its deadline."""

    def __init__(self, agent: Agent, on_overdue: Callable[[], None]) -> None:
        self.agent = agent
        self._on_overdue = on_overdue

    def describe(self) -> StructureSnapshot:
        return self.agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        if context.deadline_s is None:
            return await run_agent(self.agent, case, profile, context)
        timer = threading.Timer(context.deadline_s + 2 * GRACE_S, self._on_overdue)
        timer.daemon = True
        timer.start()
        try:
            return await run_agent(self.agent, case, profile, context)
        finally:
            timer.cancel()


async def _refuse_to_execute() -> bytes:
    raise RuntimeError("a model call is never executed in a worker")
