"""Evaluations: the case runs of one run. Each row is recorded before it is used, so no case run is repeated.

Several evaluations may run at once, as one batch under one concurrency limit, with their case runs interleaved. Their
numbers are fixed before the first case starts, and rows carry the number, so the order in which cases finish changes
nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, RestoringAgent
from promptiter.engine.metric_calls import MetricCall, MetricCalls, name_call
from promptiter.engine.run_order import PlacedRun, interleave_runs
from promptiter.errors import BrokenSetupError, OutageError
from promptiter.evaluation.case_runner import CaseJob
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.surface_reads import Reads, merge_reads
from promptiter.profile import Profile
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Phase
from promptiter.runlog.payloads import CaseFinished, EvaluationFinished, EvaluationMeasured, EvaluationStarted
from promptiter.wording import plural
from traces import digest

FIRST_RUNS = 3
"""The case runs of a baseline that are made before the others."""

MIN_LOST_IN_A_ROW = 5
"""After this number of lost case runs in a row, the limit for lost runs is checked: the service seems to be down."""

RERUNS = 2
"""How often a case run that was lost to an outage is made again, after the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Cases to run under a profile. Without `runs`, all repeats of all cases, except for those that are kept.

    `kept` are rows that are known: of another profile that cannot differ, or of the same one. They are recorded with
    the others. `without` names the changes that an ablation leaves out, for observers.
    """

    eval_set: EvalSet
    profile: Profile
    phase: Phase
    runs: Sequence[CaseRepeat] | None = None
    kept: Sequence[CaseRow] = ()
    without: tuple[str, ...] = ()


class Evaluations:
    """Runs cases, one batch of evaluations at a time. `paid` counts evaluated cases; repeats of a case count once.

    `reads` has what each case has read so far, in any of its runs; `failed` are the cases that failed in one of them.
    An evaluation that does not fit into `metric_calls` is not begun.
    """

    def __init__(
        self, log: EventLog, agent: Agent, evaluator: Evaluator, *, metric_calls: MetricCalls | None = None
    ) -> None:
        self.case_runs = 0
        self.paid_case_runs = 0
        self.paid = 0
        self.metric_calls = metric_calls or MetricCalls(None)
        self.reads: dict[str, Reads | None] = {}
        self.failed: set[str] = set()
        self._log = log
        self._agent = agent
        self._evaluator = evaluator
        self._number = 0

    def count_replays(self, replays: int) -> None:
        """Count case runs that were made outside an evaluation, such as those of a gradient check."""
        self.paid += replays

    async def evaluate(self, request: EvaluationRequest) -> Evaluation:
        """Run the cases of one request, except for rows in the log."""
        [evaluation] = await self.evaluate_many([request])
        return evaluation

    async def evaluate_many(self, requests: Sequence[EvaluationRequest]) -> list[Evaluation]:
        """Run the cases of several requests at once, and return their evaluations in the order of the requests.

        Evaluations that are compared belong in one batch, so that what changes over time affects all of them alike.
        All requests are checked before the first is recorded: a run whose search is fixed can be resumed.
        """
        self._evaluator.check(self._agent, ((each.eval_set, each.profile) for each in requests))
        batch = [self._number_request(request) for request in requests]
        self.metric_calls.check(each.name_call(case_id) for each in batch for case_id, _ in each.runs)
        marks = [await self._start(each) for each in batch]
        await self._replay(batch)
        if any(each.result is None for each in batch):
            await self._run(batch, paid_since=min(marks))
        return [each.get_result() for each in batch]

    def _number_request(self, request: EvaluationRequest) -> _OpenEvaluation:
        runs = request.runs
        if runs is None:
            kept = {(row.case_id, row.repeat) for row in request.kept}
            wanted = list_case_runs(request.eval_set, range(self._evaluator.options.repeats))
            runs = [run for run in wanted if run not in kept]
        number, self._number = self._number, self._number + 1
        return _OpenEvaluation(number, request, runs)

    async def _start(self, each: _OpenEvaluation) -> int:
        """Record the start, and return the position in the cache at that time."""
        request, eval_set = each.request, each.request.eval_set
        started = EvaluationStarted(
            evaluation=each.number,
            eval_set_id=eval_set.id,
            profile_digest=request.profile.digest,
            cases=len({case_id for case_id, _ in each.all_runs}),
            runs=len(each.all_runs),
            without=request.without,
            measured=EvaluationMeasured(mark=await self._evaluator.gateway.cache.mark()),
        )
        content = [eval_set.id, eval_set.content_digest, request.profile.digest]
        self._log.phase = request.phase
        recorded = await self._log.note(started, request=digest([*content, *map(list, each.runs), len(request.kept)]))
        return recorded.measured.mark

    async def _replay(self, batch: Sequence[_OpenEvaluation]) -> None:
        """Take the rows and ends of these evaluations from the log, in whatever order they were recorded."""
        by_number = {each.number: each for each in batch}
        while any(each.result is None for each in batch):
            if (finished := await self._log.take_any(CaseFinished)) is not None:
                self._keep(by_number[finished.evaluation], finished.row)
            elif (ended := await self._log.take(EvaluationFinished)) is not None:
                self._finish(by_number[ended.evaluation])
            else:
                return

    async def _run(self, batch: Sequence[_OpenEvaluation], *, paid_since: int) -> None:
        """Run the missing cases. Answers newer than a mark of the cache count as paid, by a killed process too."""
        open_ones = [each for each in batch if each.result is None]
        evaluator = self._evaluator.with_gateway(self._evaluator.gateway.counting_paid_since(paid_since))
        for each in open_ones:
            for row in each.request.kept:
                if (row.case_id, row.repeat) not in each.rows:
                    await self._record(each, _as_kept(row))
            if each.request.phase == "baseline" and not each.rows:
                for row in await self._try_first_cases(each, evaluator):
                    await self._record(each, row)
        await self._record_ends(open_ones)
        async with aclosing(self._stream_rows(batch, evaluator)) as rows:
            async for each, row in rows:
                await self._record(each, row)
                await self._record_ends(open_ones)
        if any(each.result is None for each in batch):
            evaluator.gateway.check_stop()

    async def _try_first_cases(self, each: _OpenEvaluation, evaluator: Evaluator) -> list[CaseRow]:
        """Run the first cases before the others: if the code or a setting makes all of them fail, no others are paid.

        Raises BrokenSetupError then. A mistake in the agent's code counts if all of them fail at the same line. A
        judge that gives no usable answer for any of them counts, too. Nothing is recorded, so the run starts with these
        cases when it is resumed. Rows that an outage made fail are left out, and so are run again with the others.
        """
        runs = [(0, run) for run in each.runs[:FIRST_RUNS]]
        rows = [row async for _, row in self._make_runs([each], runs, evaluator)]
        if len(rows) < len(runs):
            evaluator.gateway.check_stop()
        errors = [row.setup_error or row.code_error for row in rows]
        lines = {row.code_error.where for row in rows if row.code_error is not None}
        if errors and all(errors) and len(lines) <= 1:
            raise BrokenSetupError(
                f"the first {plural(len(rows), 'case run')} failed by a mistake in the code or the settings, "
                f"and no other was made: {errors[0]}"
            )
        judged = [row.judge_error for row in rows]
        if judged and all(judged):
            count = plural(len(rows), "case run")
            raise BrokenSetupError(f"the first {count} could not be scored, and no other was made: {judged[0]}")
        return [row for row in rows if row.outage is None]

    async def _record(self, each: _OpenEvaluation, row: CaseRow) -> None:
        self._log.phase = each.request.phase
        recorded = await self._log.append(CaseFinished(evaluation=each.number, row=row))
        self._keep(each, recorded.row)

    async def _record_ends(self, batch: Iterable[_OpenEvaluation]) -> None:
        """Record the end of each evaluation that is complete, in the order of the batch."""
        for each in batch:
            if each.result is not None:
                continue
            if len(each.rows) < len(each.all_runs):
                return
            self._finish(each)
            self._log.phase = each.request.phase
            await self._log.append(EvaluationFinished.of(each.get_result(), each.number))

    def _keep(self, each: _OpenEvaluation, row: CaseRow) -> None:
        each.rows[row.case_id, row.repeat] = row
        self.reads[row.case_id] = merge_reads(self.reads.get(row.case_id, {}), row.reads)
        if not row.passed:
            self.failed.add(row.case_id)
        self.case_runs += row.origin != "kept"
        if row.origin == "executed":
            self.paid_case_runs += 1
            self.paid += row.case_id not in each.paid_cases
            each.paid_cases.add(row.case_id)
            self.metric_calls.note(each.name_call(row.case_id))

    def _finish(self, each: _OpenEvaluation) -> None:
        request = each.request
        each.result = self._evaluator.build_evaluation(
            each.rows.values(), request.eval_set, request.profile, number=each.number, phase=request.phase
        )

    async def _stream_rows(
        self, batch: Sequence[_OpenEvaluation], evaluator: Evaluator
    ) -> AsyncGenerator[tuple[_OpenEvaluation, CaseRow], None]:
        """Yield the missing rows as they finish. Runs that are lost to an outage are made again, after the others.

        Those that are still lost come last. If they are too many, they say nothing about the profile: the run fails,
        and makes them again when it resumes.
        """
        order = interleave_runs(
            [each.runs for each in batch],
            seed=f"order {evaluator.seed} {batch[0].number}",
            segment=evaluator.options.concurrency if isinstance(self._agent, RestoringAgent) else 1,
        )
        left = [(place, run) for place, run in order if run not in batch[place].rows]
        for _ in range(1 + RERUNS):
            lost_in_a_row, lost = 0, [dict[CaseRepeat, CaseRow]() for _ in batch]
            async with aclosing(self._make_runs(batch, left, evaluator)) as rows:
                async for place, row in rows:
                    if row.outage is None:
                        lost_in_a_row = 0
                        yield batch[place], row
                        continue
                    lost_in_a_row += 1
                    lost[place][row.case_id, row.repeat] = row
                    if lost_in_a_row >= MIN_LOST_IN_A_ROW:  # the service seems to be down
                        self._check_lost(lost[place], batch[place])
            left = [(place, run) for place, run in left if run in lost[place]]
            if not left or evaluator.gateway.is_stopping:
                return  # after a stop, those that are lost are made again when the run is resumed
        for each, some in zip(batch, lost, strict=True):
            self._check_lost(some, each)
            for row in some.values():
                yield each, row

    def _check_lost(self, lost: Mapping[CaseRepeat, CaseRow], evaluation: _OpenEvaluation) -> None:
        """Raise OutageError if too many runs of an evaluation are lost."""
        count = len(lost)
        if count > max(1.0, self._evaluator.options.max_errored_fraction * len(evaluation.all_runs)):
            [*_, row] = lost.values()
            what = f"{row.outage}; {count} case runs were lost to such errors"
            raise OutageError(what, advice="fix the cause, then run `promptiter resume`")

    async def _make_runs(
        self, batch: Sequence[_OpenEvaluation], runs: Iterable[PlacedRun], evaluator: Evaluator
    ) -> AsyncGenerator[tuple[int, CaseRow], None]:
        """Yield the rows of these runs as they finish, each with the place of its evaluation in the batch."""
        jobs = (batch[place].build_job(run, place) for place, run in runs)
        async with aclosing(evaluator.stream_jobs(self._agent, jobs)) as finished:
            async for job, row in finished:
                yield job.evaluation, row

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record missing traces of an evaluation again. Answers are in the cache, so nothing is paid.

        A resumed run may lack traces: after a power failure, or because they were not kept.
        """
        trace_store = self._evaluator.trace_store
        missing = [
            (row.case_id, row.repeat)
            for row in evaluation.rows
            if not all([await trace_store.has(name) for name in row.trace_digests])
        ]
        if missing:
            async for _ in self._evaluator.stream_rows(self._agent, eval_set, profile, runs=missing):
                pass
            self._evaluator.gateway.check_stop()


class _OpenEvaluation:
    """An evaluation in progress: its rows so far, and the result once all of them are there."""

    def __init__(self, number: int, request: EvaluationRequest, runs: Sequence[CaseRepeat]) -> None:
        self.number = number
        self.request = request
        self.runs = runs
        self.all_runs = frozenset((*runs, *((row.case_id, row.repeat) for row in request.kept)))
        self.rows: dict[CaseRepeat, CaseRow] = {}
        self.paid_cases: set[str] = set()
        self.result: Evaluation | None = None

    def build_job(self, run: CaseRepeat, place: int) -> CaseJob:
        """Build the job of a run, with the place of this evaluation in its batch."""
        case_id, repeat = run
        case = self.request.eval_set.by_id[case_id]
        return CaseJob(case=case, profile=self.request.profile, repeat=repeat, evaluation=place)

    def name_call(self, case_id: str) -> MetricCall:
        """The metric call to which the runs of a case belong."""
        request = self.request
        return name_call(case_id, number=self.number, phase=request.phase, profile_digest=request.profile.digest)

    def get_result(self) -> Evaluation:
        assert self.result is not None, "an evaluation has a result once all its rows are there"
        return self.result


def _as_kept(row: CaseRow) -> CaseRow:
    return replace(row, measured=replace(row.measured, origin="kept", paid_calls=0, duration_s=0.0))
