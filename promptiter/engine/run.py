"""Run: executes one run from its first event to its last, however it ends."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime

from promptiter.agents.base import Agent, RestoringAgent
from promptiter.concurrency import finish_before_cancel, is_cancelled
from promptiter.engine.final_test import conclude_without_test, reserve_for_final_test, run_final_test
from promptiter.engine.session import Search, Session
from promptiter.errors import BudgetEndedError, NonDeterministicSearchError, PromptiterError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.teacher import LabelledSet, write_expected_answers
from promptiter.policies.combine import describe_policy
from promptiter.policies.final_test import Conclusion, Verdict
from promptiter.policies.goals import check_scores
from promptiter.profile import Profile
from promptiter.runlog.codec import to_plain
from promptiter.runlog.event_log import EventLog, is_user_stop
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.results import RunMeasured, RunResult, Status
from traces import digest
from traces.model import Json

logger = logging.getLogger(__name__)


class RunFailedError(PromptiterError):
    """A run ended in an error, which is the cause. `result` has everything that was finished before it."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"the run failed in round {result.current_round}: {result.error}")
        self.result = result


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
    """One run in progress. Its session is what the search sees of it."""

    def __init__(self, *, session: Session, log: EventLog, search: Search) -> None:
        self.session = session
        self.log = log
        self.search = search
        self.budget_ended = False
        self.conclusion: Conclusion | None = None

    async def execute(self, started: datetime) -> RunOutcome:
        """Run the search and the final test, write the last event, and return the outcome."""
        error: BaseException | None = None
        status: Status = "succeeded"
        try:
            await self._run(started)
        except BudgetEndedError as ended:
            self.session.end(ended.cap, str(ended))
            self.budget_ended = True
        except (Exception, asyncio.CancelledError, SystemExit) as failure:  # noqa: BLE001 - it is raised again later
            error, status = failure, "cancelled" if is_cancelled(failure) else "failed"
        finally:
            self._release_reserve()
        if error is not None and (self.log.is_replaying or isinstance(error, NonDeterministicSearchError)):
            return self._outcome_not_in_journal(status, error)  # the journal is right and stays as it is
        try:
            await self._complete(status, error)
        except asyncio.CancelledError as cancelled:
            error = error or cancelled
        except Exception as broken:  # noqa: BLE001 - a journal that cannot be written ends the run, with its result
            return self._outcome_not_in_journal("failed", broken)
        return RunOutcome(fold_lazily(self.log.journal), error)

    def _release_reserve(self) -> None:
        """Release what the budget reserved for the final test."""
        if (budget := self.session.evaluator.gateway.budget) is not None:
            budget.release()

    def _outcome_not_in_journal(self, status: Status, error: BaseException) -> RunOutcome:
        """Return an outcome whose last event could not be written. Raises the error if the journal is empty."""
        if self.log.journal.last() is None:
            raise error
        message = None if status == "cancelled" else self._describe_error(error)
        return RunOutcome(replace(fold_lazily(self.log.journal), status=status, error=message), error)

    async def _run(self, started: datetime) -> None:
        session = self.session
        profile = session.request.initial_profile or Profile.baseline(session.snapshot)
        await session.note("run_started", _describe_run(session, profile, started, search=self.search))
        if session.request.teacher is not None:
            session.train, session.validation = await self._write_references(session.request.teacher)
        await session.start(profile)
        if not session.accepted.validation.is_reliable:
            session.end("invalid_eval", _describe_failures(session.accepted.validation))
            return
        if session.request.max_rounds > 0:
            check_scores(session.request.goal, session.baseline.validation)
            await reserve_for_final_test(session)
            await self._search()
        if (session.stop is None or not session.stop.stop) and not await session.should_stop():
            if session.request.max_rounds > 0:
                session.end("exhausted", "the search has nothing left to try")
            else:
                session.end("max_rounds", "only the baseline was requested")
        if not self._is_stopped_by_user:
            await self._conclude()

    async def _search(self) -> None:
        """Run the search. If the budget ends after a candidate was accepted, the run continues with the final test."""
        session = self.session
        try:
            await self.search.search(session)
        except BudgetEndedError as ended:
            if session.request.final_test is None or not session.has_accepted:
                raise
            await session.record_budget_end(ended)
            session.end(ended.cap, ended.message)

    async def _conclude(self) -> None:
        """Decide the verdict: by the final test if a candidate was accepted and a test was requested."""
        session, rule = self.session, self.session.request.final_test
        if rule is None or not session.has_accepted:
            found = conclude_without_test(session)
        else:
            found = await run_final_test(session, rule)
        self.conclusion = await session.record_value("conclusion", found)

    async def _write_references(self, teacher: Agent | str) -> tuple[EvalSet, EvalSet]:
        """Return train and validation with the teacher's answers, which are written once and recorded."""
        session, seed = self.session, self.session.seed
        gateway = session.evaluator.gateway

        async def write() -> tuple[LabelledSet, ...]:
            sets = (session.train, session.validation)
            return tuple([await write_expected_answers(each, teacher, gateway=gateway, seed=seed) for each in sets])

        train, validation = await session.record("references", tuple[LabelledSet, ...], write)
        for case_id, error in (*train.errors, *validation.errors):
            session.report(f"the teacher gave no answer for case {case_id}: {error}")
        return train.eval_set, validation.eval_set

    async def _complete(self, status: Status, error: BaseException | None) -> None:
        """Write the last event. Cancelling the run does not interrupt this."""
        session = self.session
        self.log.phase = "end"
        measured = RunMeasured(
            run_id=self.log.run_id,
            duration_s=session.meter.elapsed_s,
            case_runs=session.evaluations.case_runs,
            paid_case_runs=session.evaluations.paid_case_runs,
            spent=session.meter.ledger,
            problems=tuple(self.log.problems),
        )
        data: dict[str, Json] = {
            "status": status,
            "verdict": self._verdict(),
            "stop": to_plain(session.stop) if session.stop is not None and session.stop.stop else None,
            "error": None if error is None or status == "cancelled" else self._describe_error(error),
            "is_final": status == "succeeded" and not self.budget_ended and not self._is_stopped_by_user,
            "baseline": self._scores[0],
            "best": self._scores[1],
            "measured": to_plain(measured),
        }
        await finish_before_cancel(self.log.append("run_completed", data))

    @property
    def _scores(self) -> tuple[float | None, float | None]:
        """The objective of the initial and of the adopted profile; after a final test, on its repeats."""
        session, found = self.session, self.conclusion
        if found is None:
            return session.baseline_score, session.best_score
        if not found.results:
            return session.baseline_score, session.best_score if found.adopts else session.baseline_score
        return found.before, found.after if found.adopts else found.before

    @property
    def _is_stopped_by_user(self) -> bool:
        return self.session.stop is not None and is_user_stop(to_plain(self.session.stop))

    def _describe_error(self, error: BaseException) -> str:
        return self.session.redact(f"{type(error).__name__}: {error}")

    def _verdict(self) -> Verdict:
        session = self.session
        if self.conclusion is not None:
            return self.conclusion.verdict
        if session.has_baseline and not session.accepted.validation.is_reliable:
            return "invalid_eval"
        is_undecided = not session.candidates_tried or session.has_accepted
        return "budget_ended" if self.budget_ended and is_undecided else "no_evidence"


async def restore_agent(agent: Agent) -> None:
    """Restore the files of an agent that runs candidates in place. A failure is logged: the run is over by now."""
    if not isinstance(agent, RestoringAgent):
        return
    try:
        await agent.aclose()
    except asyncio.CancelledError:
        pass  # it restores first
    except Exception as error:  # noqa: BLE001 - the result must not be lost
        logger.warning("the baseline could not be restored: %s; run `promptiter restore`", error)


def _describe_run(session: Session, profile: Profile, started: datetime, *, search: Search) -> dict[str, Json]:
    request = session.request
    head: dict[str, Json] = {
        "structure": session.snapshot.to_json(),
        "profile": to_plain(profile),
        "targets": sorted(session.targets),
        "train": _describe_eval_set(session.train),
        "validation": _describe_eval_set(session.validation),
        "test": None if session.test is None else _describe_eval_set(session.test),
        "objective": request.objective,
        "goal": to_plain(request.goal),
        "acceptance": describe_policy(request.acceptance),
        "final_test": describe_policy(request.final_test),
        "stop": describe_policy(request.stop),
        "max_rounds": request.max_rounds,
        "search": type(search).__name__,
        "seed": session.seed,
    }
    return {"request": digest(head), **head, "measured": {"started_at": started.isoformat(timespec="seconds")}}


def _describe_eval_set(eval_set: EvalSet) -> list[Json]:
    return [eval_set.id, eval_set.content_digest, len(eval_set.cases)]


def _describe_failures(evaluation: Evaluation) -> str:
    """Say why a baseline is unreliable: the share that failed, and the most common errors."""
    return f"{evaluation.errored_fraction:.0%} of the baseline's runs or scores failed: {evaluation.commonest_errors}"
