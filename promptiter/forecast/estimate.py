"""What a run takes if it goes as assumed: SHORT, TYPICAL and LONG say how.

Stage after stage, the number of case runs is multiplied by the cost of a case run. After a change a case run is paid
only from the changed node on: the cache answers what precedes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from promptiter.engine.final_test import TEST_SET_REPEATS
from promptiter.forecast.cost_meter import NO_COST, Caps, Cost, CostMeter
from promptiter.forecast.history import History
from promptiter.forecast.stage_costs import AgentStage, ModelStage
from promptiter.forecast.unit_costs import UnitCost, UnitCosts
from promptiter.forecast.workload import Asked, Workload
from promptiter.llm.ledger import Spending
from promptiter.llm.messages import Role
from promptiter.policies.stopping import Progress

MAX_ROUNDS = 50
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
    candidates=4, surfaces=5, failing=1.0, reach=0.9, paid=1.0, blocks=2, tokens=1.2, seconds=2.8, estimated=3.0
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
class Change:
    """A changed node: the nodes that are paid again, and the share of cases that reach it."""

    nodes: frozenset[str]
    cases: float


class Estimate:
    """One run of a workload, added up stage by stage."""

    def __init__(self, workload: Workload, units: UnitCosts, history: History, course: Course, *, caps: Caps) -> None:
        self.meter = CostMeter(caps)
        self._workload = workload
        self._units = units
        self._course = course
        known = history.changed_nodes if course.candidates <= FEW else frozenset[str]()
        self._change = _pick_change(workload, units, known, reach=course.reach)
        self._failing = course.failing if history.failing is None else history.failing
        self._token_factor, self._second_factor = (
            (course.tokens, course.seconds) if history.costs.nodes else (course.estimated, course.estimated)
        )

    def run(self, *, all_rounds: bool = False) -> CostMeter:
        """The whole run; with `all_rounds` every round that is allowed, and no final test."""
        workload, meter, request = self._workload, self.meter, self._workload.request
        for teacher in workload.asked_as("teacher"):
            self._ask(teacher, teacher.calls)
        self._evaluate("baseline", workload.validation * workload.repeats)
        meter.close_round()
        has_reached_target = self._failing == 0 and request.stop is None
        if request.max_rounds == 0 or (has_reached_target and not all_rounds):
            return meter
        meter.hold(self._longest_final_test())
        rounds = min(request.max_rounds, MAX_ROUNDS)
        self._search(rounds if all_rounds else min(rounds, self._course.candidates))
        if not all_rounds and (self._course.candidates > 1 or not meter.is_cut):
            meter.release()
            self._finish()
        return meter

    def _longest_final_test(self) -> Cost:
        """What a budget holds back: all blocks, at the cost of the baseline's case runs."""
        workload = self._workload
        if not workload.final_test_repeats:
            return NO_COST
        runs = 2 * (sum(workload.final_test_repeats) * workload.validation + TEST_SET_REPEATS * workload.test)
        return NO_COST.plus(self.meter.total, runs / (workload.validation * workload.repeats))

    def _search(self, rounds: int) -> None:
        workload, meter = self._workload, self.meter
        for number in range(1, rounds + 1):
            if workload.search.screened_cases is None:
                self._blame_and_patch(is_first=number == 1)
            elif number == 1:
                self._screen(min(workload.search.screened_cases, workload.train))
            self._validate(is_first=number == 1)
            meter.close_round()
            if meter.is_cut or self._is_stopped(number):
                return

    def _is_stopped(self, number: int) -> bool:
        """Whether the stop policy ends the run after a round, if only the first candidate was accepted."""
        total, stop = self.meter.total, self._workload.request.stop
        progress = Progress(
            round=number,
            rounds_without_acceptance=number - 1,
            elapsed_s=total.seconds,
            evaluations=self._workload.train,
            spent=Spending(calls=round(total.calls), input_tokens=round(total.tokens), cost_usd=total.usd),
        )
        return stop is not None and stop.decide(progress).stop

    def _blame_and_patch(self, *, is_first: bool) -> None:
        """Find failing train cases, blame, check the blame, patch, and re-run failed cases with the patches."""
        workload, course, outline = self._workload, self._course, self._workload.search
        failed = max(1.0, self._failing * workload.train)
        if is_first:
            self._evaluate("train", workload.train * workload.repeats)
            steps = sum(unit.calls for name, unit in self._units.nodes.items() if name in workload.downstream)
            self._call_stage("backwarder", failed * workload.repeats * steps * course.paid)
            checked = min(outline.max_checked, failed)
            self._call_stage("teacher", checked)
            self._evaluate("train", checked, self._change)
        self._call_stage("aggregator", course.surfaces)
        self._call_stage("optimizer", course.surfaces)
        self._evaluate("rerun", min(failed, outline.max_rerun) * workload.repeats, self._change)

    def _screen(self, cases: int) -> None:
        """A search for another goal runs train cases with parts of the targets left out."""
        workload = self._workload
        times = workload.search.screenings * len(workload.downstream) * self._course.failing
        if times:
            self._evaluate("train", cases)
            self._evaluate("rerun", cases * times, self._change)

    def _validate(self, *, is_first: bool) -> None:
        """Later candidates than the first are compared with the accepted profile, which is run again beside them."""
        runs = self._workload.validation * self._workload.repeats * self._change.cases
        if not is_first:
            self._evaluate("validation", runs)
        self._evaluate("validation", runs, self._change)

    def _finish(self) -> None:
        """Ablation, final test and test set."""
        workload, course = self._workload, self._course
        if workload.request.final_test is None:
            return
        cases = workload.validation * self._change.cases
        parts = min(course.surfaces, len(workload.downstream))
        if parts > 1 and workload.request.final_test.ablate and workload.request.goal.kind == "score":
            self._evaluate("ablation", parts * cases * workload.repeats, self._change)
        for change in (None, self._change):
            self._evaluate("final_test", sum(workload.final_test_repeats[: course.blocks]) * cases, change)
            self._evaluate("test_set", TEST_SET_REPEATS * workload.test, change)

    def _evaluate(self, stage: AgentStage, runs: float, change: Change | None = None) -> None:
        """Count case runs, paid whole or from the changed node on, with their judges and simulated users."""
        workload, units = self._workload, self._units
        if runs <= 0:
            return
        share = 1.0 if change is None else self._course.paid
        call_s = share * max(1.0, runs / workload.concurrency) * units.case_s / (units.case_calls or 1.0)
        paid = {name: unit for name, unit in units.nodes.items() if change is None or name in change.nodes}
        for name, unit in paid.items():
            self.meter.add(stage, name, self._cost(unit, share * runs, call_s * unit.calls))
        for each in workload.asked_as("judge", "user"):
            self._ask(each, runs * each.calls, takes_time=False)

    def _call_stage(self, role: Role, calls: float) -> None:
        for each in self._workload.asked_as(role):
            if not each.name:
                self._ask(each, calls)

    def _ask(self, asked: Asked, calls: float, *, takes_time: bool = True) -> None:
        """Count model calls; the time of judges and simulated users is part of a case run's."""
        if calls > 0:
            unit = self._units.calls[asked.role, asked.model]
            seconds = max(1.0, calls / STAGE_CONCURRENCY) * unit.seconds if takes_time else 0.0
            self.meter.add(cast("ModelStage", asked.role), asked.name, self._cost(unit, calls, seconds))

    def _cost(self, unit: UnitCost, times: float, seconds: float) -> Cost:
        return Cost(
            calls=times * unit.calls,
            tokens=times * unit.tokens * self._token_factor,
            usd=times * (unit.usd or 0.0) * self._token_factor,
            seconds=seconds * self._second_factor,
            unpriced=frozenset([unit.model] if unit.usd is None else []),
        )


def _pick_change(workload: Workload, units: UnitCosts, known: frozenset[str], *, reach: float) -> Change:
    """The change that costs as much as `reach` says, among the nodes that earlier runs changed or all that may be."""

    def calls(change: Change) -> float:
        return change.cases * sum(unit.calls for name, unit in units.nodes.items() if name in change.nodes)

    changes = [
        Change(nodes, min(1.0, units.nodes[node_id].calls) if node_id in units.nodes else 1.0)
        for node_id, nodes in workload.downstream.items()
        if node_id in known or not known & workload.downstream.keys()
    ]
    return sorted(changes, key=calls)[round(reach * (len(changes) - 1))]
