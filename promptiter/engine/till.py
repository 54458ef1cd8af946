"""Till: what the steps of a rehearsed run take. It prices and counts them, and closes when the budget has ended.

What a case run takes on average is drawn anew for each rehearsal, and so is how far tokens and seconds are off.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias, get_args

from promptiter.engine.expectation import OWN_S, NodeUse
from promptiter.engine.final_test import MOST_HELD
from promptiter.engine.plan import Asked, RunPlan
from promptiter.llm.budget import Caps

AgentStage: TypeAlias = Literal["baseline", "train", "rerun", "validation", "ablation", "final_test", "test"]
Stage: TypeAlias = Literal[
    "teacher",
    "baseline",
    "train",
    "backwarder",
    "aggregator",
    "optimizer",
    "rerun",
    "validation",
    "ablation",
    "final_test",
    "test",
    "judge",
    "user",
]
AGENT_STAGES: tuple[AgentStage, ...] = get_args(AgentStage)
STAGES: tuple[Stage, ...] = get_args(Stage)

MOST_DRAWN = 48
"""So many case runs at most are drawn, to see what one takes on average."""

BUSY = 0.55
"""How busy a machine may be, compared with when it was recorded: the spread of the logarithm."""


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
    """What one way through a run took: by stage and node, and in sum after the baseline and each round.

    `held` is what the search would have to leave for the claim, if the budget has so much.
    """

    spent: dict[tuple[Stage, str], Amount] = field(default_factory=dict)
    after_round: list[Amount] = field(default_factory=list)
    total: Amount = field(default_factory=Amount)
    held: Amount = field(default_factory=Amount)

    @property
    def rounds(self) -> int:
        return max(0, len(self.after_round) - 1)


class BudgetEnded(Exception):  # noqa: N818 - no error: a rehearsal ends there
    """A cap is reached; nothing more is paid."""


class Till:
    """Counts what one rehearsal takes. `grows_by` is how much longer candidates are than what was recorded."""

    def __init__(self, plan: RunPlan, rng: Random, *, caps: Caps, grows_by: float) -> None:
        self.plan = plan
        self.rehearsal = Rehearsal()
        self._rng = rng
        self._caps = caps
        self._grows_by = grows_by
        self._is_holding = False
        self._mean, self._path_s = self._mean_case()
        self._whole_calls = sum(use.calls for use in self._mean.values())
        self._tokens_by = rng.lognormvariate(0, 0.05 if plan.is_recorded else 0.5)
        self._seconds_by = rng.lognormvariate(0, 0.4 if plan.is_recorded else 0.7)
        self.own_s = (plan.recorded.own_s or OWN_S) * rng.lognormvariate(0, BUSY)

    @property
    def blamable_calls(self) -> float:
        """How many steps of a case run could be blamed for something."""
        return sum(use.calls for node_id, use in self._mean.items() if node_id in self.plan.below)

    def touched(self, patched: Collection[str]) -> float:
        """The share of cases that may change with these nodes: of those that are known, who came by one of them."""
        cases = self.plan.cases
        share = sum(any(name in case.nodes for name in patched) for case in cases) / max(1, len(cases))
        return share or 1.0  # a node that never asked may be read all the same

    def hold(self, final_test_runs: float) -> None:
        """Hold back what so many case runs would take that are like those of the baseline, the only ones so far."""
        runs = self.plan.validation * self.plan.repeats
        for (stage, _), amount in self.rehearsal.spent.items():
            if stage != "teacher":
                self.rehearsal.held.add(amount, final_test_runs / runs)
        self._is_holding = True

    def release(self) -> None:
        """Give free what was held back."""
        self._is_holding = False

    def close_round(self) -> None:
        """Remember what was spent until now."""
        so_far = Amount()
        so_far.add(self.rehearsal.total)
        self.rehearsal.after_round.append(so_far)

    def evaluate(
        self,
        stage: AgentStage,
        cases: float,
        changed: frozenset[str] | None = None,
        *,
        repeats: int | None = None,
        moved: float | None = None,
        is_grown: bool = False,
    ) -> None:
        """Cases are run, all repeats of each: whole, or paid from what changed on.

        A node behind a change is asked something new only if what it is handed moved, which is so in a share of cases.
        """
        plan, rng = self.plan, self._rng
        runs = cases * (plan.repeats if repeats is None else repeats)
        if runs <= 0:
            return
        moved = 1.0 if changed is None else rng.uniform(0.5, 1.0) if moved is None else moved
        tokens_by = self._tokens_by * (self._grows_by if is_grown or changed is not None else 1.0)
        booked: dict[str, Amount] = {}
        paid_calls = 0.0
        for node_id, use in self._mean.items():
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
        one_s = self._path_s * self._seconds_by * paid_calls / max(1e-9, runs * self._whole_calls)
        total_s = sum(use.seconds for use in self._mean.values()) * self._seconds_by
        waiting_s = paid_calls / max(1e-9, self._whole_calls) * total_s / plan.slots
        seconds = max(one_s * max(1.0, runs / plan.concurrency), waiting_s) + self.own_s * paid_calls
        for amount in booked.values():
            amount.seconds = seconds * amount.calls / max(1e-9, paid_calls)
        self._book_all(stage, booked)
        if plan.user is not None:
            self.ask("user", plan.user, runs * moved * plan.user.calls, together=plan.concurrency)
        for judge in plan.judges:
            judged = 1.0 if changed is None else rng.uniform(0.3, 1.0)
            self.ask("judge", judge, runs * judge.calls * judged, together=plan.slots)

    def ask(self, stage: Stage, asked: Asked, calls: float, *, together: int = 16) -> None:
        """So many calls of one kind. Each takes what one takes, give or take."""
        if calls <= 0:
            return
        tokens_by = self._tokens_by * self._rng.lognormvariate(0, 0.2 if self.plan.recorded.calls else 0.5)
        at_once = max(1, min(together, self.plan.slots))
        self.book(
            stage,
            asked.node_id,
            self._amount(
                calls,
                calls * asked.use.input_tokens * tokens_by,
                calls * asked.use.output_tokens * tokens_by,
                seconds=max(1.0, calls / at_once) * asked.use.seconds * self._seconds_by,
                model=asked.model,
            ),
        )

    def book(self, stage: Stage, node_id: str, amount: Amount) -> None:
        self._book_all(stage, {node_id: amount})

    def _mean_case(self) -> tuple[dict[str, NodeUse], float]:
        """What a case run takes on average, over as many as a run has, drawn from those that are known."""
        plan = self.plan
        count = min(MOST_DRAWN, (plan.train + plan.validation) * plan.repeats)
        drawn = self._rng.choices(plan.cases, k=count)
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

    def _amount(
        self, calls: float, input_tokens: float, output_tokens: float, *, model: str, seconds: float = 0.0
    ) -> Amount:
        price = self.plan.prices.get(model)
        usd = 0.0
        if price is not None:
            usd = (input_tokens * price.input_usd_per_million + output_tokens * price.output_usd_per_million) / 1e6
        return Amount(calls, input_tokens + output_tokens, usd, seconds)

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
            raise BudgetEnded

    def _fitting(self, wanted: Amount) -> float:
        """The share that still fits: a call is made only if the longest answer would fit, too."""
        spent, plan, held = self.rehearsal.total, self.plan, self.rehearsal.held if self._is_holding else Amount()
        at_first = self.rehearsal.after_round[0] if self._is_holding else spent
        shares = [1.0]
        for cap, used, more, reserved, before, wished in (
            (self._caps.max_calls, spent.calls, wanted.calls, 0.0, at_first.calls, held.calls),
            (self._caps.max_tokens, spent.tokens, wanted.tokens, plan.reserved_tokens, at_first.tokens, held.tokens),
            (self._caps.max_usd, spent.usd, wanted.usd, plan.reserved_usd, at_first.usd, held.usd),
        ):
            if cap is not None and more > 0:
                room = cap - reserved - used - held_back(cap, before, wished)
                shares.append(max(0.0, room) / more)
        return min(shares)


def held_back(cap: float, after_baseline: float, wished: float) -> float:
    """What of a cap the search may not spend, because the claim is expected to take it."""
    most = MOST_HELD * max(0.0, cap - after_baseline)
    return min(wished, int(most) if isinstance(cap, int) else most)
