"""Session: the services that a search algorithm is given. Whatever it wants from the world, it asks for here.

Each service writes what it found into the event log, and answers from there when a run goes on: so a Strategy is a
plain async function, and resume is running it again. A strategy draws randomness and time from the session only, and
asks for one thing after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Protocol

from promptiter.agents.base import Agent
from promptiter.engine.acceptance import AcceptancePolicy, AllOf, Protected, decide
from promptiter.engine.candidates import data_of
from promptiter.engine.events import Event, EventType, Phase
from promptiter.engine.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.log import EventLog
from promptiter.engine.meter import Meter
from promptiter.engine.records import RunRequest
from promptiter.engine.review import Reviewer
from promptiter.engine.shapes import plain_of, value_of
from promptiter.engine.stopping import MaxRounds, Patience, Progress, StopDecision, StopPolicy, TargetScore, UserStop
from promptiter.errors import OutageError, SetupError
from promptiter.evaluation.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, digest
from traces.model import Json

MOST_LOOKS = 8
"""So often a policy may ask for more evidence about one candidate."""


class Strategy(Protocol):
    """A search algorithm. Called once by the engine, after the baseline was validated; and again when a run goes on."""

    async def search(self, session: Session) -> None:
        """Look for better profiles until the session says stop. What was accepted stays, whatever is raised."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The best profile so far, with its validation."""

    profile: Profile
    validation: Evaluation


class Session:
    """One run in flight, as its strategy sees it.

    `train` and `validation` are the cases, `targets` the surfaces that may change, `snapshot` the structure, `accepted`
    the best profile so far with its validation, `rng` the only source of chance.
    """

    def __init__(
        self,
        request: RunRequest,
        log: EventLog,
        *,
        agent: Agent,
        evaluator: Evaluator,
        train: EvalSet,
        validation: EvalSet,
        targets: Sequence[str],
        seed: int,
        spending: Meter,
        interrupt: Interrupt,
        reviewer: Reviewer | None = None,
    ) -> None:
        self.request = request
        self.agent = agent
        self.evaluator = evaluator
        self.snapshot: StructureSnapshot = agent.describe()
        self.train = train
        self.validation = validation
        self.targets = frozenset(targets)
        self.reviewer = reviewer
        self.seed = seed
        self.rng = Random(seed)
        self.case_runs = 0
        self.paid_case_runs = 0
        self.baseline_score: float | None = None
        self.stop: StopDecision | None = None
        self.spending = spending
        self._log = log
        self._interrupt = interrupt
        self._accepted: Accepted | None = None
        self._has_accepted = False
        self._tried = 0
        self._rounds_without_acceptance = 0
        self._evaluations = 0
        self._records = 0
        self._paid_evaluations = 0
        self._busy = asyncio.Lock()
        self._stopping = MaxRounds(max(1, request.max_rounds)) | UserStop() | (request.stop or _until_done(request))
        self._acceptance: AcceptancePolicy = request.acceptance
        if request.protected:
            self._acceptance = AllOf(request.acceptance, Protected())

    @property
    def round(self) -> int:
        return self._log.round

    @property
    def accepted(self) -> Accepted:
        """The best profile so far; at first the one that the run started with."""
        assert self._accepted is not None, "the baseline is validated before a strategy starts"
        return self._accepted

    @property
    def best_score(self) -> float | None:
        """The objective of the best profile so far, on validation."""
        return None if self._accepted is None else self._accepted.validation.objective(self.request.objective)

    @property
    def has_baseline(self) -> bool:
        """Whether the profile that the run started with has been validated."""
        return self._accepted is not None

    @property
    def has_accepted(self) -> bool:
        """Whether the best profile is another than the run started with."""
        return self._has_accepted

    @property
    def has_decided(self) -> bool:
        """Whether any candidate was accepted or rejected."""
        return self._tried > 0

    def trace(self, trace_digest: str) -> ExecutionTrace:
        """A trace that an evaluation recorded."""
        return self.evaluator.spool.get(trace_digest)

    def redacted(self, text: str) -> str:
        """A text without secrets, as it may be written down."""
        return self.evaluator.gateway.redactor.redact_text(text)

    def report(self, problem: str) -> None:
        """Tell of something that the user should know and that does not end the run."""
        self._log.problems.append(self.redacted(problem))

    def candidate(self, patches: PatchSet) -> Profile:
        """The accepted profile with these patches on top. Only targets may change."""
        if strange := sorted(patches.surface_ids - self.targets):
            raise SetupError(f"a patch changes {strange[0]!r}, which is no target of this run")
        return self.accepted.profile.apply(patches, self.snapshot)

    async def record(
        self,
        kind: EventType,
        shape: Any,
        work: Callable[[], Awaitable[Any]],
        *,
        request: Json = None,
        phase: Phase | None = None,
    ) -> Any:
        """What `work` gives, as a value of this shape, kept in the log; from the log if it has it already.

        `request` is what the work depends on: when a run goes on, it must be the same.
        """
        asked = digest(request)
        known = self._log.take(kind, request=asked)
        if known is None:
            plain = plain_of(await work(), shape)
            self._log.phase = phase or self._log.phase
            known = await self._log.append(kind, {"request": asked, "value": plain})
        self._records += 1
        self.rng.seed(f"{self.seed} after {self._records}")  # whether or not the work was done, and drew
        return value_of(shape, known.data["value"])

    async def note(self, kind: EventType, data: dict[str, Json]) -> Event:
        """Write down a fact that follows from what is known already."""
        return self._log.take(kind, request=data.get("request")) or await self._log.append(kind, data)

    async def evaluate(
        self, eval_set: EvalSet, profile: Profile, *, phase: Phase, draws: range | None = None
    ) -> Evaluation:
        """Run the cases under a profile. Each row is kept as it comes: a run that goes on later runs only the rest."""
        if self._busy.locked():
            raise RuntimeError("a session evaluates one profile at a time; await each evaluation before the next")
        async with self._busy:
            self._log.phase = phase
            return await self._evaluate(eval_set, profile, draws or range(self.evaluator.options.draws))

    async def _evaluate(self, eval_set: EvalSet, profile: Profile, draws: range) -> Evaluation:
        number, self._evaluations = self._evaluations, self._evaluations + 1
        head: dict[str, Json] = {
            "request": digest([eval_set.id, eval_set.content_digest, profile.digest, draws.start, draws.stop]),
            "evaluation": number,
            "eval_set_id": eval_set.id,
            "profile_digest": profile.digest,
            "cases": len(eval_set.cases),
            "draws": len(draws),
        }
        gateway = self.evaluator.gateway
        started = await self.note("evaluation_started", {**head, "measured": {"mark": gateway.memo.mark()}})
        rows: dict[tuple[str, int], CaseRow] = {}
        paid: set[str] = set()

        def keep(data: dict[str, Json]) -> None:
            row: CaseRow = value_of(CaseRow, data["row"])
            rows[row.case_id, row.draw] = row
            self.case_runs += 1
            if row.origin == "executed":
                self.paid_case_runs += 1
                self._paid_evaluations += row.case_id not in paid
                paid.add(row.case_id)

        while (event := self._log.take_any("case")) is not None:
            keep(event.data)
        if self._log.take("evaluation_finished") is not None:
            return self.evaluator.evaluation_of(rows.values(), eval_set, profile)
        gateway.recent_from = started.data["measured"]["mark"]  # a killed process may have paid for some of it already
        async for row in self._served(eval_set, profile, draws, known=rows):
            keep((await self._log.append("case", {"evaluation": number, "row": plain_of(row)})).data)
        found = self.evaluator.evaluation_of(rows.values(), eval_set, profile)
        gateway.recent_from = None
        await self._log.append("evaluation_finished", _figures(found, number))
        return found

    async def _served(
        self, eval_set: EvalSet, profile: Profile, draws: range, *, known: Container[tuple[str, int]]
    ) -> AsyncIterator[CaseRow]:
        """The rows as they finish. Those that an outage made fail come last, if they are few enough to be results.

        If they are not, they say nothing about the profile: the run fails, and runs them again when it goes on.
        """
        lost: list[CaseRow] = []
        most = self.evaluator.options.max_errored_fraction * len(eval_set.cases) * len(draws)
        async with aclosing(self.evaluator.rows(self.agent, eval_set, profile, draws=draws, known=known)) as rows:
            async for row in rows:
                if row.outage is None:
                    yield row
                    continue
                lost.append(row)
                if len(lost) > most:
                    told = f"{len(lost)} case runs were lost to such errors; resume when it is mended"
                    raise OutageError(f"{row.outage}; {told}")
        for row in lost:
            yield row

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record traces of an evaluation that are gone once more: answers are in the memo, so nothing is paid.

        They may be gone when a run goes on: after a loss of power, or because nobody wanted to keep them.
        """
        spool = self.evaluator.spool
        gone = {
            (row.case_id, row.draw)
            for row in evaluation.rows
            if any(trace_digest not in spool for trace_digest in row.trace_digests)
        }
        if not gone:
            return
        draws = range(max(draw for _, draw in gone) + 1)
        there = {(case.id, draw) for case in eval_set.cases for draw in draws} - gone
        async for _ in self.evaluator.rows(self.agent, eval_set, profile, draws=draws, known=there):
            pass

    async def start(self, profile: Profile) -> None:
        """Validate the profile that the run starts with."""
        self._accepted = Accepted(profile, await self.evaluate(self.validation, profile, phase="baseline"))
        self.baseline_score = self.best_score

    async def begin_round(self) -> None:
        if self._busy.locked():
            raise RuntimeError("a round begins when the evaluations of the last one are done; await them first")
        self._log.round += 1
        self._log.phase = "train"
        await self.note("round_started", {"profile_digest": self.accepted.profile.digest})

    async def complete_round(self) -> None:
        await self.note("round_completed", {})

    async def validate(self, candidate: Profile) -> AcceptanceDecision:
        """Run a candidate on the validation set and let the policy decide; what it accepts is the best from now on."""
        data, candidate = self._as_written(candidate)
        if data["profile_digest"] == data["parent"]:
            return await self.reject(candidate, "it changes nothing")
        await self.note("candidate", data)
        accepted = self.accepted.validation
        found = await self.evaluate(self.validation, candidate, phase="validation")
        answer = self._decide(accepted, found)
        looks = 1
        while isinstance(answer, MoreEvidence) and looks < MOST_LOOKS:
            accepted, found = await self._more(answer, accepted, found, candidate)
            answer = self._decide(accepted, found)
            looks += 1
        if isinstance(answer, MoreEvidence):
            told = f"still undecided after {looks} looks: {answer.reason}"
            answer = AcceptanceDecision(accepted=False, delta=None, reason=told)
        decision = await self._decided(answer)
        self._tried += 1
        if decision.accepted:
            self._accepted = Accepted(candidate, self._first_draws(found))
            self._has_accepted = True
            self._rounds_without_acceptance = 0
        return decision

    async def reject(self, candidate: Profile, reason: str) -> AcceptanceDecision:
        """Give a candidate up before validation is paid."""
        data, _ = self._as_written(candidate)
        await self.note("candidate", data)
        self._tried += 1
        return await self.pass_over(reason)

    def _as_written(self, candidate: Profile) -> tuple[dict[str, Json], Profile]:
        safe = self.evaluator.gateway.redactor.redact_known_json
        return data_of(candidate, accepted=self.accepted.profile, structure=self.snapshot, safe=safe)

    async def pass_over(self, reason: str) -> AcceptanceDecision:
        """Say why a round has no candidate worth trying."""
        return await self._decided(AcceptanceDecision(accepted=False, delta=None, reason=self.redacted(reason)))

    async def _decided(self, answer: AcceptanceDecision) -> AcceptanceDecision:
        async def decided() -> AcceptanceDecision:
            return answer

        decision: AcceptanceDecision = await self.record("decision", AcceptanceDecision, decided, phase="validation")
        if not decision.accepted:
            self._rounds_without_acceptance += 1
        return decision

    def _first_draws(self, found: Evaluation) -> Evaluation:
        """An evaluation as the next candidate's will be at first: without the draws that a policy asked for."""
        draws = self.evaluator.options.draws
        return replace(found, rows=tuple(row for row in found.rows if row.draw < draws))

    def _decide(self, accepted: Evaluation, candidate: Evaluation) -> AcceptanceDecision | MoreEvidence:
        return decide(
            self._acceptance,
            Evidence(
                baseline=accepted,
                candidate=candidate,
                objective=self.request.objective,
                round=self.round,
                tried=self._tried + 1,
                protected=self.request.protected,
            ),
        )

    async def _more(
        self, wish: MoreEvidence, accepted: Evaluation, found: Evaluation, candidate: Profile
    ) -> tuple[Evaluation, Evaluation]:
        """Both arms with more draws of the cases that the policy wants to see again."""
        wanted = set(wish.cases) or {case.id for case in self.validation.cases}
        cases = replace(self.validation, cases=tuple(case for case in self.validation.cases if case.id in wanted))
        drawn = 1 + max(row.draw for row in (*accepted.rows, *found.rows))
        draws = range(drawn, drawn + max(1, wish.draws))
        again = await self.evaluate(cases, self.accepted.profile, phase="validation", draws=draws)
        fresh = await self.evaluate(cases, candidate, phase="validation", draws=draws)
        return (
            replace(accepted, rows=(*accepted.rows, *again.rows)),
            replace(found, rows=(*found.rows, *fresh.rows)),
        )

    async def should_stop(self) -> bool:
        """Ask the stop policies; once they have said stop, `session.stop` has the reasons."""
        event = self._log.take("stop")
        if event is None:
            decision = self._stopping.decide(self._progress())
            measured = {"spent": plain_of(self.spending.spent)}
            event = await self._log.append("stop", {"value": plain_of(decision), "measured": measured})
        self.stop = value_of(StopDecision, event.data["value"])
        return self.stop.stop

    def _progress(self) -> Progress:
        return Progress(
            round=self.round,
            rounds_without_acceptance=self._rounds_without_acceptance,
            best=self.accepted.validation,
            objective=self.request.objective,
            elapsed_s=self.spending.elapsed_s,
            evaluations=self._paid_evaluations,
            spent=self.spending.spent,
            user_stop=self._interrupt.why,
        )


def _until_done(request: RunRequest) -> StopPolicy:
    """What ends a run if nobody says: nothing is left to gain, or nothing is gained any more."""
    return TargetScore(0.0 if request.objective == "weighted_loss" else 1.0) | Patience(3)


def _figures(found: Evaluation, number: int) -> dict[str, Json]:
    """What the rows do not say themselves, and the means, for who only watches."""
    return {
        "evaluation": number,
        "thresholds": dict(found.thresholds),
        "weights": dict(found.weights),
        "max_errored_fraction": found.max_errored_fraction,
        "mean_score": found.mean_score,
        "pass_rate": found.pass_rate,
        "metric_means": found.metric_means,
        "errored_fraction": found.errored_fraction,
    }
