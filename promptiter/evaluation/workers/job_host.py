"""JobHost: what an executor is given besides jobs. It runs them here, or serves the workers that run them elsewhere.

A worker gets a job as bytes and needs nothing else from this process but answers to its model and tool calls. The run's
gateway answers them here, so cache, ledger, budget, rate limits and redaction are the same wherever a case runs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import orjson

from promptiter.errors import SetupError
from promptiter.evaluation.case_runner import CaseJob, CaseRunner, TracedRow
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.score import Score
from promptiter.evaluation.trace_store import TraceStore
from promptiter.evaluation.workers.job_messages import (
    ExecuteTool,
    ForwardedAnswer,
    ForwardedRequest,
    ForwardedToolCall,
    WorkerLostError,
    pack_runner,
)
from promptiter.evaluation.workers.wire_format import pack, unpack
from promptiter.llm.gateway import Gateway
from promptiter.llm.judgement import keep_repeats
from promptiter.llm.ledger import count_calls
from promptiter.llm.redaction import Redactor
from promptiter.llm.secret import Secret
from traces import Failure, digest
from traces.model import Json, escape_surrogates


class HostHandles:
    """The gateways and secrets of this process, numbered for the workers."""

    def __init__(self, gateway: Gateway) -> None:
        self._items: list[Secret | Gateway] = [gateway]

    def get_number(self, item: Secret | Gateway) -> int:
        for number, known in enumerate(self._items):
            if known is item or (
                isinstance(known, Gateway) and isinstance(item, Gateway) and known.shares_models_with(item)
            ):
                return number
        self._items.append(item)
        return len(self._items) - 1

    def get_secret(self, number: int, shown: str) -> Secret:  # noqa: ARG002 - part of the protocol
        secret = self._items[number]
        assert isinstance(secret, Secret)
        return secret

    def get_gateway(self, number: int) -> Gateway:
        gateway = self._items[number]
        assert isinstance(gateway, Gateway)
        return gateway


class JobHost:
    """Serves the jobs of one evaluation. All methods are called on the event loop of the evaluation.

    `run_here` may also be called on event loops of other threads.
    """

    def __init__(self, runner: CaseRunner, *, gateway: Gateway, trace_store: TraceStore) -> None:
        self.runner = runner
        self.gateway = gateway
        self.trace_store = trace_store
        self._handles = HostHandles(gateway)

    async def run_here(self, job: CaseJob) -> CaseRow:
        """Run a job in this process. Nothing is encoded."""
        return await self._keep(await self.runner.run(job, self.gateway))

    def pack(self, job: CaseJob) -> bytes:
        """A job as bytes, for `run_job` in another process.

        Raises SetupError if the agent or a metric cannot be sent; this is the same for all jobs, so the first call
        raises it before any case has run.
        """
        runner, name = self._packed_runner
        packed = pack(job, self._handles, place=f"case {job.case.id!r}")
        return orjson.dumps({"runner": orjson.Fragment(runner), "digest": name, "job": orjson.Fragment(packed)})

    async def answer(self, call: bytes, execute: ExecuteTool) -> bytes:
        """Answer a call of a worker. `execute` is called if the answer of a tool is not in the cache.

        An error of the call is part of the answer. If this is cancelled, so is the call.
        """
        with self.gateway.active(), keep_repeats(), count_calls() as counted:
            try:
                value, error = await self._answer(self._unpack(call), execute), None
            except Exception as raised:  # noqa: BLE001 - raised in the worker
                value, error = None, raised
        answer = ForwardedAnswer(value=value, error=error, paid=counted.paid, cached=counted.cached)
        try:
            return pack(answer, self._handles, place="an answer")
        except SetupError as unsendable:
            return pack(replace(answer, value=None, error=unsendable), self._handles)

    async def receive(self, result: bytes) -> CaseRow:
        """The row of a result that `run_job` returned. Its traces are stored. Raises what ended the case run."""
        found = self._unpack(result)
        if isinstance(found, BaseException):
            raise found
        return await self._keep(found)

    async def fail(self, job: CaseJob, error: Failure) -> CaseRow:
        """The row of a case that no worker could run to its end."""
        return await self._keep(await self.runner.fail(job, error, self.gateway))

    async def _answer(self, call: ForwardedRequest | ForwardedToolCall, execute: ExecuteTool) -> Any:
        if isinstance(call, ForwardedRequest):
            return await call.gateway.ask(
                call.request, call.site, node_id=call.node_id, is_live=call.is_live, doublings=call.doublings
            )
        is_lost = False

        async def run_in_worker(**_: Json) -> Json:
            nonlocal is_lost
            try:
                executed: ForwardedAnswer = self._unpack(await execute())
            except WorkerLostError:
                is_lost = True
                raise
            if executed.error is not None:
                raise executed.error
            return executed.value

        while True:
            try:
                return await call.gateway.call_tool(
                    call.name, call.arguments, run_in_worker, call.site, node_id=call.node_id, is_live=call.is_live
                )
            except WorkerLostError:
                if is_lost:
                    raise
                # Another worker executed an equal call and ended: this one executes it.

    async def _keep(self, scored: TracedRow) -> CaseRow:
        """Redact the secrets of a row, and store its traces."""
        row, redactor = scored.row, self.gateway.redactor
        return CaseRow(
            case_id=row.case_id,
            eval_set_id=row.eval_set_id,
            repeat=row.repeat,
            scores=tuple([_redact_score(score, redactor) for score in row.scores]),
            output=redactor.redact_known(escape_surrogates(row.output)),
            error=replace(row.error, message=redactor.redact_text(row.error.message)) if row.error else None,
            usage=row.usage,
            trace_digests=tuple([await self.trace_store.put(trace, redactor=redactor) for trace in scored.traces]),
            reads=row.reads,
            figures=row.figures,
            measured=row.measured,
        )

    def _unpack(self, raw: bytes) -> Any:
        return unpack(raw, self._handles)

    @cached_property
    def _packed_runner(self) -> tuple[bytes, str]:
        packed = pack_runner(self.runner, self._handles)
        return packed, digest(packed)


def _redact_score(score: Score, redactor: Redactor) -> Score:
    reason = redactor.redact_known(score.reason)
    turn_reasons = tuple(map(redactor.redact_known, score.turn_reasons))
    is_same = reason is score.reason and turn_reasons == score.turn_reasons
    if is_same and score.error is None and not score.findings:
        return score
    known = redactor.redact_known_json
    findings = (replace(each, expected=known(each.expected), actual=known(each.actual)) for each in score.findings)
    return replace(
        score,
        reason=reason,
        error=None if score.error is None else redactor.redact_text(score.error),
        findings=tuple(findings),
        turn_reasons=turn_reasons,
    )
