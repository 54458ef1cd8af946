"""Run: one run from its first event to its last, however it ends."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime

from promptiter.agents.base import Agent, RestoringAgent
from promptiter.engine.final_test import reserve_for_final_test, run_final_test, untested
from promptiter.engine.session import Search, Session
from promptiter.errors import BudgetEndedError, NonDeterministicSearchError, PromptiterError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.teacher import LabelledSet, write_expected_answers
from promptiter.policies.combine import written
from promptiter.policies.final_test import Conclusion, Verdict
from promptiter.policies.goals import check_scores
from promptiter.policies.stopping import StopDecision, StopReason
from promptiter.profile import Profile
from promptiter.runlog.codec import to_plain
from promptiter.runlog.event_log import EventLog, finish_before_cancel, is_cancelled, is_user_stop
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.results import RunMeasured, RunResult, Status
from traces import digest
from traces.model import Json

logger = logging.getLogger(__name__)


class RunFailedError(PromptiterError):
    """A run ended in an error. `result` has everything that was finished before; the cause is the error itself."""

    def __init__(self, result: RunResult) -> None:
        super().__init__(f"the run failed in round {result.current_round}: {result.error}")
        self.result = result


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a run ended: its result, and the error that ended it, if one did."""

    result: RunResult
    error: BaseException | None

    @property
    def is_cancelled(self) -> bool:
        """Whether somebody cancelled it, be it in its last moment, when it had succeeded already."""
        return isinstance(self.error, asyncio.CancelledError) and self.result.status != "failed"

    def result_or_error(self) -> RunResult:
        """The result; RunFailedError if it failed, and the CancelledError that it was cancelled with."""
        if self.error is not None and self.is_cancelled:
            raise self.error
        return self.result_or_failure()

    def result_or_failure(self) -> RunResult:
        """The result, also of a run that was cancelled; RunFailedError if it failed."""
        if self.error is None or self.is_cancelled:
            return self.result
        raise RunFailedError(self.result) from self.error


class Run:
    """One run from its first event to its last."""

    def __init__(self, *, session: Session, log: EventLog, search: Search) -> None:
        self.session = session
        self.log = log
        self.search = search
        self.budget_ended = False
        self.conclusion: Conclusion | None = None

    async def conduct(self, started: datetime) -> RunOutcome:
        error: BaseException | None = None
        status: Status = "succeeded"
        try:
            await self._search(started)
        except BudgetEndedError as ended:
            self.session.stop = _stopped(ended.cap, str(ended))
            self.budget_ended = True
        except (Exception, asyncio.CancelledError, SystemExit) as failure:  # noqa: BLE001 - it is raised again later
            error, status = failure, "cancelled" if is_cancelled(failure) else "failed"
        finally:
            self._release()
        if error is not None and (self.log.is_replaying or isinstance(error, NonDeterministicSearchError)):
            return self._unwritten(status, error)  # what is in the journal is right, and stays as it is
        try:
            await self._complete(status, error)
        except asyncio.CancelledError as cancelled:
            error = error or cancelled
        except Exception as broken:  # noqa: BLE001 - a journal that cannot be written ends the run, with its result
            return self._unwritten("failed", broken)
        return RunOutcome(fold_lazily(self.log.journal), error)

    def _release(self) -> None:
        """Nothing is held back any more for a claim to come."""
        if (budget := self.session.evaluator.gateway.budget) is not None:
            budget.release()

    def _unwritten(self, status: Status, error: BaseException) -> RunOutcome:
        """The end of a run that its journal does not know of; nothing is to be told of one that it knows nothing of."""
        if self.log.journal.last() is None:
            raise error
        told = None if status == "cancelled" else self._told(error)
        return RunOutcome(replace(fold_lazily(self.log.journal), status=status, error=told), error)

    async def _search(self, started: datetime) -> None:
        session = self.session
        profile = session.request.initial_profile or Profile.baseline(session.snapshot)
        await session.note("run_started", _head(session, profile, started, search=self.search))
        if session.request.teacher is not None:
            session.train, session.validation = await self._taught(session.request.teacher)
        await session.start(profile)
        if not session.accepted.validation.is_reliable:
            session.stop = _stopped("invalid_eval", _what_failed(session.accepted.validation))
            return
        if session.request.max_rounds > 0:
            check_scores(session.request.goal, session.baseline.validation)
            await reserve_for_final_test(session)
            await self._searched()
        if (session.stop is None or not session.stop.stop) and not await session.should_stop():
            wanted = session.request.max_rounds > 0
            session.stop = (
                _stopped("exhausted", "the search has nothing left to try")
                if wanted
                else _stopped("max_rounds", "only the baseline is wanted")
            )
        if not self._is_stopped_by_user:
            await self._conclude()

    async def _searched(self) -> None:
        """The search. One that the budget cuts short after it kept something leaves that to the claim."""
        session = self.session
        try:
            await self.search.search(session)
        except BudgetEndedError as ended:
            if session.request.final_test is None or not session.has_accepted:
                raise
            await session.cut(ended)
            session.stop = _stopped(ended.cap, str(ended).partition("; raise ")[0])

    async def _conclude(self) -> None:
        """Say what came of the run. What it kept takes a claim, for which a part of the budget was held back."""
        session = self.session
        rule = session.request.final_test
        if rule is None or not session.has_accepted:
            found = untested(session)
        else:
            found = await run_final_test(session, rule)
        self.conclusion = await session.record_known("conclusion", found)

    async def _taught(self, teacher: Agent | str) -> tuple[EvalSet, EvalSet]:
        """Both sets with the teacher's answers, written once, before anything is compared with them."""
        session, seed = self.session, self.session.seed
        gateway = session.evaluator.gateway

        async def taught() -> tuple[LabelledSet, ...]:
            sets = (session.train, session.validation)
            return tuple([await write_expected_answers(each, teacher, gateway=gateway, seed=seed) for each in sets])

        train, validation = await session.record("references", tuple[LabelledSet, ...], taught)
        for case_id, error in (*train.errors, *validation.errors):
            session.report(f"the teacher had no answer for {case_id}: {error}")
        return train.eval_set, validation.eval_set

    async def _complete(self, status: Status, error: BaseException | None) -> None:
        """Write the last event. Nobody may cancel that."""
        session = self.session
        self.log.phase = "end"
        measured = RunMeasured(
            run_id=self.log.run_id,
            duration_s=session.spending.elapsed_s,
            case_runs=session.evaluations.case_runs,
            paid_case_runs=session.evaluations.paid_case_runs,
            spent=session.spending.ledger,
            problems=tuple(self.log.problems),
        )
        data: dict[str, Json] = {
            "status": status,
            "verdict": self._verdict(),
            "stop": to_plain(session.stop) if session.stop is not None and session.stop.stop else None,
            "error": None if error is None or status == "cancelled" else self._told(error),
            "is_final": status == "succeeded" and not self.budget_ended and not self._is_stopped_by_user,
            "baseline": self._scores[0],
            "best": self._scores[1],
            "measured": to_plain(measured),
        }
        await finish_before_cancel(self.log.append("run_completed", data))

    @property
    def _scores(self) -> tuple[float | None, float | None]:
        """The objective of the first profile and of what is adopted; after a claim, on its fresh repeats."""
        session, found = self.session, self.conclusion
        if found is None:
            return session.baseline_score, session.best_score
        if not found.results:
            return session.baseline_score, session.best_score if found.adopts else session.baseline_score
        return found.before, found.after if found.adopts else found.before

    @property
    def _is_stopped_by_user(self) -> bool:
        return self.session.stop is not None and is_user_stop(to_plain(self.session.stop))

    def _told(self, error: BaseException) -> str:
        return self.session.redacted(f"{type(error).__name__}: {error}")

    def _verdict(self) -> Verdict:
        session = self.session
        if self.conclusion is not None:
            return self.conclusion.verdict
        if session.has_baseline and not session.accepted.validation.is_reliable:
            return "invalid_eval"
        is_undecided = not session.candidates_tried or session.has_accepted
        return "budget_ended" if self.budget_ended and is_undecided else "no_evidence"


async def restored(agent: Agent) -> None:
    """Bring back what an agent that puts candidates into its own files had there; the run has its end already."""
    if not isinstance(agent, RestoringAgent):
        return
    try:
        await agent.aclose()
    except asyncio.CancelledError:
        pass  # it restores first
    except Exception as error:  # noqa: BLE001 - the result is not lost by it
        logger.warning("the baseline could not be put back: %s; `promptiter restore` does it", error)


def _head(session: Session, profile: Profile, started: datetime, *, search: Search) -> dict[str, Json]:
    request = session.request
    head: dict[str, Json] = {
        "structure": session.snapshot.to_json(),
        "profile": to_plain(profile),
        "targets": sorted(session.targets),
        "train": _told_of(session.train),
        "validation": _told_of(session.validation),
        "test": None if session.test is None else _told_of(session.test),
        "objective": request.objective,
        "goal": to_plain(request.goal),
        "acceptance": written(request.acceptance),
        "final_test": written(request.final_test),
        "stop": written(request.stop),
        "max_rounds": request.max_rounds,
        "search": type(search).__name__,
        "seed": session.seed,
    }
    return {"request": digest(head), **head, "measured": {"started_at": started.isoformat(timespec="seconds")}}


def _told_of(eval_set: EvalSet) -> list[Json]:
    return [eval_set.id, eval_set.content_digest, len(eval_set.cases)]


def _stopped(kind: str, text: str) -> StopDecision:
    return StopDecision(stop=True, reasons=(StopReason(kind, text),))


def _what_failed(evaluation: Evaluation) -> str:
    """Why a baseline says nothing: the share that failed, and the commonest errors."""
    return f"{evaluation.errored_fraction:.0%} of the baseline's runs or scores failed: {evaluation.commonest_errors}"
