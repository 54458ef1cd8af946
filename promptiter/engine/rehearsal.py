"""A run played through with dice instead of models: how many rounds it takes, what fails, what is paid again.

One rehearsal is one way that a run may go. A forecast is what many of them add up to. What the dice know of a search is
written in the constants below: most first candidates are kept, later ones mostly not, and a change is paid for from
the changed node on, as far as it changes what later nodes are asked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

from promptiter.engine.expectation import NodeUse
from promptiter.engine.plan import Asked, RunPlan
from promptiter.llm.budget import Caps
from promptiter.llm.messages import Role

Stage: TypeAlias = Literal[
    "teacher", "baseline", "train", "backwarder", "aggregator", "optimizer", "rerun", "validation", "judge", "user"
]
STAGES: tuple[Stage, ...] = get_args(Stage)

NO_FIRST_PATCH = 0.02
"""How often even the first round has no patch."""

HELPS, KEPT_FIRST = 0.92, 0.92
"""How often patches help the cases they were made from; and how often the first that do convince on validation."""

UNRULY = 0.25
"""How many agents have models that do not always obey."""

MOST_DRAWN, MOST_ROUNDS = 48, 50
OWN_S_PER_CALL, OWN_S_PER_ROUND = 0.004, (0.1, 0.8)
"""What promptiter itself takes: to write down a call, and to blame and patch without models."""

STAGES_AT_ONCE = 64


@dataclass(slots=True)
class Amount:
    """Calls, tokens, dollars as far as prices are known, and seconds as on a clock. It grows."""

    calls: float = 0.0
    tokens: float = 0.0
    usd: float = 0.0
    seconds: float = 0.0

    def add(self, other: Amount, share: float = 1.0) -> None:
        self.calls += share * other.calls
        self.tokens += share * other.tokens
        self.usd += share * other.usd
        self.seconds += share * other.seconds


@dataclass(slots=True)
class Rehearsal:
    """What one way through a run took: by stage and node, and in sum after the baseline and each round."""

    spent: dict[tuple[Stage, str], Amount] = field(default_factory=dict)
    after_round: list[Amount] = field(default_factory=list)
    total: Amount = field(default_factory=Amount)

    @property
    def rounds(self) -> int:
        return max(0, len(self.after_round) - 1)


def rehearse(plan: RunPlan, rng: Random, *, is_endless: bool = False) -> Rehearsal:
    """Play a run through once. An endless one makes all rounds that are allowed, whatever stops it or caps it."""
    run = _Run(plan, rng, caps=Caps() if is_endless else plan.caps)
    try:
        run.play(is_endless=is_endless)
    except _BudgetEndedError:
        run.close_round()
    return run.rehearsal


class _BudgetEndedError(Exception):
    """A cap is reached; nothing more is paid."""


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

    @staticmethod
    def drawn(rng: Random, *, has_rules: bool) -> _Character:
        """Where models do not always obey, something always fails: much is blamed, and the search goes on and on.

        Rules have soon said all they can; a model mostly has one more idea.
        """
        keeps_later = rng.uniform(0.1, 0.6)
        if rng.random() < UNRULY:
            return _Character(
                another_pass=rng.uniform(0.4, 0.9),
                another_patch=rng.uniform(0.4, 0.9),
                gives_up=rng.uniform(0.0, 0.3),
                keeps_later=keeps_later,
                all_mended=0.0,
                grows_by=rng.lognormvariate(0.3, 0.25),
            )
        return _Character(
            another_pass=0.3,
            another_patch=rng.betavariate(1.2, 2.2),
            gives_up=rng.betavariate(1.2, 0.8) if has_rules else rng.betavariate(1, 9),
            keeps_later=keeps_later,
            all_mended=0.5,
            grows_by=rng.lognormvariate(0.05, 0.15),
        )


class _Run:
    def __init__(self, plan: RunPlan, rng: Random, *, caps: Caps) -> None:
        self.plan = plan
        self.rng = rng
        self.caps = caps
        self.rehearsal = Rehearsal()
        self.mean, self.path_s = self._mean_case()
        recorded = plan.recorded
        self.failing = rng.betavariate(1 + recorded.failed, 1 + recorded.passed)
        self.agent = _Character.drawn(rng, has_rules=plan.search.optimizer is None)
        self.is_changed = False
        self.evaluations = 0
        self.whole_calls = sum(use.calls for use in self.mean.values())
        spread = 0.05 if plan.is_recorded else 0.5
        self.tokens_by = rng.lognormvariate(0, spread)
        self.seconds_by = rng.lognormvariate(0, 0.4 if plan.is_recorded else 0.7)

    def play(self, *, is_endless: bool) -> None:
        plan, limits, total = self.plan, self.plan.limits, self.rehearsal.total
        for each in plan.teacher:
            self._ask("teacher", each, each.calls)
        self._evaluate("baseline", plan.validation)
        self.close_round()
        if plan.max_rounds == 0 or (self._reaches_target() and not is_endless):
            return
        idle, changed, rerun, is_known = 0, frozenset[str](), 0, False
        for number in range(1, min(plan.max_rounds, MOST_ROUNDS) + 1):
            if not is_known:
                self._train(changed, rerun, is_first=number == 1)
            failed = self._failures(plan.train) if not is_known or number == 1 else max(1, self._failures(plan.train))
            if self._has_nothing_to_try(failed, is_first=number == 1) and not is_endless:
                self.close_round()
                return
            self.evaluations += 0 if is_known else plan.train
            rerun = min(max(1, failed), plan.search.most_rerun)
            changed = self._propose(max(1, failed), rerun, is_known=is_known)
            is_kept = False
            if self.rng.random() < HELPS:
                self._evaluate("validation", plan.validation, changed)
                is_kept = self.rng.random() < (self.agent.keeps_later if self.is_changed else KEPT_FIRST)
            if is_kept:
                self.failing = (
                    0.0 if self.rng.random() < self.agent.all_mended else self.failing * self.rng.uniform(0.2, 0.95)
                )
            self.is_changed = self.is_changed or is_kept
            is_known, idle = not is_kept, 0 if is_kept else idle + 1
            self.close_round()
            if is_endless:
                continue
            spent: tuple[tuple[float | None, float], ...] = (
                *((limits.calls, total.calls), (limits.tokens, total.tokens), (limits.usd, total.usd)),
                *((limits.seconds, total.seconds), (limits.evaluations, self.evaluations), (limits.patience, idle)),
            )
            if any(limit is not None and figure >= limit for limit, figure in spent):
                return
            if is_kept and self._reaches_target():
                return

    def close_round(self) -> None:
        so_far = Amount()
        so_far.add(self.rehearsal.total)
        self.rehearsal.after_round.append(so_far)

    def _mean_case(self) -> tuple[dict[str, NodeUse], float]:
        """What a case run takes on average, over as many as a run has, drawn from those that are known."""
        plan = self.plan
        count = min(MOST_DRAWN, (plan.train + plan.validation) * plan.draws)
        drawn = self.rng.choices(plan.cases, k=count)
        sums: dict[str, list[float]] = {}
        for case in drawn:
            for node_id, use in case.nodes.items():
                held = sums.setdefault(node_id, [0.0, 0.0, 0.0, 0.0])
                held[0] += use.calls
                held[1] += use.input_tokens
                held[2] += use.output_tokens
                held[3] += use.seconds
        mean = {
            node_id: NodeUse(
                calls=held[0] / count,
                input_tokens=held[1] / count,
                output_tokens=held[2] / count,
                seconds=held[3] / count,
            )
            for node_id, held in sorted(sums.items())
        }
        return mean, sum(case.path_s for case in drawn) / count

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
        if is_first:
            self._evaluate("train", self.plan.train)
        else:
            self._evaluate("train", self.plan.train - rerun, changed, moved=self.rng.uniform(0.1, 0.9))

    def _propose(self, failed: int, rerun: int, *, is_known: bool) -> frozenset[str]:
        """Blame, merge, patch and run again, once or more often; gives the nodes that may be paid again."""
        plan, rng = self.plan, self.rng
        passes = 1
        while passes < plan.search.passes and rng.random() < self.agent.another_pass:
            passes += 1
        everything: frozenset[str] = frozenset()
        for number in range(passes):
            failing = failed * plan.draws if number == 0 else max(1.0, rerun * rng.random()) * plan.draws
            if number > 0 or not is_known:
                self._blame(failing)
            patched = self._patched()
            self._stage("optimizer", len(patched) * rng.choice((1.0, 1.0, 1.0, 2.0)), together=len(patched))
            changed = frozenset().union(*(plan.below[node_id] for node_id in patched))
            everything |= changed
            if number < plan.search.passes - 1:
                self._evaluate("rerun", rerun, changed)
        if passes < plan.search.passes and rng.random() < 0.4:  # what still fails is blamed, and nothing comes of it
            self._blame(max(1.0, rerun * rng.random()) * plan.draws)
        return everything

    def _patched(self) -> list[str]:
        nodes = sorted(self.plan.below)
        count = 1
        while count < len(nodes) and self.rng.random() < self.agent.another_patch:
            count += 1
        return self.rng.sample(nodes, count)

    def _blame(self, failing: float) -> None:
        """Each failed run is walked back over some of the steps that could be blamed, then what was found is merged."""
        steps = sum(use.calls for node_id, use in self.mean.items() if node_id in self.plan.below)
        self._stage("backwarder", failing * max(1.0, steps * self.rng.uniform(0.3, 1.0)), together=STAGES_AT_ONCE)
        surfaces = self.rng.randint(1, min(4, len(self.plan.below)))
        merged = surfaces * self.rng.uniform(0.3, 1.0) * max(1.0, failing / 200)
        self._stage("aggregator", merged, together=surfaces)
        if not self.plan.stages:
            self._book("backwarder", "", Amount(seconds=self.rng.uniform(*OWN_S_PER_ROUND)))

    def _stage(self, role: Role, calls: float, *, together: int) -> None:
        asked = self.plan.stages.get(role)
        if asked is not None and (role == "backwarder" or role == "aggregator" or role == "optimizer"):
            self._ask(role, asked, max(1.0, round(calls)) * self.rng.uniform(1.0, 1.1), together=together)

    def _ask(self, stage: Stage, asked: Asked, calls: float, *, together: int = 16) -> None:
        """So many calls of one kind. Each takes what one takes, give or take."""
        if calls <= 0:
            return
        tokens_by = self.tokens_by * self.rng.lognormvariate(0, 0.2 if self.plan.recorded.calls else 0.5)
        at_once = max(1, min(together, self.plan.slots))
        self._book(
            stage,
            asked.node_id,
            self._amount(
                calls,
                calls * asked.use.input_tokens * tokens_by,
                calls * asked.use.output_tokens * tokens_by,
                seconds=max(1.0, calls / at_once) * asked.use.seconds * self.seconds_by,
                model=asked.model,
            ),
        )

    def _evaluate(
        self, stage: Stage, cases: float, changed: frozenset[str] | None = None, *, moved: float | None = None
    ) -> None:
        """Cases are run, all draws of each: whole, or paid from what changed on.

        A node behind a change is asked something new only if what it is handed moved, which is so in a share of cases.
        """
        plan, rng = self.plan, self.rng
        runs = cases * plan.draws
        if runs <= 0:
            return
        moved = 1.0 if changed is None else rng.uniform(0.5, 1.0) if moved is None else moved
        tokens_by = self.tokens_by * (1.0 if changed is None else self.agent.grows_by)
        booked: dict[str, Amount] = {}
        paid_calls = 0.0
        for node_id, use in self.mean.items():
            if changed is not None and node_id not in changed:
                continue
            share = runs * moved
            paid_calls += share * use.calls
            booked[node_id] = self._amount(
                share * use.calls,
                share * use.input_tokens * tokens_by,
                share * use.output_tokens * tokens_by,
                model=plan.model_of(node_id),
            )
        one_s = self.path_s * self.seconds_by * paid_calls / max(1e-9, runs * self.whole_calls)
        total_s = sum(use.seconds for use in self.mean.values()) * self.seconds_by
        waiting_s = paid_calls / max(1e-9, self.whole_calls) * total_s / plan.slots
        seconds = max(one_s * max(1.0, runs / plan.concurrency), waiting_s) + OWN_S_PER_CALL * paid_calls
        for amount in booked.values():
            amount.seconds = seconds * amount.calls / max(1e-9, paid_calls)
        self._book_all(stage, booked)
        if plan.user is not None:
            self._ask("user", plan.user, runs * moved * plan.user.calls, together=plan.concurrency)
        for judge in plan.judges:
            judged = 1.0 if changed is None else rng.uniform(0.3, 1.0)
            self._ask("judge", judge, runs * judge.calls * judged, together=plan.slots)

    def _amount(
        self, calls: float, input_tokens: float, output_tokens: float, *, model: str, seconds: float = 0.0
    ) -> Amount:
        price = self.plan.prices.get(model)
        usd = 0.0
        if price is not None:
            usd = (input_tokens * price.input_usd_per_million + output_tokens * price.output_usd_per_million) / 1e6
        return Amount(calls, input_tokens + output_tokens, usd, seconds)

    def _book(self, stage: Stage, node_id: str, amount: Amount) -> None:
        self._book_all(stage, {node_id: amount})

    def _book_all(self, stage: Stage, booked: dict[str, Amount]) -> None:
        """Count what a stage took; of one that does not fit into the budget, the part that does."""
        whole = Amount()
        for amount in booked.values():
            whole.add(amount)
        share = self._fitting(whole)
        for node_id, amount in booked.items():
            self.rehearsal.spent.setdefault((stage, node_id), Amount()).add(amount, share)
        self.rehearsal.total.add(whole, share)
        if share < 1.0:
            raise _BudgetEndedError

    def _fitting(self, wanted: Amount) -> float:
        """The share that still fits: a call is made only if the longest answer would fit, too."""
        spent, plan = self.rehearsal.total, self.plan
        shares = [1.0]
        for cap, used, more, held in (
            (self.caps.max_calls, spent.calls, wanted.calls, 0.0),
            (self.caps.max_tokens, spent.tokens, wanted.tokens, plan.reserved_tokens),
            (self.caps.max_usd, spent.usd, wanted.usd, plan.reserved_usd),
        ):
            if cap is not None and more > 0:
                shares.append(max(0.0, cap - held - used) / more)
        return min(shares)
