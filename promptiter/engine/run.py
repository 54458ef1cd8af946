"""Run: executes one run from its first event to its last, however it ends."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, replace
from datetime import datetime

from promptiter.agents.base import ExternalAgent
from promptiter.agents.runner import Runner
from promptiter.concurrency import finish_before_cancel, is_cancelled, run_in_thread
from promptiter.engine.active_run import ActiveRun
from promptiter.engine.conclusion import conclude_by_final_test, conclude_without_test
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.engine.final_test import reserve_for_final_test
from promptiter.engine.model_checks import find_uncounted_calls
from promptiter.engine.outline import describe_kept_targets
from promptiter.engine.session import Search, Session
from promptiter.errors import (
    BudgetEndedError,
    NonDeterministicSearchError,
    OutageError,
    PromptiterError,
    RunCancelledError,
    StopRequestedError,
    is_outage_of_store,
)
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.teacher import write_expected_answers
from promptiter.policies.combine import describe_policy
from promptiter.policies.constraints import list_figures
from promptiter.policies.figures import check_recorded_figures
from promptiter.policies.goals import check_scores
from promptiter.policies.stop_decision import StopDecision, stop_if
from promptiter.policies.verdict import Verdict
from promptiter.profile import Profile
from promptiter.runlog.codec import to_plain
from promptiter.runlog.fold import build_result, fold_lazily
from promptiter.runlog.payloads import (
    CasesUsed,
    EvalSetSummary,
    ReferencesWritten,
    RunCompleted,
    RunConcluded,
    RunStarted,
    StartMeasured,
    ValidationRead,
)
from promptiter.runlog.results import RunMeasured, RunResult, Status


class RunFailedError(PromptiterError):
    """A run ended in an error, which is the cause. `result` has everything that was finished before it."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"the run failed in round {result.current_round}: {result.error}")
        self.result = result

    def __reduce__(self) -> tuple[type[RunFailedError], tuple[RunResult]]:
        return type(self), (self.result,)  # from a worker process to its caller


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended: its result, and the error that ended it, if any."""

    result: RunResult
    error: BaseException | None

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was cancelled, even if that came after it had succeeded."""
        return isinstance(self.error, asyncio.CancelledError) and self.result.status != "failed"

    def result_or_error(self) -> RunResult:
        """Return the result, or raise RunFailedError, or the CancelledError of a cancelled run."""
        if self.error is not None and self.is_cancelled:
            raise self.error
        return self.result_or_failure()

    def result_or_failure(self) -> RunResult:
        """Return the result, also of a cancelled run, or raise RunFailedError."""
        if self.error is None or self.is_cancelled:
            return self.result
        raise RunFailedError(self.result) from self.error


class Run:
    """Executes one run. Its search sees it as a Session."""

    def __init__(self, active: ActiveRun, search: Search) -> None:
        self.active = active
        self.log = active.log
        self.search = search
        self.budget_ended = False
        self._stop: StopDecision | None = None

    async def execute(self, started: datetime) -> RunOutcome:
        """Run the search and the final test, write the last event, and return the outcome."""
        error: BaseException | None = None
        status: Status = "succeeded"
        try:
            await self._run(started)
        except BudgetEndedError as ended:
            self._stop = stop_if(True, ended.cap, str(ended))
            self.budget_ended = True
        except StopRequestedError as stopped:
            self._stop = stop_if(True, "user_stop", str(stopped))
        except (Exception, asyncio.CancelledError, SystemExit) as failure:  # noqa: BLE001 - it is raised again later
            error, status = failure, "cancelled" if is_cancelled(failure) else "failed"
        finally:
            self._release_reserve()
        ending = asyncio.ensure_future(self._end(status, error))
        try:
            return await finish_before_cancel(ending)
        except asyncio.CancelledError as cancelled:
            outcome = ending.result()
            return replace(outcome, error=outcome.error or cancelled)

    async def _end(self, status: Status, error: BaseException | None) -> RunOutcome:
        """Write the last event and return the outcome. Cancelling the run does not interrupt this."""
        if error is not None and (
            is_outage_of_store(error)
            or await self.log.is_replaying()
            or isinstance(error, NonDeterministicSearchError)
            or await self.log.journal.last() is None
        ):
            return await self._outcome_not_in_journal(status, error)  # the journal is right and stays as it is
        if self.active.is_handed_over and (self._is_stopped_by_user or status == "cancelled"):
            return RunOutcome(await self._fold(), error)
        if self._is_stopped_by_user and await self.log.is_replaying():
            return RunOutcome(replace(await self._fold(), status=status, stop=self._stop), None)
        try:
            try:
                await self._complete(status, error)
            except RunCancelledError:
                await self._complete("cancelled", error)
        except Exception as broken:  # noqa: BLE001 - a journal that cannot be written ends the run, with its result
            return await self._outcome_not_in_journal("failed", broken)
        return RunOutcome(build_result(self.log.state, self.log.journal.reader()), error)

    async def _fold(self) -> RunResult:
        """Read the result from the journal, in a thread: that of a long run takes a while."""
        return await run_in_thread(lambda: fold_lazily(self.log.journal.reader()))

    def _release_reserve(self) -> None:
        """Release what the budget reserved for the final test."""
        if (budget := self.active.evaluator.gateway.budget) is not None:
            budget.release()

    async def _outcome_not_in_journal(self, status: Status, error: BaseException) -> RunOutcome:
        """Return an outcome whose last event could not be written. Raises the error if the journal is empty."""
        if await self.log.journal.last() is None:
            raise error
        message = None if status == "cancelled" else self._describe_error(error)
        return RunOutcome(replace(await self._fold(), status=status, error=message), error)

    async def _run(self, started: datetime) -> None:
        active = self.active
        initial = active.request.initial_profile
        profile = Profile.of(active.snapshot, {} if initial is None else initial.overrides)
        await self._note_start(profile, started)
        if isinstance(active.agent, ExternalAgent):
            for note in active.agent.notes:
                active.report(note)
        if kept := describe_kept_targets(self.search, active.snapshot, active.targets, shape=active.shape):
            active.report(kept)
        if active.request.teacher is not None:
            await self._write_references(active.request.teacher)
        self._report_shown_cases(profile)
        baseline = EvaluationRequest(eval_set=active.validation, profile=profile, phase="baseline")
        await active.evaluations.evaluate(baseline)
        if warning := find_uncounted_calls(active.baseline.validation, active.evaluator.gateway):
            active.report(warning)
        if not active.baseline.validation.is_reliable:
            self._stop = stop_if(True, "invalid_eval", _describe_failures(active.baseline.validation))
            return
        if active.request.round_limit > 0:
            check_scores(active.request.goal, active.baseline.validation)
            check_recorded_figures(list_figures(active.request.acceptance), active.baseline.validation)
            await reserve_for_final_test(active)
            await self.log.take_any(CasesUsed)  # journals of earlier versions have it here
            await self._search()
        if self._get_stop() is None and not await active.should_stop(is_search_over=True):
            self._stop = (
                stop_if(True, "exhausted", "the search has nothing left to try")
                if active.request.round_limit > 0
                else stop_if(True, "max_rounds", "only the baseline was requested")
            )
        if not self._is_stopped_by_user:
            await self._conclude()

    def _get_stop(self) -> StopDecision | None:
        """Why the run stops, if it does."""
        return self._stop or self.log.state.run.stop

    async def _search(self) -> None:
        """Run the search. If the budget ends after a candidate was accepted, the run continues with the final test."""
        active = self.active
        try:
            await self._run_search()
        except BudgetEndedError as ended:
            if active.request.final_test is None or not active.state.has_accepted:
                raise
            await active.record_budget_end(ended)
            self._stop = stop_if(True, ended.cap, ended.message)

    async def _run_search(self) -> None:
        if self.active.reviewer is not None:  # who may see validation results while the run is in progress
            await self.log.append_when_live(ValidationRead(by="reviewer"))
        try:
            await self.search.search(Session(self.active))
        finally:
            self.log.withdraw()
            was_left = await self.active.one_request.cancel()
        if was_left:
            raise RuntimeError("the search ended while one of its requests was in progress; await every request")

    async def _conclude(self) -> None:
        """Decide the verdict: by the final test if a candidate was accepted and a test was requested."""
        active, rule = self.active, self.active.request.final_test
        if rule is None or not active.state.has_accepted:
            found = conclude_without_test(active)
        else:
            found = await conclude_by_final_test(active, rule)
        await active.note(RunConcluded(conclusion=found))

    def _report_shown_cases(self, profile: Profile) -> None:
        """Report the agent's own few-shot examples that repeat validation or test cases. They stay."""
        active = self.active
        for surface in (each for each in active.snapshot.surfaces if each.type == "examples"):
            if repeat := active.hidden_cases.find_repeat(profile.value(surface.id, active.snapshot)):
                active.report(f"{surface.id}: {repeat}; the scores of that case say nothing, so remove one of them")

    async def _write_references(self, teacher: Runner | str) -> None:
        """Complete train and validation with the teacher's answers, which are written once and recorded."""
        active, gateway = self.active, self.active.evaluator.gateway

        async def write() -> ReferencesWritten:
            train = await write_expected_answers(active.train, teacher, gateway=gateway)
            if active.shape != "two_sets":
                return ReferencesWritten(train=train, validation=train)
            validation = await write_expected_answers(active.validation, teacher, gateway=gateway)
            return ReferencesWritten(train=train, validation=validation)

        found = await active.record(ReferencesWritten, write)
        for case_id, error in dict.fromkeys((*found.train.errors, *found.validation.errors)):
            active.report(f"the teacher gave no answer for case {case_id}: {error}")

    async def _complete(self, status: Status, error: BaseException | None) -> None:
        active = self.active
        self.log.phase = "end"
        before, after = self._compute_scores()
        completed = RunCompleted(
            status=status,
            verdict=self._decide_verdict(),
            stop=self._get_stop(),
            error=None if error is None or status == "cancelled" else self._describe_error(error),
            is_final=status == "succeeded" and not self.budget_ended and not self._is_stopped_by_user,
            baseline=before,
            best=after,
            measured=RunMeasured(
                run_id=self.log.run_id,
                duration_s=active.meter.elapsed_s,
                case_runs=active.evaluations.case_runs,
                paid_case_runs=active.evaluations.paid_case_runs,
                spent=active.meter.ledger,
                problems=tuple(self.log.problems),
            ),
        )
        await self.log.append(completed)

    def _compute_scores(self) -> tuple[float | None, float | None]:
        """The objective of the initial and of the adopted profile; after a final test, on its repeats."""
        run = self.log.state.run
        found = run.conclusion
        if found is None or not found.results:
            return run.baseline_score, run.accepted_score
        return found.before, found.after if found.adopts else found.before

    @property
    def _is_stopped_by_user(self) -> bool:
        stop = self._get_stop()
        return stop is not None and stop.is_user_stop

    def _describe_error(self, error: BaseException) -> str:
        kind = "" if isinstance(error, OutageError) else f"{type(error).__name__}: "  # an outage is said in words
        return self.active.redact(f"{kind}{error}")

    def _decide_verdict(self) -> Verdict:
        state = self.log.state
        if state.run.conclusion is not None:
            return state.run.conclusion.verdict
        if state.baseline is not None and not state.baseline.validation.is_reliable:
            return "invalid_eval"
        is_undecided = not state.candidates_tried or state.has_accepted
        return "budget_ended" if self.budget_ended and is_undecided else "no_evidence"

    async def _note_start(self, profile: Profile, started: datetime) -> None:
        active, request = self.active, self.active.request
        head = RunStarted(
            structure=active.snapshot.to_json(),
            profile=profile,
            targets=tuple(sorted(active.targets)),
            train=EvalSetSummary.of(active.train),
            validation=EvalSetSummary.of(active.validation),
            test=None if active.test is None else EvalSetSummary.of(active.test),
            shape=active.shape,
            objective=request.objective,
            goal=request.goal,
            acceptance=describe_policy(request.acceptance),
            final_test=describe_policy(request.final_test),
            stop=describe_policy(request.stop),
            max_rounds=request.round_limit,
            search=type(self.search).__name__,
            seed=active.seed,
        )
        measured = StartMeasured(started_at=started.isoformat(timespec="seconds"), use_id=secrets.token_hex(8))
        await active.note(replace(head, measured=measured), request=to_plain(head))


def _describe_failures(evaluation: Evaluation) -> str:
    """Say why a baseline is unreliable: the share that failed, and the most common errors."""
    return f"{evaluation.errored_fraction:.0%} of the baseline's runs or scores failed: {evaluation.commonest_errors}"
