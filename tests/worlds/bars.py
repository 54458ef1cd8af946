"""The bars of the loop: the goals that a run on a scenario must reach, and the runs that are checked.

With 24 train and 12 validation cases and MinGain, validation reaches the ceiling and only faulty surfaces change, in at
most 72 case runs and one optimizer call per faulty surface. There is no final test: its cost does not depend on how the
candidate was found.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.policies.acceptance import MinGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import TargetScore
from promptiter.runlog.results import RunResult
from promptiter.stages.contracts import Attributor, Backwarder
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from tests.worlds.domains import SPARED
from tests.worlds.expert import Expert
from tests.worlds.scenarios import Scenario, Scores, make_scenario, measure_ceiling, measure_scores

MAX_CASE_RUNS = 72
COMPLIANCE = 0.98
"""At this compliance a chain of ten models fails about a quarter of the cases under any instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a run, and how often its stages were called."""

    result: RunResult
    calls: Counter[str]


def make_request(made: Scenario, *, final_test: FinalTest | None = None, **options: int) -> RunRequest:
    return RunRequest(
        train=made.train,
        validation=made.validation,
        acceptance=MinGain(0.005),
        final_test=final_test,
        stop=TargetScore(1.0),
        evaluation=EvaluationOptions(**options) if options else None,
        run_id="bars",
    )


class CountedRules:
    """The rule-based optimizer, counting its calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.calls["optimizer"] += 1
        return await RuleOptimizer().optimize(request)


async def run_without_models(made: Scenario) -> Outcome:
    """Optimize with the stages that need no model."""
    rules = CountedRules()
    result = await Engine(made.agent, made.evaluator(), optimizer=rules).run(make_request(made))
    return Outcome(result=result, calls=rules.calls)


async def run_with_expert(made: Scenario, blame: Backwarder | Attributor) -> Outcome:
    """Optimize with the LLM stages, which ask a scripted expert."""
    expert, evaluator = Expert(made), made.evaluator()
    evaluator.gateway.add_model("expert", expert.model)
    stages = blame, LLMAggregator("expert"), LLMOptimizer("expert")
    result = await Engine(made.agent, evaluator, *stages).run(make_request(made))
    return Outcome(result=result, calls=expert.calls)


def find_missed_bars(outcome: Outcome, made: Scenario) -> list[str]:
    """The goals that a run did not reach, with what it reached instead."""
    result, calls = outcome.result, outcome.calls
    changed = {change.surface_id for change in result.changes}
    reached = {
        f"score {result.accepted_score}": result.accepted_score == 1.0,
        f"changed {sorted(changed)}, faulty are {sorted(made.faulty)}": changed == made.faulty,
        f"{result.measured.case_runs} case runs": result.measured.case_runs <= MAX_CASE_RUNS,
        f"{calls['optimizer']} optimizer calls": calls["optimizer"] <= len(made.faulty),
        f"{calls['aggregator']} aggregator calls": calls["aggregator"] <= len(made.faulty),
        f"{result.verdict}, {result.stop_reason}": (result.verdict, result.stop_reason)
        == ("no_evidence", "target_score"),  # the final test is not run
    }
    return [what for what, is_reached in reached.items() if not is_reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyOutcome:
    """The score after two rounds with a model that does not always obey, and the highest possible score."""

    score: float
    ceiling: float
    innocent_changes: tuple[str, ...]


async def run_with_a_disobedient_model(name: str, seed: int) -> NoisyOutcome:
    made = make_scenario(name, seed, compliance=COMPLIANCE)
    best = (await measure_ceiling(made)).validation
    result = await Engine(made.agent, made.evaluator()).run(replace(make_request(made), max_rounds=2))
    assert best is not None
    innocent = tuple(change.surface_id for change in result.changes if change.surface_id not in made.faulty)
    return NoisyOutcome(score=result.accepted_score or 0.0, ceiling=best, innocent_changes=innocent)


async def find_unexpected_scores(subject: Scenario) -> list[str]:
    """The scores of a scenario that are not as they should be.

    At first no case passes, except those that a partial fault spares. With all faults fixed, all cases pass; with one
    of two faults fixed, none does.
    """
    evaluator = subject.evaluator()
    passing = 1 / SPARED if subject.is_partial else 0.0
    found = {
        "the baseline": (await measure_scores(subject, evaluator=evaluator), Scores(passing, passing)),
        "all faults fixed": (await measure_ceiling(subject, evaluator=evaluator), Scores(1.0, 1.0)),
    }
    if len(subject.faulty) > 1:
        for surface_id in sorted(subject.faulty):
            half = await measure_scores(take_few_cases(subject), subject.fix([surface_id]), evaluator=evaluator)
            found[f"{surface_id} fixed"] = half, Scores(0.0, 0.0)
    return [f"{subject.agent.name}, {what}: {has}" for what, (has, should) in found.items() if has != should]


def take_few_cases(subject: Scenario) -> Scenario:
    """The scenario with four cases in each set, of which a partial fault spares one."""
    return take_cases(subject, SPARED, SPARED)


def take_cases(subject: Scenario, train: int, validation: int) -> Scenario:
    """The scenario with the first cases of each set."""
    return replace(
        subject,
        train=replace(subject.train, cases=subject.train.cases[:train]),
        validation=replace(subject.validation, cases=subject.validation.cases[:validation]),
    )
