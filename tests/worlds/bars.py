"""The bars of the loop: what a run on a scenario must reach, and the runs that are measured against them.

24 train and 12 validation cases, minimum-gain acceptance: validation reaches the ceiling, only faulty surfaces change,
in at most 72 case runs and one optimizer call for each faulty surface. The final test, which costs the same
whatever found the candidate, is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.policies.acceptance import MinGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import TargetScore
from promptiter.runlog.results import RunRequest, RunResult
from promptiter.stages.contracts import Attributor, Backwarder, OptimizeRequest, OptimizeResult
from tests.worlds.domains import SPARED
from tests.worlds.expert import Expert
from tests.worlds.scenarios import Scenario, Scores, ceiling, scenario, scores

MOST_CASE_RUNS = 72
COMPLIANCE = 0.98
"""At this compliance ten models in a row fail about a fourth of the cases, whatever their instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to, and how often its stages were called."""

    result: RunResult
    calls: Counter[str]


def request_for(made: Scenario, *, final_test: FinalTest | None = None, **options: int) -> RunRequest:
    return RunRequest(
        train=made.train,
        validation=made.validation,
        acceptance=MinGain(0.005),
        final_test=final_test,
        stop=TargetScore(1.0),
        evaluation=EvaluationOptions(**options) if options else None,  # type: ignore[arg-type]
        run_id="bars",
    )


class CountedRules:
    """The rule-based optimizer, counting its calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        self.calls["optimizer"] += 1
        return await RuleOptimizer().optimize(request)


async def run_without_models(made: Scenario) -> Outcome:
    """By the stages that need no model."""
    rules = CountedRules()
    result = await Engine(made.agent, made.evaluator(), optimizer=rules).run(request_for(made))
    return Outcome(result=result, calls=rules.calls)


async def run_with_expert(made: Scenario, blame: Backwarder | Attributor) -> Outcome:
    """By the LLM stages, which ask a scripted expert."""
    expert, evaluator = Expert(made), made.evaluator()
    evaluator.gateway.add_model("expert", expert.model)
    stages = blame, LLMAggregator("expert"), LLMOptimizer("expert")
    result = await Engine(made.agent, evaluator, *stages).run(request_for(made))
    return Outcome(result=result, calls=expert.calls)


def missed_bars(outcome: Outcome, made: Scenario) -> list[str]:
    """The bars that a run did not reach, with what it had instead."""
    result, calls = outcome.result, outcome.calls
    changed = {change.surface_id for change in result.changes}
    reached = {
        f"score {result.accepted_score}": result.accepted_score == 1.0,
        f"changed {sorted(changed)}, faulty are {sorted(made.faulty)}": changed == made.faulty,
        f"{result.measured.case_runs} case runs": result.measured.case_runs <= MOST_CASE_RUNS,
        f"{calls['optimizer']} optimizer calls": calls["optimizer"] <= len(made.faulty),
        f"{calls['aggregator']} aggregator calls": calls["aggregator"] <= len(made.faulty),
        f"{result.verdict}, {result.stop_reason}": (result.verdict, result.stop_reason) == ("improved", "target_score"),
    }
    return [what for what, is_reached in reached.items() if not is_reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisyOutcome:
    """What two rounds reached with a model that does not always obey, and what could be reached."""

    score: float
    ceiling: float
    innocent_changes: tuple[str, ...]


async def run_with_a_disobedient_model(name: str, seed: int) -> NoisyOutcome:
    made = scenario(name, seed, compliance=COMPLIANCE)
    best = (await ceiling(made)).validation
    result = await Engine(made.agent, made.evaluator()).run(replace(request_for(made), max_rounds=2))
    assert best is not None
    innocent = tuple(change.surface_id for change in result.changes if change.surface_id not in made.faulty)
    return NoisyOutcome(score=result.accepted_score or 0.0, ceiling=best, innocent_changes=innocent)


async def unexpected_scores(subject: Scenario) -> list[str]:
    """What is wrong with a scenario: of a partial fault the spared cases pass, otherwise none; with all faults fixed
    all do, with one of two none."""
    evaluator = subject.evaluator()
    passing = 1 / SPARED if subject.is_partial else 0.0
    found = {
        "the baseline": (await scores(subject, evaluator=evaluator), Scores(passing, passing)),
        "all faults fixed": (await ceiling(subject, evaluator=evaluator), Scores(1.0, 1.0)),
    }
    if len(subject.faulty) > 1:
        for surface_id in sorted(subject.faulty):
            half = await scores(with_few_cases(subject), subject.mended([surface_id]), evaluator=evaluator)
            found[f"{surface_id} fixed"] = half, Scores(0.0, 0.0)
    return [f"{subject.agent.name}, {what}: {has}" for what, (has, should) in found.items() if has != should]


def with_few_cases(subject: Scenario) -> Scenario:
    """The scenario with four cases in each set: a partial fault spares one of them."""
    train, validation = (replace(each, cases=each.cases[:SPARED]) for each in (subject.train, subject.validation))
    return replace(subject, train=train, validation=validation)
