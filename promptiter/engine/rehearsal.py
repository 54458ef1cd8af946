"""A run played through with dice instead of models: how many rounds it takes, what fails, what is paid again.

One rehearsal is one way that a run may go. A forecast is what many of them add up to. What the dice know of a search is
written in the constants below: most first candidates are kept, later ones mostly not, and a change is paid for from
the changed node on, as far as it changes what later nodes are asked.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from promptiter.engine.ending import Kept, Noise, rehearse_ending
from promptiter.engine.expectation import Recorded
from promptiter.engine.plan import RunPlan, StageRole
from promptiter.engine.till import MOST_DRAWN, Amount, BudgetEnded, Rehearsal, Till
from promptiter.llm.budget import Caps

NO_FIRST_PATCH = 0.01
"""How often even the first round has no patch."""

HELPS, KEPT_FIRST = 0.98, 0.98
"""How often patches help the cases they were made from; and how often the first that do convince on validation."""

KEPT_SCREENED, NO_MORE_AFTER_KEPT, NO_MORE_AFTER_REJECTED = 0.6, 0.6, 0.25
"""How often what is cheaper or shorter is kept; and how often nothing is left to try after that, or a rejection."""

UNRULY, UNRULY_IF_MUCH_PATCHED, UNRULY_IF_LITTLE, UNRULY_WITHOUT_NOISE = 0.15, 0.6, 0.06, 0.02
"""How many agents have models that do not obey: if nothing is known, by earlier patches, and if runs never differ."""

MUCH_PATCHED = 2.5

MOST_ROUNDS = 50
OWN_CALLS_PER_ROUND = (25, 200)
"""What promptiter itself takes to blame and patch without models, in calls that it could write down meanwhile."""

STAGES_AT_ONCE = 64


def rehearse(plan: RunPlan, rng: Random, *, is_endless: bool = False) -> Rehearsal:
    """Play a run through once. An endless one makes all rounds that are allowed, whatever stops it or caps it."""
    agent = _Character.drawn(rng, has_rules=plan.search.optimizer is None, recorded=plan.recorded)
    till = Till(plan, rng, caps=Caps() if is_endless else plan.caps, grows_by=agent.grows_by)
    with suppress(BudgetEnded):
        _Run(plan, till, rng, agent).play(is_endless=is_endless)
    return till.rehearsal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Character:
    """How an agent and its stages are, which is the same in all rounds of a run and differs from run to run.

    How often blame moves on once patches are in place, one more surface is patched with others, a later round has no
    patch, a later candidate is kept, one that is kept leaves no failure; and by how much candidates grow, whose nodes
    are told more and hand on more.
    """

    another_pass: float
    another_patch: float
    gives_up: float
    keeps_later: float
    all_mended: float
    grows_by: float
    noise: Noise

    @staticmethod
    def drawn(rng: Random, *, has_rules: bool, recorded: Recorded) -> _Character:
        """Where models do not always obey, something always fails: much is blamed, and the search goes on and on.

        Rules have soon said all they can; a model mostly has one more idea.
        """
        noise = recorded.noise
        if rng.random() < _unruly(recorded):
            return _Character(
                another_pass=rng.uniform(0.4, 0.9),
                another_patch=rng.uniform(0.4, 0.9),
                gives_up=rng.uniform(0.0, 0.2),
                keeps_later=rng.uniform(0.3, 0.8),
                all_mended=0.0,
                grows_by=rng.lognormvariate(0.2, 0.15),
                noise="much",
            )
        return _Character(
            another_pass=0.2,
            another_patch=rng.betavariate(1, 4),
            gives_up=rng.betavariate(1.5, 0.7) if has_rules else rng.betavariate(1, 9),
            keeps_later=rng.uniform(0.1, 0.6),
            all_mended=0.5,
            grows_by=rng.lognormvariate(0.05, 0.1),
            noise="some" if noise or (noise is None and rng.random() < 0.5) else "none",
        )


def _unruly(recorded: Recorded) -> float:
    """How likely it is that an agent does not obey, by what earlier runs of it did."""
    if recorded.noise == 0:
        return UNRULY_WITHOUT_NOISE
    if recorded.patched is None:
        return UNRULY
    return UNRULY_IF_MUCH_PATCHED if recorded.patched > MUCH_PATCHED else UNRULY_IF_LITTLE


class _Run:
    """The search of one rehearsal: what fails, what is patched, what is kept."""

    def __init__(self, plan: RunPlan, till: Till, rng: Random, agent: _Character) -> None:
        self.plan = plan
        self.till = till
        self.rng = rng
        self.agent = agent
        self.failing = rng.betavariate(1 + plan.recorded.failed, 1 + plan.recorded.passed)
        self.failing_at_first = self.failing
        self.kept: frozenset[str] = frozenset()
        self.validated = 0
        self.kept_at = 0
        self.idle_rounds = 0
        self.evaluations = 0

    def play(self, *, is_endless: bool) -> None:
        """The baseline, the search, and the claim of what it kept; a search that the budget cuts may have its claim."""
        plan, till = self.plan, self.till
        for each in plan.teacher:
            till.ask("teacher", each, each.calls)
        till.evaluate("baseline", plan.validation)
        till.close_round()
        if plan.max_rounds == 0:
            return
        if plan.final_test is not None:
            till.hold(2 * plan.final_test.repeats * plan.final_test.blocks * plan.validation)
        try:
            if is_endless or not self._reaches_target():
                self._search(is_endless=is_endless)
        except BudgetEnded:
            till.close_round()
            if plan.final_test is None or not self.kept:
                raise
        till.release()
        if self.kept and not is_endless:
            rehearse_ending(plan, till, self.rng, self._what_was_kept())

    def _search(self, *, is_endless: bool) -> None:
        plan, till = self.plan, self.till
        if plan.search.screened is not None:
            self._search_screened(plan.search.screened, is_endless=is_endless)
            return
        changed, rerun, is_known = frozenset[str](), 0, False
        for number in range(1, min(plan.max_rounds, MOST_ROUNDS) + 1):
            if not is_known:
                self._train(changed, rerun, is_first=number == 1)
            failed = max(int(is_known), self._failures(plan.train))
            if self._has_nothing_to_try(failed, is_first=number == 1) and not is_endless:
                till.close_round()
                return
            rerun = min(max(1, failed), plan.search.most_rerun)
            patched = self._propose(max(1, failed), rerun, is_known=is_known)
            changed = plan.paid_again(patched)
            is_known = not self._is_kept(patched)
            till.close_round()
            if self._is_over() and not is_endless:
                return

    def _search_screened(self, screened: int, *, is_endless: bool) -> None:
        """A search for a goal besides the score: what train does not miss is validated, one candidate a round."""
        plan, till, rng = self.plan, self.till, self.rng
        cases = min(screened, plan.train)
        if cases and plan.search.screens:
            till.evaluate("train", cases)
            for _ in range(round(len(plan.below) * plan.search.screens * rng.uniform(0.3, 2.0))):
                till.evaluate("rerun", cases * rng.uniform(0.3, 1.0), plan.paid_again(self._one_node()))
        for _ in range(min(plan.max_rounds, MOST_ROUNDS)):
            patched = self._one_node()
            self._validate(patched)
            is_kept = rng.random() < KEPT_SCREENED
            if is_kept:
                self.kept, self.kept_at = self.kept | patched, self.validated
            self.idle_rounds = 0 if is_kept else self.idle_rounds + 1
            till.close_round()
            is_done = rng.random() < (NO_MORE_AFTER_KEPT if is_kept else NO_MORE_AFTER_REJECTED)
            if (is_done or self._is_over()) and not is_endless:
                return

    def _one_node(self) -> frozenset[str]:
        return frozenset((self.rng.choice(sorted(self.plan.below)),))

    def _is_kept(self, patched: frozenset[str]) -> bool:
        """Whether a candidate helps, convinces on validation, and is what the next round starts from."""
        is_kept = False
        if self.rng.random() < HELPS:
            self._validate(patched)
            is_kept = self.rng.random() < (self.agent.keeps_later if self.kept else KEPT_FIRST)
        if is_kept:
            is_mended = self.rng.random() < self.agent.all_mended
            self.failing = 0.0 if is_mended else self.failing * self.rng.uniform(0.2, 0.95)
            self.kept, self.kept_at = self.kept | patched, self.validated
        self.idle_rounds = 0 if is_kept else self.idle_rounds + 1
        return is_kept

    def _validate(self, patched: frozenset[str]) -> None:
        """The first candidate beside the baseline's record; each later one beside the accepted profile, run afresh."""
        cases = self.plan.validation * self.till.touched(patched)
        self.validated += 1
        if self.validated > 1:
            self.till.evaluate("validation", cases, is_grown=bool(self.kept))
        self.till.evaluate("validation", cases, self.plan.paid_again(patched))

    def _what_was_kept(self) -> Kept:
        return Kept(
            nodes=self.kept,
            is_recorded=self.kept_at == 1,
            mended=self.plan.validation * max(0.0, self.failing_at_first - self.failing),
            noise=self.agent.noise,
        )

    def _is_over(self) -> bool:
        """Whether something stops the run between rounds."""
        limits, total = self.plan.limits, self.till.rehearsal.total
        reached: tuple[tuple[float | None, float], ...] = (
            *((limits.calls, total.calls), (limits.tokens, total.tokens), (limits.usd, total.usd)),
            *((limits.seconds, total.seconds), (limits.evaluations, self.evaluations)),
            (limits.patience, self.idle_rounds),
        )
        if any(limit is not None and figure >= limit for limit, figure in reached):
            return True
        return self.idle_rounds == 0 and self._reaches_target()

    def _failures(self, cases: int) -> int:
        """How many of so many cases fail."""
        if cases > MOST_DRAWN:
            spread = math.sqrt(cases * self.failing * (1 - self.failing))
            return min(cases, max(0, round(self.rng.gauss(cases * self.failing, spread))))
        return sum(self.rng.random() < self.failing for _ in range(cases))

    def _reaches_target(self) -> bool:
        target = self.plan.limits.target
        return target is not None and 1 - self._failures(self.plan.validation) / self.plan.validation >= target

    def _has_nothing_to_try(self, failed: int, *, is_first: bool) -> bool:
        return failed == 0 or self.rng.random() < (NO_FIRST_PATCH if is_first else self.agent.gives_up)

    def _train(self, changed: frozenset[str], rerun: int, *, is_first: bool) -> None:
        """The train cases: whole at first; after a change those that were not run again with it, and what moved."""
        self.evaluations += self.plan.train
        if is_first:
            self.till.evaluate("train", self.plan.train)
        else:
            self.till.evaluate("train", self.plan.train - rerun, changed, moved=self.rng.uniform(0.1, 0.9))

    def _propose(self, failed: int, rerun: int, *, is_known: bool) -> frozenset[str]:
        """Blame, merge, patch and run again, once or more often; gives the nodes that were patched."""
        plan, rng = self.plan, self.rng
        passes = 1
        while passes < plan.search.passes and rng.random() < self.agent.another_pass:
            passes += 1
        everything: frozenset[str] = frozenset()
        for number in range(passes):
            failing = failed * plan.repeats if number == 0 else max(1.0, rerun * rng.random()) * plan.repeats
            if number > 0 or not is_known:
                self._blame(failing)
            if number == 0 and not is_known:
                self._check(failing)
            patched = self._patched()
            self._stage("optimizer", len(patched) * rng.choice((1.0, 1.0, 1.0, 2.0)), together=len(patched))
            everything |= patched
            if number < plan.search.passes - 1:
                self.till.evaluate("rerun", rerun, plan.paid_again(patched))
        if passes < plan.search.passes and rng.random() < 0.4:  # what still fails is blamed, and nothing comes of it
            self._blame(max(1.0, rerun * rng.random()) * plan.repeats)
        return everything

    def _patched(self) -> frozenset[str]:
        nodes = sorted(self.plan.below)
        count = 1
        while count < len(nodes) and self.rng.random() < self.agent.another_patch:
            count += 1
        return frozenset(self.rng.sample(nodes, count))

    def _blame(self, failing: float) -> None:
        """Each failed run is walked back over some of the steps that could be blamed, then what was found is merged."""
        steps = self.till.blamable_calls * self.rng.uniform(0.3, 1.0)
        self._stage("backwarder", failing * max(1.0, steps), together=STAGES_AT_ONCE)
        surfaces = self.rng.randint(1, min(4, len(self.plan.below)))
        merged = surfaces * self.rng.uniform(0.3, 1.0) * max(1.0, failing / 200)
        self._stage("aggregator", merged, together=surfaces)
        if not self.plan.stages:
            seconds = self.till.own_s * self.rng.uniform(*OWN_CALLS_PER_ROUND)
            self.till.book("backwarder", "", Amount(seconds=seconds))

    def _check(self, failing: float) -> None:
        """Some blame is checked: blamed steps are corrected, and what follows them is replayed."""
        plan, rng = self.plan, self.rng
        if plan.search.most_checked == 0:
            return
        checked = min(plan.search.most_checked, failing * rng.uniform(1.0, 2.0)) * rng.uniform(0.2, 1.0)
        if plan.corrector is not None:
            self.till.ask("teacher", plan.corrector, checked * rng.uniform(0.3, 2.0))
        self.till.evaluate("rerun", checked / plan.repeats, plan.below[rng.choice(sorted(plan.below))])

    def _stage(self, role: StageRole, calls: float, *, together: int) -> None:
        """So many calls of a stage, if it asks a model; some answers have to be repaired."""
        asked = self.plan.stages.get(role)
        if asked is not None:
            self.till.ask(role, asked, max(1.0, round(calls)) * self.rng.uniform(1.0, 1.1), together=together)
