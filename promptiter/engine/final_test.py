"""The runs of the final test: the initial profile and the accepted one on cases and repeats that no decision has seen.

First come the validation cases, in blocks with a look after each. The test set, which the search never used, is run
once. Both profiles are run at the same time, and every case is run: a case that never visited a node on record may
visit it in the next repeat. Calls before the first changed one have the same answers under both profiles, so a case
that a change does not reach costs about as much as under one of them. What follows from the results is in `conclusion`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from promptiter.engine.active_run import ActiveRun
from promptiter.engine.comparison import is_replayable
from promptiter.engine.evaluations import EvaluationRequest
from promptiter.engine.metric_calls import is_test_set_run
from promptiter.engine.price_checks import list_model_choices
from promptiter.errors import OutageError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, list_case_runs
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.final_test import count_repeats, plan_final_test
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.surface_reads import may_touch
from promptiter.llm.ledger import Spending
from promptiter.policies.evidence import Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.paired_runs import PairedRuns, count_paired_runs
from promptiter.policies.pairing import leave_out_lost_pairs, pair_scores, renumber_repeats
from promptiter.runlog.events import Phase
from promptiter.runlog.payloads import BudgetReserved, ReservedMeasured
from promptiter.runlog.results import RunShape
from traces import Usage

MAX_RESERVED_SHARE = 0.5
"""The largest share of the budget left after the baseline that is reserved for the final test."""

TEST_SET_REPEATS = 2
"""Repeats of each case of the test set. A case counts once, by the mean of its repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResults:
    """Both profiles on the same cases and repeats, and their scores in pairs. `problem` is why no test may use them.

    Pairs of runs of which an outage lost one are left out. `runs` counts them.
    """

    before: Evaluation
    after: Evaluation
    scores: tuple[PairedScores, ...]
    runs: PairedRuns
    problem: str | None = None


class FinalTestRuns:
    """Runs the initial profile of a run and its accepted one again, both at once and interleaved."""

    def __init__(self, active: ActiveRun) -> None:
        self._active = active
        self._arms: tuple[Evaluation, Evaluation] | None = None
        changes = active.baseline.profile.changes(active.accepted.profile, active.snapshot)
        self._changed = frozenset(change.surface_id for change in changes)

    @cached_property
    def is_out_of_reach(self) -> bool:
        """Whether the structure proves that no run reads what was changed.

        Recorded reads alone prove nothing: a case that did not visit a node may do so in the next repeat. But a
        recorded read shows that the structure is incomplete.
        """
        active = self._active
        if not active.snapshot.find_reachable_nodes().isdisjoint(each.partition("#")[0] for each in self._changed):
            return False
        unsure = active.validator.untrusted_nodes
        rows = (*active.baseline.validation.rows, *active.accepted.validation.rows)
        return not any(may_touch(row.reads, self._changed, unsure=unsure) for row in rows)

    async def run_block(self, repeats: int) -> ArmResults:
        """Run the next block, with this number of repeats, and return the results of all blocks so far."""
        validation = self._active.validation
        cases = frozenset(case.id for case in validation.cases)
        arms = await self._run(validation, self._active.validator.list_fresh_runs(validation, cases, repeats))
        if self._arms is not None:
            arms = self._arms[0].merge(arms[0]), self._arms[1].merge(arms[1])
        self._arms = arms
        return self._pair(*renumber_repeats(*arms, unaffected=frozenset()))

    async def run_test_set(self, test: EvalSet) -> ArmResults:
        """Run the test set, which nothing has run before."""
        return self._pair(*await self._run(test, list_case_runs(test, range(TEST_SET_REPEATS)), phase="test"))

    async def _run(
        self, eval_set: EvalSet, runs: Sequence[CaseRepeat], *, phase: Phase = "final_test"
    ) -> tuple[Evaluation, Evaluation]:
        active = self._active
        before, after = await active.evaluations.evaluate_many(
            [
                EvaluationRequest(eval_set=eval_set, profile=profile, phase=phase, runs=runs)
                for profile in (active.baseline.profile, active.accepted.profile)
            ]
        )
        return before, after

    def _pair(self, before: Evaluation, after: Evaluation) -> ArmResults:
        objective = self._active.request.objective
        made = before, after
        before, after = leave_out_lost_pairs(*made)
        if not before.rows:
            raise OutageError("all runs of the final test were lost to outages; run `promptiter resume` to repeat them")
        unreached = self._find_unreached_cases(before, after)
        scores = pair_scores(before, after, objective)
        return ArmResults(
            before=before,
            after=after,
            scores=tuple(_drop_noise(case, scores) if case.case_id in unreached else case for case in scores),
            runs=count_paired_runs(*made, before, unreached=len(unreached)),
            problem=Evidence(accepted=before, candidate=after, objective=objective).problem,
        )

    def _find_unreached_cases(self, before: Evaluation, after: Evaluation) -> frozenset[str]:
        """The cases that read nothing that was changed, in no repeat, if both profiles had the same answers in them.

        Then both runs of a repeat are the same run. What differs between repeats is noise that both profiles share, so
        it need not be tested. This holds for an agent that depends on nothing but its calls through the gateway. If a
        single pair differs although it read nothing that was changed, it does not hold, and all cases are tested.
        """
        unsure = self._active.validator.untrusted_nodes
        reached = {
            row.case_id
            for row in (*before.rows, *after.rows)
            if not is_replayable(row) or may_touch(row.reads, self._changed, unsure=unsure)
        }
        pairs = [each for each in zip(before.rows, after.rows, strict=True) if each[0].case_id not in reached]
        if any((one.output, one.scores) != (other.output, other.scores) for one, other in pairs):
            return frozenset()
        return frozenset(row.case_id for row, _ in pairs)


def _drop_noise(case: PairedScores, all_cases: Sequence[PairedScores]) -> PairedScores:
    """The scores of a case that the change did not reach, with its first one in all repeats."""
    same = case.before[:1] * max(each.repeats_made for each in all_cases)
    return PairedScores(case_id=case.case_id, before=same, after=same)


async def reserve_for_final_test(active: ActiveRun) -> None:
    """Reserve the expected cost of the final test, so that the search cannot spend it.

    The amount is recorded: a resumed run reserves the same, although it has spent more by then.
    """
    rule, budget = active.request.final_test, active.evaluator.gateway.budget
    if rule is None:
        return
    spent = active.meter.ledger.of_models
    expected = _estimate_cost(active, rule) + (Spending() if budget is None else budget.largest_call)
    reserved = await active.note(BudgetReserved(measured=ReservedMeasured(expected=expected, before=spent)))
    found = reserved.measured
    if budget is not None:
        budget.hold(found.expected, share=MAX_RESERVED_SHARE, spent=spent - found.before)


def count_test_runs(cases: int, *, shape: RunShape) -> int:
    """The runs of one profile on a test set of this size; 0 if it is not run."""
    return TEST_SET_REPEATS * cases if is_test_set_run(cases, shape=shape) else 0


def _estimate_cost(active: ActiveRun, rule: FinalTest) -> Spending:
    """Estimate the cost of the final test: per run, what the baseline and its judges took on validation.

    The accepted profile may have the dearest of the models that the search may choose.
    """
    rows = active.baseline.validation.rows
    repeats = count_repeats(plan_final_test(active.request.alpha, repeats=rule.repeats))
    test_runs = 0 if active.test is None else count_test_runs(len(active.test.cases), shape=active.shape)
    runs = 2 * (repeats * len(active.validation.cases) + test_runs) / max(1, len(rows))
    judges = active.meter.ledger.by_role().get("judge", Spending())
    usage = active.baseline.validation.usage
    calls = sum(row.measured.paid_calls + row.measured.cache_hits for row in rows)
    return Spending(
        calls=round(runs * (calls + judges.calls + judges.cache_hits)),
        input_tokens=round(runs * (usage.tokens + judges.tokens)),
        cost_usd=runs * ((usage.cost_usd or 0.0) + (judges.cost_usd or 0.0) + _price_dearest_choices(active) / 2),
    )


def _price_dearest_choices(active: ActiveRun) -> float:
    """How many dollars more the baseline's calls had cost, if each node had asked its dearest choice."""
    spent, gateway, extra = active.meter.ledger.by_node(), active.evaluator.gateway, 0.0
    for node_id, models in list_model_choices(active.request, active.snapshot, active.targets).items():
        own = spent.get(node_id, Spending())
        usage = Usage(input_tokens=own.input_tokens, output_tokens=own.output_tokens)
        costs = [price.cost_usd(usage) or 0.0 for model in models if (price := gateway.price(model)) is not None]
        extra += max(0.0, max(costs, default=0.0) - (own.cost_usd or 0.0))
    return extra
