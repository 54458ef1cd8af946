"""The end of a run: what the final test shows, and which verdict follows.

The accepted profile and the initial one are run again (`final_test`), and one significance test decides. It looks at
the validation cases after each block. If these show a gain and there is a test set, one look at its cases decides
whether the gain holds for new cases too. A search may have learned from the validation cases: the new repeats still
show whether the profile is better on these cases, but then the verdict says that it is about nothing else.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import cycle, islice

from promptiter.engine.ablation import ablate
from promptiter.engine.active_run import ActiveRun
from promptiter.engine.case_memory import remember_final_test, remember_result, remember_test_set
from promptiter.engine.final_test import ArmResults, FinalTestRuns
from promptiter.engine.new_cases import (
    advise_test_set,
    count_inputs,
    decide_by_cases,
    explain_not_shown,
    explain_too_few_inputs,
    find_obstacle,
    is_promising,
    pair_goal_amounts,
)
from promptiter.engine.verdict_reasons import count_cases, describe_tried, explain_no_acceptance, suggest_steps
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import get_best_value
from promptiter.evaluation.stats.final_test import (
    FinalTestResult,
    Scope,
    count_repeats,
    fit_to_cases,
    plan_blocks,
    plan_final_test,
)
from promptiter.evaluation.stats.gain_interval import UNSEEN_FAILURES
from promptiter.evaluation.stats.non_inferiority import decide_non_inferiority
from promptiter.evaluation.stats.permutation import PairedScores, select_first
from promptiter.evaluation.stats.power import find_smallest_gain
from promptiter.policies.acceptance import decide
from promptiter.policies.constraints import decides_by_figures, list_figures
from promptiter.policies.evidence import AcceptanceDecision, Evidence, has_noise
from promptiter.policies.figures import has_figure_noise
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goal_test import decide_for_goal
from promptiter.policies.paired_runs import PairedRuns
from promptiter.policies.sigma_gain import skips_holdout
from promptiter.policies.verdict import FEWEST_CASES, Conclusion, Verdict
from promptiter.runlog.payloads import FinalTestFinished, FinishedMeasured
from promptiter.wording import format_score, plural


async def conclude_by_final_test(active: ActiveRun, rule: FinalTest) -> Conclusion:
    """Test the accepted profile, after an ablation has removed parts that do not help, and return the conclusion.

    Raw figures allow no ablation: it removes parts that do not change the score, such as one that was made for a bound.
    """
    if rule.ablate and active.request.goal.kind == "score" and not decides_by_figures(active.request.acceptance):
        await ablate(active)
    if (budget := active.evaluator.gateway.budget) is not None:
        budget.release()
    test = _TestedGain(active, rule, warning=await remember_final_test(active))
    if test.runs.is_out_of_reach:
        return _conclude(active, "no_evidence", "no route of the agent leads to what was changed")
    on_validation = await test.test_validation_cases()
    if test.problem is not None:
        return test.conclude("invalid_eval", [on_validation], test.problem)
    if not on_validation.is_shown:
        return test.conclude_not_shown(on_validation)
    return await test.conclude_gain(on_validation)


def conclude_without_test(active: ActiveRun) -> Conclusion:
    """Return the conclusion of a run that accepted nothing, or whose final test is turned off."""
    cases = len(active.validation.cases)
    if active.state.has_accepted:
        found = _conclude(active, "no_evidence", "no final test was run")
        return replace(found, is_untested=True)
    if active.state.candidates_tried and cases < FEWEST_CASES and active.shape != "scorer":
        reason = f"no candidate was accepted, and {count_cases(active)} are too few to tell why"
        return _conclude(active, "underpowered", reason)
    return _conclude(active, "no_evidence", explain_no_acceptance(active))


def _conclude(active: ActiveRun, verdict: Verdict, reason: str) -> Conclusion:
    count, cases = active.state.candidates_tried, len(active.validation.cases)
    reasons = (reason, *suggest_steps(active), describe_tried(active, plural(cases, "case")))
    return Conclusion(verdict=verdict, reasons=reasons, tried=count, cases=cases)


def _find_scope(active: ActiveRun) -> Scope:
    """What the validation of a run is about."""
    return "this scorer" if active.shape == "scorer" else "these cases"


class _TestedGain:
    """The gain of the accepted profile over the initial one, tested on their runs.

    `warning` says that this may not be the only final test of the run.
    """

    def __init__(self, active: ActiveRun, rule: FinalTest, *, warning: str | None) -> None:
        self.active = active
        self.rule = rule
        self.warning = warning
        self.goal = active.request.goal
        self.alpha = active.request.alpha
        plan = plan_final_test if self.goal.kind == "score" else plan_blocks
        self.blocks = fit_to_cases(plan(self.alpha, repeats=rule.repeats), len(active.validation.cases))
        self.runs = FinalTestRuns(active)
        self.on_validation: ArmResults | None = None
        self.on_test: ArmResults | None = None
        self.tested: list[PairedRuns] = []
        self.problem: str | None = None

    @property
    def arms(self) -> ArmResults:
        """Both profiles on the validation cases."""
        assert self.on_validation is not None, "a look comes after a block"
        return self.on_validation

    async def test_validation_cases(self) -> FinalTestResult:
        """Run block after block, until the test is decided. An extra block is left out if the budget ends in it.

        A test that an earlier version has finished, with other blocks, is not continued.
        """
        self.on_validation = await self.runs.run_block(self.rule.repeats)
        while (result := self._look()).outcome == "open" and self.problem is None:
            if await self.active.log.is_next(FinalTestFinished):
                break
            is_extra = self.blocks[len(result.looks)].is_extra
            try:
                self.on_validation = await self.runs.run_block(result.needed_repeats)
            except BudgetEndedError as ended:
                if not is_extra:
                    raise
                await self.active.record_budget_end(ended)
                result = replace(result, outcome="not_shown", reason=f"{result.reason}: {ended.message}")
                break
        return await self._finish(self._break_tie_by_figures(result), self.arms)

    def _break_tie_by_figures(self, result: FinalTestResult) -> FinalTestResult:
        """The result; if the scores are equal and the raw figures are better, a result that says so.

        The figures must be the same in every repeat: figures with noise have no test.
        """
        policy, arms = self.active.request.acceptance, self.arms
        if result.gain != 0 or self.problem is not None or not decides_by_figures(policy):
            return result
        names = list_figures(policy)
        if any(has_figure_noise(names, each) or has_noise(each) for each in (arms.before, arms.after)):
            return result
        decision = decide(policy, Evidence(accepted=arms.before, candidate=arms.after))
        if not isinstance(decision, AcceptanceDecision) or not decision.accepted:
            return result
        repeats = plural(arms.scores[0].repeats_made, "repeat")
        return replace(result, outcome="shown", reason=f"{decision.reason}; the same in {repeats}")

    def _look(self) -> FinalTestResult:
        self.problem = self.arms.problem
        result = decide_for_goal(
            self.goal,
            self.arms.scores,
            blocks=self.blocks,
            amounts=pair_goal_amounts(self.goal, self.arms),
            objective=self.active.request.objective,
            unseen_failures=self._unseen_failures,
        )
        return replace(result, scope=_find_scope(self.active))

    @property
    def _unseen_failures(self) -> float:
        """A scorer is called a few times only, which could never exclude unseen failures."""
        return 0.0 if self.active.shape == "scorer" else UNSEEN_FAILURES

    async def conclude_gain(self, on_validation: FinalTestResult) -> Conclusion:
        """Conclude a gain on validation by what is shown for new cases.

        That is the test set's to decide, if it has enough cases to decide anything, or else the validation cases', if
        the search has learned little from them.
        """
        test = self.active.test
        few = None if test is None else explain_too_few_inputs(test)
        if test is not None and self.active.shape == "scorer":
            return self._conclude_with_holdout(test, on_validation, await self._test_new_cases(test))
        if test is not None and few is None:
            return self._conclude_with_test_set(test, on_validation, await self._test_new_cases(test))
        reasons = () if few is None else (f"the test set was not run: {few}",)
        obstacle = find_obstacle(self.active, self.warning)
        if obstacle is not None:
            return self._conclude_for_these_cases([on_validation], *reasons, obstacle=obstacle)
        on_new_cases = await self._test_validation_cases_as_new(on_validation)
        obstacle = self.problem or find_obstacle(self.active, self.warning)
        if obstacle is not None:
            return self._conclude_for_these_cases([on_validation], *reasons, obstacle=obstacle)
        results, reasons = [on_validation, on_new_cases], (*reasons, self._explain_alpha())
        if on_new_cases.is_shown:
            return self.conclude("improved", results, *reasons)
        cases = f"{count_inputs(self.active.validation, 'validation case')}, which the search selected on,"
        obstacle = f"{explain_not_shown(on_new_cases, cases, self.goal)}; {advise_test_set(self.active.test)}"
        return self._conclude_for_these_cases(results, *reasons, obstacle=obstacle)

    def _conclude_for_these_cases(self, results: Sequence[FinalTestResult], *reasons: str, obstacle: str) -> Conclusion:
        """Conclude a gain that is not shown for new cases, because of the obstacle.

        If the request says that no case is held out, the gain may be specific to the cases of the search.
        """
        if self.active.shape == "one_set" and skips_holdout(self.active.request.acceptance):
            reason = "no case was held out, so the gain may be specific to those that the search learned from"
            return replace(self.conclude("overfit_risk", results, *reasons, reason), obstacle=obstacle)
        found = self.conclude("improved_on_validation", results, *reasons, f"not shown for new cases: {obstacle}")
        return replace(found, obstacle=obstacle)

    async def _test_new_cases(self, test: EvalSet) -> FinalTestResult:
        """Take one look at the test set."""
        await remember_test_set(self.active, test)
        arms = self.on_test = await self.runs.run_test_set(test)
        self.problem = None if arms.problem is None else f"on the test set, {arms.problem}"
        return await self._finish(decide_by_cases(test, arms, self.active.request, alpha=self.alpha), arms)

    async def _test_validation_cases_as_new(self, on_validation: FinalTestResult) -> FinalTestResult:
        """Take one look at the validation cases as a sample of new cases, after the third block.

        An extra block is not used: whether it is run depends on the gain so far. The other blocks are not run if they
        would hardly show a gain: ending the test without one claims nothing. Nor are they without run noise: they would
        repeat the same scores. Whether noise is seen says nothing about the gain, and the test for these cases, which
        comes first, allows for failures that are too rare to be seen.
        """
        result = self._decide_by_validation_cases()
        left = count_repeats(self.blocks) - on_validation.looks[-1].repeats
        if left > 0 and is_promising(result):
            self.on_validation = await self.runs.run_block(left)
            self.problem = self.arms.problem
            result = self._decide_by_validation_cases()
        self.tested.clear()  # the runs of these cases, of which there may be more now
        return await self._finish(result, self.arms, scope=on_validation.scope)

    def _decide_by_validation_cases(self) -> FinalTestResult:
        active, arms = self.active, self.arms
        arms = replace(arms, scores=tuple(select_first(arms.scores, count_repeats(self.blocks))))
        return decide_by_cases(active.validation, arms, active.request, alpha=self._alpha_for_new_cases)

    @property
    def _alpha_for_new_cases(self) -> float:
        """The alpha that is left for the validation cases by what they have told the search."""
        return self.active.state.validation_use.find_alpha(self.alpha)

    def _explain_alpha(self) -> str:
        learned = self.active.state.validation_use.describe()
        counted = f"so they count as new, with p <= {self._alpha_for_new_cases:.2g} instead of {self.alpha:g}"
        return f"of the validation cases the search knows only decisions ({learned}), {counted}"

    async def _finish(
        self, result: FinalTestResult, arms: ArmResults, *, scope: Scope | None = None
    ) -> FinalTestResult:
        finished = FinalTestFinished(
            result=result,
            runs=replace(arms.runs, scope=scope or result.scope),
            measured=FinishedMeasured(id=secrets.token_hex(8)),
        )
        recorded = await self.active.note(finished, request=result.scope)
        warning = await remember_result(self.active, recorded)
        self.warning = self.warning or warning
        self.tested.append(recorded.runs)
        return recorded.result

    def conclude_not_shown(self, result: FinalTestResult) -> Conclusion:
        """Conclude without a gain: because there is none, or because these cases could not have shown it."""
        count, wanted = len(self.active.validation.cases), self.rule.min_detectable_gain
        if self.goal.kind != "score":
            return self._conclude_loss_not_excluded(result)
        smallest = self._smallest_gain
        if smallest is None or smallest > wanted:
            could = "no gain at all" if smallest is None else f"a gain of at least {smallest:.2f}"
            reason = f"{count} such cases can show {could}, but not {wanted:g}; see `promptiter noise`"
            return self.conclude("underpowered", [result], reason)
        if count < FEWEST_CASES and self.active.shape != "scorer":
            return self.conclude("underpowered", [result], f"there are only {count_cases(self.active)}")
        return self.conclude("no_evidence", [result])

    def _conclude_loss_not_excluded(self, result: FinalTestResult) -> Conclusion:
        """Conclude `underpowered` if even the initial profile would not pass against itself on these cases."""
        repeats = sum(block.repeats for block in self.blocks)
        itself = []
        for case in self.arms.scores:
            before, after = (tuple(islice(cycle(case.before), first, first + repeats)) for first in (0, 1))
            itself.append(PairedScores(case_id=case.case_id, before=before, after=after))
        if decide_non_inferiority(itself, margin=self.goal.margin, blocks=self.blocks).is_shown:
            return self.conclude("no_evidence", [result])
        loss = f"a loss of {self.goal.margin:g}"
        reason = f"{len(itself)} such cases cannot exclude {loss}; give more of them, or a larger margin"
        return self.conclude("underpowered", [result], reason)

    def _conclude_with_test_set(
        self, test: EvalSet, on_validation: FinalTestResult, on_test: FinalTestResult
    ) -> Conclusion:
        """Conclude a gain on validation by what the test set shows."""
        problems = () if self.problem is None else (self.problem,)
        if on_test.outcome == "loss":
            reason = "cases that the search never used got worse, so the gain may be specific to those it used"
            return self.conclude("overfit_risk", [on_validation, on_test], reason, *problems)
        if self.problem is not None:
            return self._conclude_for_these_cases([on_validation], obstacle=self.problem)
        if on_test.is_shown:
            return self.conclude("improved", [on_validation, on_test])
        why = explain_not_shown(on_test, count_inputs(test, "test case"), self.goal)
        return self._conclude_for_these_cases([on_validation, on_test], obstacle=f"{why}; give more test cases")

    def _conclude_with_holdout(
        self, test: EvalSet, on_validation: FinalTestResult, on_test: FinalTestResult
    ) -> Conclusion:
        """Conclude a gain of a scorer with a hold-out.

        It guards against edits that please the scorer alone, so a lower mean is enough for a warning, however few its
        cases are. A gain has to be shown as on any test set.
        """
        assert self.on_test is not None, "the hold-out was run"
        objective = self.active.request.objective
        before, after = (each.objective(objective) for each in (self.on_test.before, self.on_test.after))
        figures = f"the hold-out, which the search never saw, is {format_score(after)}, was {format_score(before)}"
        results = [on_validation, on_test]
        if before is not None and self.on_test.before.is_reliable and (after is None or after < before):
            reason = f"{figures}: it got worse, so the gain may be specific to what the search measured"
            return self.conclude("overfit_risk", results, reason)
        if self.problem is not None:
            return self._conclude_for_these_cases([on_validation], figures, obstacle=self.problem)
        if on_test.is_shown:
            return self.conclude("improved", results, figures)
        why = explain_too_few_inputs(test) or explain_not_shown(on_test, count_inputs(test, "hold-out case"), self.goal)
        return self._conclude_for_these_cases(results, figures, obstacle=why)

    def conclude(self, verdict: Verdict, results: Sequence[FinalTestResult], *reasons: str) -> Conclusion:
        """Return the verdict with its evidence: the results of the test first, then other reasons."""
        active, objective, on_test = self.active, self.active.request.objective, self.on_test
        tried = f"{describe_tried(active, _find_scope(active))}, in other repeats"
        return Conclusion(
            verdict=verdict,
            scope=self._find_shown_scope(verdict),
            reasons=(
                *(f"{result.scope}: {result.reason}" for result in results),
                *reasons,
                *(() if self.warning is None else (self.warning,)),
                *suggest_steps(active),
                tried,
            ),
            results=tuple(results),
            before=self.arms.before.objective(objective),
            after=self.arms.after.objective(objective),
            test_before=None if on_test is None else on_test.before.objective(objective),
            test_after=None if on_test is None else on_test.after.objective(objective),
            tried=active.state.candidates_tried,
            cases=len(active.validation.cases),
            smallest_gain=self._smallest_gain,
            runs=tuple(self.tested),
            validation_use=active.state.validation_use,
        )

    def _find_shown_scope(self, verdict: Verdict) -> Scope | None:
        if verdict == "improved":
            return "new cases"
        return _find_scope(self.active) if verdict == "improved_on_validation" else None

    @cached_property
    def _smallest_gain(self) -> float | None:
        """The smallest gain that these cases can show, by the noise of the initial profile alone."""
        return find_smallest_gain(
            self.arms.scores,
            blocks=self.blocks,
            best=get_best_value(self.active.request.objective),
            unseen_failures=self._unseen_failures,
        )
