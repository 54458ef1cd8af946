"""FinalTestSection: the end of a run. The profile that it kept runs afresh beside the one it started with; one test
decides.

First the cases that it was kept on, on repeats that nothing was decided on, in blocks with a look after each. If that
shows a gain and there are test cases, which the search never used, one look at those says whether it holds for new
cases too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice

from promptiter.engine.ablation import ablate
from promptiter.engine.comparison import Arms
from promptiter.engine.evaluations import CaseRepeat
from promptiter.engine.session import Session
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import list_case_runs
from promptiter.evaluation.result import get_best_value
from promptiter.evaluation.stats.final_test import FinalTestResult, plan_blocks
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.power import FinalTestPlan, estimate_run_noise
from promptiter.llm.ledger import Spending
from promptiter.policies.combine import written
from promptiter.policies.error_rate import error_of, ignores_holdout
from promptiter.policies.evidence import Evidence, pair_scores
from promptiter.policies.final_test import FEWEST_CASES, Conclusion, FinalTest, Verdict
from promptiter.policies.goals import decide_for_goal, decide_on_test_set
from promptiter.runlog.codec import from_plain, to_plain
from traces.model import Json

MOST_HELD = 0.5
"""At most this share of what a budget has left after the baseline is held back for the claim."""

TEST_SET_REPEATS = 2
"""So many repeats of each test case; it counts once, by their mean."""


async def run_final_test(session: Session, rule: FinalTest) -> Conclusion:
    """What a run may say of the profile that it kept; a profile that lost parts before is the working one."""
    if rule.ablate and session.request.goal.kind == "score":
        await _ablate(session)
    if (budget := session.evaluator.gateway.budget) is not None:
        budget.release()
    claiming = _FinalTestRun(session, rule)
    if not claiming.touched:
        return _said(session, "no_evidence", "none of the validation cases reads what was kept")
    these = await claiming.these_cases()
    if claiming.problem is not None:
        return claiming.concluded("invalid_eval", [these], claiming.problem)
    if not these.is_shown:
        return claiming.not_shown(these)
    if session.test is None:
        return claiming.concluded("improved", [these])
    new = await claiming.new_cases(session.test)
    return claiming.beyond(these, new)


async def _ablate(session: Session) -> None:
    """Take out what does no good, as far as the budget lets; what is held back is for the claim alone."""
    try:
        found = await ablate(session)
    except BudgetEndedError as ended:
        await session.cut(ended)
    else:
        if found is not None:
            await session.note("ablation", {"value": to_plain(found)})


async def reserve_for_final_test(session: Session) -> None:
    """Hold back what the claim is expected to cost, so that a search cannot spend what would show its gain.

    It is in the log: a run that goes on holds back the same, though it has spent more by now.
    """
    rule, budget = session.request.final_test, session.evaluator.gateway.budget
    if rule is None:
        return
    spent = session.spending.ledger.of_models
    expected = _expected(session, rule) + (Spending() if budget is None else budget.largest_call)
    measured: dict[str, Json] = {"expected": to_plain(expected), "before": to_plain(spent)}
    found = (await session.note("held", {"measured": measured})).data["measured"]
    if budget is not None:
        before = from_plain(Spending, found["before"])
        budget.hold(from_plain(Spending, found["expected"]), share=MOST_HELD, spent=spent - before)


def _expected(session: Session, rule: FinalTest) -> Spending:
    """What the claim costs if both profiles take what the first took for its validation, and so do its judges."""
    rows, error = session.baseline.validation.rows, session.request.alpha
    repeats = sum(block.repeats for block in plan_blocks(error, repeats=rule.repeats))
    sealed = TEST_SET_REPEATS * len(session.test.cases) if session.test is not None else 0
    runs = 2 * (repeats * len(session.validation.cases) + sealed) / max(1, len(rows))
    judges = session.spending.ledger.by_role().get("judge", Spending())
    usage = session.baseline.validation.usage
    calls = sum(row.measured.paid_calls + row.measured.cache_hits for row in rows)
    return Spending(
        calls=round(runs * (calls + judges.calls + judges.cache_hits)),
        input_tokens=round(runs * (usage.tokens + judges.tokens)),
        cost_usd=runs * ((usage.cost_usd or 0.0) + (judges.cost_usd or 0.0)),
    )


def untested(session: Session) -> Conclusion:
    """What a run may say that kept nothing, or that was told to make no claim."""
    cases = len(session.validation.cases)
    if session.has_accepted:
        return _kept_untested(session)
    if session.candidates_tried and cases < FEWEST_CASES:
        told = f"nothing was kept, and {cases} validation cases are too few to tell why"
        return _said(session, "underpowered", told)
    return _said(session, "no_evidence", "nothing was kept" if session.candidates_tried else "there was nothing to try")


def _kept_untested(session: Session) -> Conclusion:
    """What was kept without a claim: each acceptance was a test of its own, or none."""
    acceptance = session.request.acceptance
    error, by = error_of(acceptance), written(acceptance)
    if ignores_holdout(acceptance):
        return _said(session, "overfit_risk", f"kept by {by}, which never looked at validation")
    if error is None:
        told = f"kept by {by}, which promises nothing, and nothing was tested at the end"
        return _said(session, "improved", told)
    found = _said(session, "improved", f"kept by {by}, which errs in {error:g} of all runs")
    return replace(found, scope="these cases")


def _said(session: Session, verdict: Verdict, told: str) -> Conclusion:
    """A conclusion without a claim."""
    count, cases = session.candidates_tried, len(session.validation.cases)
    tried = f"{count} candidate{'s' * (count != 1)} tried on {cases} cases"
    return Conclusion(verdict=verdict, reasons=(told, tried), tried=count, cases=cases)


class _FinalTestRun:
    """The claim of one run, between the profile it started with and the working one."""

    def __init__(self, session: Session, rule: FinalTest) -> None:
        self.session = session
        self.rule = rule
        self.goal = session.request.goal
        self.alpha = session.request.alpha
        self.blocks = plan_blocks(self.alpha, repeats=rule.repeats)
        self.problem: str | None = None
        self.arms: Arms | None = None
        self.paired: tuple[PairedScores, ...] = ()
        before, after = session.baseline, session.accepted
        changed = [change.surface_id for change in before.profile.changes(after.profile, session.snapshot)]
        self.touched = session.comparisons.touched((*before.validation.rows, *after.validation.rows), changed)

    async def these_cases(self) -> FinalTestResult:
        """Block after block, until the claim is settled."""
        session, repeats = self.session, self.rule.repeats
        while True:
            await self._run(session.comparisons.fresh(session.validation, self.touched, repeats))
            claim = self._look()
            if claim.outcome != "open" or self.problem is not None:
                return await self.session.record_known("final_test", claim, request=claim.scope)
            repeats = claim.needed_repeats

    async def _run(self, runs: Sequence[CaseRepeat]) -> None:
        """One block in both arms. Cases that cannot differ stand in both with the record of the first profile."""
        session, record = self.session, self.session.baseline.validation.rows
        kept = [row for row in record if row.case_id not in self.touched] if self.arms is None else []
        before, after = [
            await session.evaluations.evaluate(session.validation, profile, phase="final_test", runs=runs, kept=kept)
            for profile in (session.baseline.profile, session.accepted.profile)
        ]
        if self.arms is not None:
            before = replace(before, rows=(*self.arms.accepted.rows, *before.rows))
            after = replace(after, rows=(*self.arms.candidate.rows, *after.rows))
        untouched = frozenset(row.case_id for row in record) - self.touched
        self.arms = Arms(accepted=before, candidate=after, untouched=untouched)

    def _look(self) -> FinalTestResult:
        assert self.arms is not None, "a look comes after a block"
        shown, objective = self.arms.numbered, self.session.request.objective
        self.problem = Evidence(baseline=shown.accepted, candidate=shown.candidate, objective=objective).problem
        self.paired = pair_scores(shown.accepted, shown.candidate, objective)
        return decide_for_goal(self.goal, self.paired, blocks=self.blocks, seed=self.session.seed)

    async def new_cases(self, test: EvalSet) -> FinalTestResult:
        """One look at the test cases, which nothing has run before."""
        session, runs = self.session, list_case_runs(test, range(TEST_SET_REPEATS))
        before, after = [
            await session.evaluations.evaluate(test, profile, phase="test", runs=runs)
            for profile in (session.baseline.profile, session.accepted.profile)
        ]
        problem = Evidence(baseline=before, candidate=after, objective=session.request.objective).problem
        self.problem = None if problem is None else f"of the test cases, {problem}"
        sealed = pair_scores(before, after, session.request.objective)
        claim = decide_on_test_set(self.goal, sealed, alpha=self.alpha, seed=session.seed)
        return await session.record_known("final_test", claim, request=claim.scope)

    def not_shown(self, claim: FinalTestResult) -> Conclusion:
        """Nothing is claimed: because there is nothing, or because these cases could not have shown it."""
        count, wanted = len(self.session.validation.cases), self.rule.min_detectable_gain
        if self.goal.kind != "score":
            return self._loss_not_excluded(claim)
        least = self._smallest_gain
        if least is None or least > wanted:
            could = "no gain at all" if least is None else f"a gain of {least:.2f} at the least"
            told = f"{count} such cases can show {could}, not the {wanted:g} that is wanted; see `promptiter noise`"
            return self.concluded("underpowered", [claim], told)
        if count < FEWEST_CASES:
            return self.concluded("underpowered", [claim], f"there are only {count} validation cases")
        return self.concluded("no_evidence", [claim])

    def _loss_not_excluded(self, claim: FinalTestResult) -> Conclusion:
        """The first profile beside itself would have to pass: if not even that does, these cases cannot show it."""
        repeats = sum(block.repeats for block in self.blocks)
        itself = []
        for case in self.paired:
            before, after = (tuple(islice(cycle(case.before), first, first + repeats)) for first in (0, 1))
            itself.append(PairedScores(case_id=case.case_id, before=before, after=after))
        if decide_for_goal(self.goal, itself, blocks=self.blocks, seed=self.session.seed).is_shown:
            return self.concluded("no_evidence", [claim])
        loss = f"a loss of {self.goal.margin:g}"
        told = f"{len(itself)} such cases cannot exclude {loss}; give more of them, or a larger margin"
        return self.concluded("underpowered", [claim], told)

    def beyond(self, these: FinalTestResult, new: FinalTestResult) -> Conclusion:
        """What test cases add to a gain that was shown on those of the search."""
        if self.problem is not None:
            return self.concluded("improved", [these], self.problem)
        worst = 0.0 if self.goal.kind == "score" else -self.goal.margin
        if new.gain is not None and new.gain < worst:
            told = "cases that the search never used got worse, so the gain may be made for those it used"
            return self.concluded("overfit_risk", [these, new], told)
        return self.concluded("improved", [these, new])

    def concluded(self, verdict: Verdict, results: Sequence[FinalTestResult], *reasons: str) -> Conclusion:
        """The verdict with its evidence in words: the claims first, then what else counts."""
        session, objective = self.session, self.session.request.objective
        assert self.arms is not None, "a run concludes after its claim"
        shown = [claim for claim in results if claim.is_shown] if verdict == "improved" else []
        count = session.candidates_tried
        tried = f"{count} candidate{'s' * (count != 1)} tried on these cases before, on other repeats"
        return Conclusion(
            verdict=verdict,
            scope=shown[-1].scope if shown else None,
            reasons=(*(f"{claim.scope}: {claim.reason}" for claim in results), *reasons, tried),
            results=tuple(results),
            before=self.arms.accepted.objective(objective),
            after=self.arms.candidate.objective(objective),
            tried=session.candidates_tried,
            cases=len(session.validation.cases),
            smallest_gain=self._smallest_gain,
        )

    @cached_property
    def _smallest_gain(self) -> float | None:
        """What the noise of the first profile alone lets these cases show; never from the gain that was seen."""
        repeats = [case.before for case in self.paired]
        if all(len(each) < 2 for each in repeats):
            return None
        noise = estimate_run_noise(repeats, best=get_best_value(self.session.request.objective))
        return FinalTestPlan(noise=noise, cases=len(repeats), blocks=self.blocks).smallest_gain()
