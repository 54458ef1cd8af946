"""What a run takes: the case runs of each stage times the cost of a case run.

How a search will go is unknown, so each count has a least, a typical and a most. After a change, a case run is paid
only from the changed node on: the cache answers what precedes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from promptiter.engine.final_test import count_test_runs
from promptiter.engine.outline import SearchOutline
from promptiter.forecast.unit_costs import UnitCosts
from promptiter.forecast.workload import StageModel, Workload
from promptiter.runs.cost_ranges import NO_COST, ZERO, Cost, Range
from promptiter.runs.stage_costs import AgentStage, ModelStage, Stage

CaseRuns: TypeAlias = Mapping[AgentStage, tuple[Range, Range]]
"""Case runs of each stage: those that are paid whole, and those of candidates, paid from the changed node on."""

Costs: TypeAlias = dict[tuple[Stage, str], Cost]
"""Costs by stage, and by node or metric."""

ROUNDS = Range(1, 1, 6)
"""How many rounds a run takes, if no earlier run shows it."""

ITERATIONS = Range(2, 8, 30)
"""The same of a search whose rounds are iterations, such as GEPA."""

NEW_IN_MINIBATCH = Range(0.4, 0.8, 1.0)
"""The share of the cases of a mini-batch that its parent has not run yet."""

PROPOSED = Range(0.6, 1.0, 1.0)
"""The share of iterations that propose a child."""

PASSED = Range(0.1, 0.4, 0.8)
"""The share of iterations whose child is better on its mini-batch, and is validated."""

SURFACES = Range(1, 2, 5)
"""How many surfaces are changed."""

FAILING = Range(0.25, 0.6, 1.0)
"""The share of cases that fail at first, if it was not measured."""

ACCEPTED = Range(0.0, 0.0, 0.8)
"""The share of rounds, all but the last, that accept a candidate: the next round then runs the train cases again."""

CHECKED = Range(0.0, 0.5, 1.0)
"""The share of possible blame checks that are made."""

BLAMED = Range(0.9, 1.0, 1.1)
"""How many steps of a failed case run are asked, compared with its model calls. Equal traces are asked once."""

BATCHED = Range(0.1, 0.2, 1.0)
"""How many calls blame a failed case run if one call is about several of them."""

MERGED = Range(0, 1, 1)
"""Whether there are several gradients of a surface to merge."""

TRIALS = Range(10, 35, 80)
"""How many rounds coordinate descent takes."""

IMPROVING = Range(0.1, 0.2, 0.4)
"""The share of its trials that do better on train than the accepted profile."""

PASSES = Range(1, 1, 2)
"""How often a round re-runs its failed cases."""

BLOCKS = Range(1, 1, 2)
"""How many blocks the final test takes, without an extra one, which few runs need."""

PAID_AGAIN = Range(0.67, 1.0, 1.0)
"""The share of case runs after a change that the cache does not answer as a whole."""

STAGE_CONCURRENCY = 16


@dataclass(frozen=True, slots=True)
class _Counts:
    """How many case runs rounds take, and how many calls of each stage."""

    case_runs: CaseRuns
    calls: Mapping[ModelStage, Range]

    @property
    def all_runs(self) -> Range:
        return sum((whole + changed for whole, changed in self.case_runs.values()), ZERO)

    def times(self, share: Range) -> _Counts:
        """A share of all this."""
        return _Counts(
            {stage: (whole * share, changed * share) for stage, (whole, changed) in self.case_runs.items()},
            {stage: calls * share for stage, calls in self.calls.items()},
        )


class Estimate:
    """What the parts of a run cost. `rounds` is how many it takes if no budget cuts it."""

    def __init__(self, workload: Workload, units: UnitCosts) -> None:
        self.workload = workload
        self._units = units
        self._failing = FAILING if units.failing is None else Range.exactly(units.failing)
        has_nothing_to_do = units.failing == 0 and workload.request.stop is None
        expected = units.rounds or _expect_rounds(workload.outline)
        self.rounds = ZERO if has_nothing_to_do else expected.at_most(workload.request.round_limit)
        nodes = sorted(workload.downstream, key=self._count_calls_after_change)
        changed = [len(nodes) // 8, len(nodes) // 2, 3 * len(nodes) // 4]
        known = max((place for place, node_id in enumerate(nodes) if node_id in units.changed_nodes), default=None)
        if known is not None:
            changed = [known, known, max(known, changed[-1])]
        downstream = [workload.downstream[nodes[place]] for place in changed]
        self._reached = Range(*(self._share_that_reaches(nodes[place]) for place in changed))
        self._paid_again = {
            name: PAID_AGAIN * Range(*(float(name in following) for following in downstream)) for name in units.nodes
        }

    def run(self) -> Costs:
        """The costs of the whole run, if no budget cuts it."""
        costs = self.search(self.rounds)
        for place, cost in self.final_test().items():
            costs[place] = costs.get(place, NO_COST) + cost
        return costs

    def limit_rounds(self, allowed: Range) -> None:
        """Expect no more rounds than these."""
        self.rounds = self.rounds.combine(allowed, min)

    def search(self, rounds: Range) -> Costs:
        """The costs of the baseline and these rounds, each of which makes one candidate."""
        workload = self.workload
        case_runs: dict[AgentStage, tuple[Range, Range]] = {"baseline": (self._baseline_runs, ZERO)}
        calls = {each: Range.exactly(each.calls) for each in workload.models_of("teacher")}
        if rounds.high:
            found = self._count_rounds(rounds)
            found = found.times(self._share_of_cap(found))
            case_runs |= found.case_runs
            calls |= {each: found.calls[each.stage] for each in workload.stage_models if not each.name}
        return self._price(case_runs, calls, taught=self._taught_runs if rounds.high else ZERO)

    def count_metric_calls(self, rounds: Range) -> Range:
        """The metric calls of the baseline and these rounds, if no cap cuts them."""
        found = (self._baseline_runs + self._count_rounds(rounds).all_runs) * (1 / self.workload.repeats)
        return found + self._taught_runs

    @property
    def dearest_extra_usd(self) -> float:
        """What a typical case run costs more than the baseline's, if each node has the dearest model of its choices."""
        nodes, candidates = self._units.nodes, self._units.candidates.items()
        dearest = {name: (each.usd or ZERO).high * each.tokens.typical / each.tokens.high for name, each in candidates}
        return sum(max(0.0, usd - (nodes[name].usd or ZERO).typical) for name, usd in dearest.items())

    @property
    def _taught_runs(self) -> Range:
        """The case runs of a teacher of few-shot examples: one for each train case that fails."""
        return self._failing * self.workload.taught_cases

    @property
    def _baseline_runs(self) -> Range:
        return Range.exactly(self.workload.validation * self.workload.repeats)

    def _share_of_cap(self, found: _Counts) -> Range:
        """How much of these case runs `max_metric_calls` allows, besides the baseline and the final test."""
        workload = self.workload
        if workload.request.max_metric_calls is None:
            return Range.exactly(1)
        left = workload.request.max_metric_calls - workload.reserved_metric_calls - workload.validation
        most = max(0, left) * workload.repeats
        return found.all_runs.map(lambda wanted: most / wanted if wanted > most else 1.0)

    def _count_rounds(self, rounds: Range) -> _Counts:
        outline = self.workload.outline or SearchOutline()
        if outline.batch is not None:
            return self._count_trials(rounds, outline)
        if outline.rewrites is None:
            return self._count_backprop_rounds(rounds, outline)
        return self._count_iterations(rounds, outline)

    def _count_trials(self, rounds: Range, outline: SearchOutline) -> _Counts:
        """Rounds that run the train cases under a batch of candidates, and validate those that do better."""
        workload, repeats, edited = self.workload, self.workload.repeats, rounds * outline.edited_share
        batch = 1 + (1 - outline.edited_share) * ((outline.batch or 1) - 1)
        failed = (self._failing * workload.train).at_least(1) * repeats
        return _Counts(
            {
                "train": (Range.exactly(workload.train * repeats), rounds * (batch * workload.train * repeats)),
                "validation": (ZERO, rounds * self._reached * IMPROVING * (2 * workload.validation * repeats)),
            },
            {
                "backwarder": failed * self._calls_per_trace(outline) * edited * IMPROVING,
                "aggregator": edited * MERGED,
                "optimizer": edited,
                "critic": edited,
                "applier": edited,
            },
        )

    def _count_iterations(self, rounds: Range, outline: SearchOutline) -> _Counts:
        """Rounds that run a mini-batch under a parent and a child, and validate the child if it is better."""
        workload, repeats = self.workload, self.workload.repeats
        cases = min(outline.minibatch or workload.train, workload.train)
        validated = rounds * self._reached * PASSED * (workload.validation * repeats)
        parents = rounds * NEW_IN_MINIBATCH * (cases * repeats)
        whole = parents.at_most(workload.train * repeats)
        rewritten = {
            "one": Range.exactly(1),
            "blamed": SURFACES.at_most(workload.targets),
            "all": Range.exactly(workload.targets),
        }[outline.rewrites or "one"]
        failed = (self._failing * cases).at_least(1) * rounds
        return _Counts(
            {
                "train": (whole, parents + whole * -1),
                "rerun": (ZERO, rounds * PROPOSED * (cases * repeats)),
                "validation": (validated if workload.shape != "two_sets" else ZERO, validated),
            },
            {
                "backwarder": failed * Range(1, repeats, repeats) * self._calls_per_trace(outline),
                "aggregator": rewritten * rounds * MERGED,
                "optimizer": rewritten * rounds * PROPOSED,
            },
        )

    def _count_backprop_rounds(self, rounds: Range, outline: SearchOutline) -> _Counts:
        """Rounds that run the train cases, and validate one candidate each."""
        workload = self.workload
        cases = self._count_train_cases(outline.minibatch)
        failed = (self._failing * cases).at_least(1)
        validated = self._reached * (workload.validation * workload.repeats)
        checked = failed.at_most(outline.max_checked) * CHECKED
        is_one_set = workload.shape != "two_sets"  # its baseline is the first train evaluation, too
        train = again = cases * workload.repeats
        if is_one_set:
            train = ZERO
        more_rounds = rounds + Range.exactly(-1)
        compared = rounds if is_one_set else more_rounds
        passes = PASSES.at_most(outline.passes)
        rerun = failed.at_most(outline.max_rerun) * passes * outline.width * rounds * workload.repeats
        if outline.screened_cases is not None and outline.trials:
            rerun = cases.at_most(outline.screened_cases) * outline.trials * rounds * workload.repeats
        elif outline.screened_cases is not None:
            train = again = Range.exactly(min(outline.screened_cases, workload.train) if outline.screenings else 0)
            rerun = train * FAILING * (outline.screenings * len(workload.downstream))
        return _Counts(
            {
                "train": (train, checked + again * ACCEPTED * more_rounds),
                "rerun": (ZERO, rerun),
                "validation": (validated * compared, validated * rounds),
            },
            {
                "backwarder": failed * Range(1, workload.repeats, workload.repeats) * self._calls_per_trace(outline),
                "aggregator": SURFACES * rounds * MERGED,
                "optimizer": SURFACES * rounds * outline.width,
                "corrector": checked,
            },
        )

    def _calls_per_trace(self, outline: SearchOutline) -> Range:
        """How many calls blame a failed trace."""
        if outline.blamed_per_call != "step":
            return Range.exactly(1) if outline.blamed_per_call == "trace" else BATCHED
        nodes, targets = self._units.nodes, self.workload.downstream
        return BLAMED * sum(cost.calls.typical for name, cost in nodes.items() if name in targets)

    def _count_train_cases(self, minibatch: int | None) -> Range:
        """How many train cases a round runs. A minibatch grows if few of its cases fail."""
        train = self.workload.train
        return (
            Range.exactly(train) if minibatch is None or train <= 2 * minibatch else Range(minibatch, minibatch, train)
        )

    def final_test(self) -> Costs:
        """The costs of ablation, final test and test set."""
        workload, rule = self.workload, self.workload.request.final_test
        if rule is None or not self.rounds.high:
            return {}
        tested = BLOCKS * (rule.repeats * workload.validation)
        unseen = Range.exactly(count_test_runs(workload.test, shape=workload.shape))
        is_ablated = rule.ablate and workload.request.goal.kind == "score"
        parts = SURFACES.at_most(workload.targets).map(lambda count: count if is_ablated and count > 1 else 0)
        cases = self._reached * min(workload.train, workload.validation) * workload.repeats
        return self._price(
            {
                "ablation": (cases * parts.at_most(1), cases * parts),
                "final_test": (tested, tested * self._reached),
                "test_set": (unseen, unseen * self._reached),
            },
            {},
        )

    def _price(self, case_runs: CaseRuns, calls: Mapping[StageModel, Range], *, taught: Range = ZERO) -> Costs:
        """Case runs and calls, times what each costs. Judges and user simulators are part of a case run's time.

        They are also asked in the case runs of a teacher, whose own calls are among `calls`.
        """
        workload, units, costs, all_runs = self.workload, self._units, Costs(), taught
        for stage, (whole, changed) in case_runs.items():
            all_runs += whole + changed
            cases = workload.train if stage in ("train", "rerun", "ablation") else workload.validation
            at_once = min(workload.concurrency, cases * workload.repeats)
            for name, unit in units.nodes.items():
                paid_again = changed * self._paid_again[name]
                candidate = units.candidates.get(name)
                if candidate is None:
                    costs[stage, name] = unit.times(whole + paid_again, at_once=at_once)
                else:
                    of_candidates = candidate.times(paid_again, at_once=at_once)
                    costs[stage, name] = unit.times(whole, at_once=at_once) + of_candidates
        for each in workload.models_of("judge", "user"):
            cost = units.calls[each.stage, each.model].times(all_runs * each.calls)
            costs[each.stage, each.name] = replace(cost, seconds=ZERO)
        for each, times in calls.items():
            costs[each.stage, each.name] = units.calls[each.stage, each.model].times(times, at_once=STAGE_CONCURRENCY)
        return {place: cost for place, cost in costs.items() if cost.calls.high or cost.seconds.high}

    def _count_calls_after_change(self, node_id: str) -> float:
        """The calls that are made again for each case after a node has changed."""
        downstream = self.workload.downstream[node_id]
        calls = sum(unit.calls.typical for name, unit in self._units.nodes.items() if name in downstream)
        return calls * self._share_that_reaches(node_id)

    def _share_that_reaches(self, node_id: str) -> float:
        """The share of cases that reach a node."""
        unit = self._units.nodes.get(node_id)
        return 1.0 if unit is None or not unit.calls.high else min(1.0, unit.calls.typical)


def _expect_rounds(outline: SearchOutline | None) -> Range:
    if outline is None or outline.batch is None:
        return ROUNDS if outline is None or outline.rewrites is None else ITERATIONS
    return TRIALS if outline.edited_share else Range.exactly(outline.max_rounds or TRIALS.typical)
