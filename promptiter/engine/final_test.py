"""The runs of the final test: the initial profile and the accepted one on cases and repeats that no decision has seen.

First come the validation cases, in blocks with a look after each. The test set, which the search never used, is run
once. What follows from the results is in `conclusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.comparison import PairedEvaluation
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.llm.ledger import Spending
from promptiter.policies.evidence import Evidence, pair_scores, renumber_repeats
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.payloads import BudgetReserved, ReservedMeasured

MAX_RESERVED_SHARE = 0.5
"""The largest share of the budget left after the baseline that is reserved for the final test."""

TEST_SET_REPEATS = 2
"""Repeats of each case of the test set. A case counts once, by the mean of its repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResults:
    """Both profiles on the same cases and repeats, and their scores in pairs. `problem` is why no test may use them."""

    before: Evaluation
    after: Evaluation
    scores: tuple[PairedScores, ...]
    problem: str | None = None


class FinalTestRuns:
    """Runs the initial profile of a run and its accepted one again, on the cases that the change may reach."""

    def __init__(self, session: ActiveRun) -> None:
        self._session = session
        self._pair: PairedEvaluation | None = None
        before, after = session.baseline, session.accepted
        changed = [change.surface_id for change in before.profile.changes(after.profile, session.snapshot)]
        rows = (*before.validation.rows, *after.validation.rows)
        self.affected = session.validator.find_affected_cases(rows, changed)

    async def run_block(self, repeats: int) -> ArmResults:
        """Run the next block, with this number of repeats, and return the results of all blocks so far."""
        session = self._session
        await self._run_block(session.validator.list_fresh_runs(session.validation, self.affected, repeats))
        assert self._pair is not None, "a block has been run"
        before, after = renumber_repeats(self._pair.accepted, self._pair.candidate, unaffected=self._pair.unaffected)
        return self._pair_arms(before, after)

    async def run_test_set(self, test: EvalSet) -> ArmResults:
        """Run the test set, which nothing has run before."""
        session, runs = self._session, list_case_runs(test, range(TEST_SET_REPEATS))
        before, after = [
            await session.evaluations.evaluate(
                EvaluationRequest(eval_set=test, profile=profile, phase="test", runs=runs)
            )
            for profile in (session.baseline.profile, session.accepted.profile)
        ]
        return self._pair_arms(before, after)

    async def _run_block(self, runs: Sequence[CaseRepeat]) -> None:
        """Run one block under both profiles. Unaffected cases have the baseline's record under both."""
        session, record = self._session, self._session.baseline.validation.rows
        kept = [row for row in record if row.case_id not in self.affected] if self._pair is None else []
        before, after = [
            await session.evaluations.evaluate(
                EvaluationRequest(
                    eval_set=session.validation, profile=profile, phase="final_test", runs=runs, kept=kept
                )
            )
            for profile in (session.baseline.profile, session.accepted.profile)
        ]
        unaffected = frozenset(row.case_id for row in record) - self.affected
        block = PairedEvaluation(accepted=before, candidate=after, unaffected=unaffected)
        self._pair = block if self._pair is None else self._pair.add(block)

    def _pair_arms(self, before: Evaluation, after: Evaluation) -> ArmResults:
        objective = self._session.request.objective
        return ArmResults(
            before=before,
            after=after,
            scores=pair_scores(before, after, objective),
            problem=Evidence(accepted=before, candidate=after, objective=objective).problem,
        )


async def reserve_for_final_test(session: ActiveRun) -> None:
    """Reserve the expected cost of the final test, so that the search cannot spend it.

    The amount is recorded: a resumed run reserves the same, although it has spent more by then.
    """
    rule, budget = session.request.final_test, session.evaluator.gateway.budget
    if rule is None:
        return
    spent = session.meter.ledger.of_models
    expected = _estimate_cost(session, rule) + (Spending() if budget is None else budget.largest_call)
    reserved = await session.note(BudgetReserved(measured=ReservedMeasured(expected=expected, before=spent)))
    found = reserved.measured
    if budget is not None:
        budget.hold(found.expected, share=MAX_RESERVED_SHARE, spent=spent - found.before)


def _estimate_cost(session: ActiveRun, rule: FinalTest) -> Spending:
    """Estimate the cost of the final test: per run, what the baseline and its judges took on validation."""
    rows = session.baseline.validation.rows
    repeats = sum(block.repeats for block in plan_blocks(session.request.alpha, repeats=rule.repeats))
    test_runs = TEST_SET_REPEATS * len(session.test.cases) if session.test is not None else 0
    runs = 2 * (repeats * len(session.validation.cases) + test_runs) / max(1, len(rows))
    judges = session.meter.ledger.by_role().get("judge", Spending())
    usage = session.baseline.validation.usage
    calls = sum(row.measured.paid_calls + row.measured.cache_hits for row in rows)
    return Spending(
        calls=round(runs * (calls + judges.calls + judges.cache_hits)),
        input_tokens=round(runs * (usage.tokens + judges.tokens)),
        cost_usd=runs * ((usage.cost_usd or 0.0) + (judges.cost_usd or 0.0)),
    )
