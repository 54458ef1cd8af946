"""What a run takes if it goes as assumed: SHORT, TYPICAL and LONG say how.

The number of case runs of each stage is multiplied by the cost of a case run. After a change a case run is paid only
from the changed node on: the cache answers what precedes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TypeAlias

from promptiter.engine.final_test import MAX_RESERVED_SHARE, TEST_SET_REPEATS
from promptiter.forecast.history import History
from promptiter.forecast.stage_costs import AgentStage, ModelStage, Stage
from promptiter.forecast.unit_costs import NO_COST, Cost, Figure, UnitCosts
from promptiter.forecast.workload import Asked, Workload
from promptiter.llm.ledger import Spending
from promptiter.policies.stopping import Progress

Caps: TypeAlias = Mapping[Figure, float]
Costs: TypeAlias = dict[tuple[Stage, str], Cost]
"""Costs by stage, and by node or metric."""

STAGE_CONCURRENCY = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a run may go.

    It validates `candidates` candidates, one per round, and changes `surfaces` surfaces. `failing` is the share of
    cases that fail at first, if unknown. `reach` says how much of a case run follows a change, from 0 for the last
    target to 1 for the first; `paid` is the share of that which the cache does not answer. The final test takes
    `blocks` blocks. Measured tokens and seconds are multiplied by `tokens` and `seconds`, those by rule of thumb by
    `estimated`.
    """

    candidates: int
    surfaces: int
    failing: float
    reach: float
    paid: float
    blocks: int
    tokens: float
    seconds: float
    estimated: float


SHORT = Course(
    candidates=1, surfaces=1, failing=0.25, reach=0.0, paid=0.5, blocks=1, tokens=0.97, seconds=1.2, estimated=0.3
)
TYPICAL = Course(
    candidates=1, surfaces=2, failing=0.6, reach=0.6, paid=0.9, blocks=1, tokens=1.0, seconds=1.8, estimated=1.0
)
LONG = Course(
    candidates=4, surfaces=5, failing=1.0, reach=0.9, paid=1.0, blocks=2, tokens=1.2, seconds=2.4, estimated=3.0
)
LONG_IF_FEW_CHANGED = replace(LONG, candidates=2, surfaces=4)
LONG_IF_MANY_CHANGED = replace(LONG, blocks=3, surfaces=7)
FEW = 2
"""Agents of which earlier runs changed at most this many nodes are fixed quickly."""


def courses_for(history: History) -> tuple[Course, Course, Course]:
    """A short, a typical and a long run, given what earlier runs changed."""
    if not history.changed_nodes:
        return SHORT, TYPICAL, LONG
    return SHORT, TYPICAL, LONG_IF_FEW_CHANGED if len(history.changed_nodes) <= FEW else LONG_IF_MANY_CHANGED


@dataclass(frozen=True, slots=True)
class Work:
    """Case runs of each stage, those paid whole and those paid from the changed node on, and calls of other models."""

    case_runs: Mapping[AgentStage, tuple[float, float]]
    calls: Mapping[Asked, float] = field(default_factory=dict)


class Estimate:
    """One run of a workload that takes a course."""

    def __init__(self, workload: Workload, units: UnitCosts, history: History, course: Course) -> None:
        self._workload = workload
        self._units = units
        self._course = course
        known = history.changed_nodes & workload.downstream.keys() if course.candidates <= FEW else frozenset[str]()
        self._changed = _pick_node(workload, units, known or workload.downstream.keys(), reach=course.reach)
        self._reached = _reached_cases(units, self._changed)
        self._failing = course.failing if history.failing is None else history.failing
        self._token_factor, self._second_factor = (
            (course.tokens, course.seconds) if history.costs.nodes else (course.estimated, course.estimated)
        )

    @property
    def rounds(self) -> int:
        """How many rounds the run takes if no budget ends it."""
        request = self._workload.request
        if self._failing == 0 and request.stop is None:
            return 0
        rounds = min(request.max_rounds, self._course.candidates)
        return next((number for number in range(1, rounds) if self._is_stopped_after(number)), rounds)

    def run(self, caps: Caps) -> Costs:
        """The costs of the run. A cap cuts the search where it has to leave the rest for the final test."""
        rounds, held = self.rounds, self.hold_back(caps)
        search = self._price(self.search_work(rounds))
        spent = _cut(search, {figure: cap - held[figure] for figure, cap in caps.items()})
        if rounds and (spent == search or self._course.candidates > 1):
            spent = _cut(_merge(spent, self._price(self.final_work())), caps)
        return spent

    def cost_after(self, rounds: int) -> Cost:
        """The cost of the baseline and these rounds."""
        return add_up(self._price(self.search_work(rounds)).values())

    def hold_back(self, caps: Caps) -> Caps:
        """What a budget makes the search leave for the final test: all blocks, at most half of what is left."""
        workload, baseline = self._workload, self.cost_after(0)
        runs = 2 * (sum(workload.final_test_repeats) * workload.validation + TEST_SET_REPEATS * workload.test)
        final_test = NO_COST.plus(baseline, runs / (workload.validation * workload.repeats))
        if not workload.final_test_repeats or not workload.request.max_rounds:
            final_test = NO_COST
        return {
            figure: min(final_test.figure(figure), max(0.0, MAX_RESERVED_SHARE * (cap - baseline.figure(figure))))
            for figure, cap in caps.items()
        }

    def search_work(self, rounds: int) -> Work:
        """The baseline and these rounds."""
        workload, course, outline = self._workload, self._course, self._workload.search
        baseline = workload.validation * workload.repeats
        calls: dict[Asked, float] = {each: each.calls for each in workload.asked_in("teacher")}
        if not rounds:
            return Work({"baseline": (baseline, 0)}, calls)
        failed = max(1.0, self._failing * workload.train)
        checked = min(outline.max_checked, failed)
        train, rerun = workload.train * workload.repeats, rounds * min(failed, outline.max_rerun) * workload.repeats
        if outline.screened_cases is not None:
            screenings = outline.screenings * len(workload.downstream) * course.failing
            train = min(outline.screened_cases, workload.train) if screenings else 0
            rerun = train * screenings
        steps = sum(cost.calls for name, cost in self._units.nodes.items() if name in workload.downstream)
        validated = baseline * self._reached
        stage_calls: dict[ModelStage, float] = {
            "backwarder": failed * workload.repeats * steps * course.paid,
            "aggregator": rounds * course.surfaces,
            "optimizer": rounds * course.surfaces,
            "teacher": checked,
        }
        return Work(
            {
                "baseline": (baseline, 0),
                "train": (train, checked),
                "rerun": (0, rerun),
                "validation": ((rounds - 1) * validated, rounds * validated),
            },
            calls | {each: stage_calls[each.stage] for each in workload.asked if not each.name},
        )

    def final_work(self) -> Work:
        """Ablation, final test and test set."""
        workload, course, final_test = self._workload, self._course, self._workload.request.final_test
        if final_test is None:
            return Work({})
        cases = workload.validation * self._reached
        tested, unseen = sum(workload.final_test_repeats[: course.blocks]) * cases, TEST_SET_REPEATS * workload.test
        parts = min(course.surfaces, len(workload.downstream))
        is_ablated = parts > 1 and final_test.ablate and workload.request.goal.kind == "score"
        ablated = parts * cases * workload.repeats if is_ablated else 0
        return Work({"ablation": (0, ablated), "final_test": (tested, tested), "test_set": (unseen, unseen)})

    def _is_stopped_after(self, number: int) -> bool:
        """Whether the stop policy ends the run after a round, if only the first candidate was accepted."""
        total, stop = self.cost_after(number), self._workload.request.stop
        progress = Progress(
            round=number,
            rounds_without_acceptance=number - 1,
            elapsed_s=total.seconds,
            evaluations=self._workload.train,
            spent=Spending(calls=round(total.calls), input_tokens=round(total.tokens), cost_usd=total.usd),
        )
        return stop is not None and stop.decide(progress).stop

    def _price(self, work: Work) -> Costs:
        """Case runs and calls, times what each costs. Judges and simulated users are part of a case run's time."""
        workload, units, costs = self._workload, self._units, Costs()
        case_calls = sum(unit.calls for unit in units.nodes.values())
        for stage, (whole, changed) in work.case_runs.items():
            cases = workload.train if stage in ("train", "rerun") else workload.validation
            at_once = min(workload.concurrency, cases * workload.repeats)
            for name, unit in units.nodes.items():
                paid = whole + (changed * self._course.paid if name in workload.downstream[self._changed] else 0.0)
                seconds = units.case_s * unit.calls / case_calls / at_once
                costs[stage, name] = self._scale(unit, paid, seconds)
        case_runs = sum(whole + changed for whole, changed in work.case_runs.values())
        for each in workload.asked_in("judge", "user"):
            costs[each.stage, each.name] = self._scale(units.calls[each.stage, each.model], case_runs * each.calls, 0.0)
        for each, calls in work.calls.items():
            unit = units.calls[each.stage, each.model]
            costs[each.stage, each.name] = self._scale(unit, calls, unit.seconds / STAGE_CONCURRENCY)
        return {place: cost for place, cost in costs.items() if cost.calls}

    def _scale(self, unit: Cost, times: float, seconds: float) -> Cost:
        return Cost(
            calls=times * unit.calls,
            tokens=times * unit.tokens * self._token_factor,
            usd=times * unit.usd * self._token_factor,
            seconds=times * seconds * self._second_factor,
            unpriced=unit.unpriced,
        )


def _merge(one: Costs, other: Costs) -> Costs:
    """Both, place by place."""
    return {place: one.get(place, NO_COST).plus(other.get(place, NO_COST)) for place in (*one, *other)}


def add_up(costs: Iterable[Cost]) -> Cost:
    """The sum of costs."""
    return reduce(Cost.plus, costs, NO_COST)


def _cut(costs: Costs, caps: Caps) -> Costs:
    """The costs in their order, as far as they fit into the caps."""
    spent, total = Costs(), NO_COST
    for place, cost in costs.items():
        wanted = {figure: cost.figure(figure) for figure in caps if cost.figure(figure)}
        room = [(caps[figure] - total.figure(figure)) / amount for figure, amount in wanted.items()]
        share = max(0.0, min([1.0, *room]))
        spent[place] = NO_COST.plus(cost, share)
        total = total.plus(cost, share)
        if share < 1.0:
            break
    return spent


def _pick_node(workload: Workload, units: UnitCosts, among: Iterable[str], *, reach: float) -> str:
    """The node whose change costs as much as `reach` says."""

    def calls(node_id: str) -> float:
        paid = sum(unit.calls for name, unit in units.nodes.items() if name in workload.downstream[node_id])
        return paid * _reached_cases(units, node_id)

    ordered = sorted(sorted(among), key=calls)
    return ordered[round(reach * (len(ordered) - 1))]


def _reached_cases(units: UnitCosts, node_id: str) -> float:
    """The share of cases that reach a node."""
    return min(1.0, units.nodes[node_id].calls) if node_id in units.nodes else 1.0
