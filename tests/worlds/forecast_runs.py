"""Runs to check forecasts with: an agent of the scenarios is run briefly, then forecast, then run in full.

Runs differ in eval set sizes, repeats, how reliably the model obeys, whether stages ask models, test sets, final tests
and budgets that cut the search. The same number gives the same run.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.forecast.forecast import forecast_run
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.offline.model.simulated import SimulatedModel, count_tokens
from promptiter.policies.final_test import FinalTest
from promptiter.runs.cost_ranges import Range
from promptiter.runs.directory import RunDirectory
from promptiter.runs.stage_costs import spent_by_stage
from tests.worlds.bars import take_cases
from tests.worlds.expert import Expert
from tests.worlds.scenarios import NAMES, Scenario, make_scenario
from traces import Usage

LATENCY_S = 0.02
NEVER = Range(0, 0, 0)
NODES, MAX_TEST_CASES = 10, 8
PRICES = Prices(
    {
        "simulated": Price(input_usd_per_million=1.0, output_usd_per_million=4.0),
        "expert": Price(input_usd_per_million=3.0, output_usd_per_million=12.0),
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: its forecast and what it took, by figure, with the calls of each stage; `kind` describes its setting."""

    kind: tuple[str, ...]
    forecast: dict[str, Range]
    fact: dict[str, float]

    def covers(self, figure: str) -> bool:
        return self.fact.get(figure, 0.0) in self.forecast.get(figure, NEVER)


def run_once(number: int) -> Outcome:
    """Run an agent briefly, forecast a full run, run it, and return both. The same number gives the same run."""
    setting = make_setting(number)
    with tempfile.TemporaryDirectory() as folder:
        RunDirectory.begin(folder, setting.engine(is_first=True), setting.first).run_sync()
        engine = setting.engine()
        forecast = forecast_run(engine, setting.request, runs=folder)
        directory = RunDirectory.begin(Path(folder) / "fact", engine, setting.request)
        result = directory.run_sync()
        stages = spent_by_stage(directory.path)
    spent, expected = result.measured.spent.of_models, forecast.total
    assert expected.usd is not None
    return Outcome(
        kind=setting.kind,
        forecast={
            "calls": expected.calls,
            "tokens": expected.tokens,
            "dollars": expected.usd,
            "seconds": expected.seconds,
            **{stage: each.calls for stage, each in forecast.stages.items()},
        },
        fact={
            "calls": spent.calls,
            "tokens": spent.tokens,
            "dollars": spent.cost_usd or 0.0,
            "seconds": result.measured.duration_s,
            **{stage: each.calls for stage, each in stages.items()},
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One agent and its run. `first` is the earlier run that the forecast is based on."""

    made: Scenario
    first: RunRequest
    request: RunRequest
    repeats: int
    max_calls: int | None
    has_model_stages: bool
    kind: tuple[str, ...]

    def engine(self, *, is_first: bool = False) -> Engine:
        """A new engine; the first run has one repeat and no cap."""
        made = self.made
        budget = None if is_first or self.max_calls is None else Budget(max_calls=self.max_calls)
        gateway = Gateway(models={made.model.name: Counting(made.model)}, prices=PRICES, budget=budget)
        options = EvaluationOptions(repeats=1 if is_first else self.repeats)
        evaluator = Evaluator(made.metrics, gateway=gateway, options=options)
        if not self.has_model_stages:
            return Engine(made.agent, evaluator)
        gateway.add_model("expert", Counting(Expert(made).model))
        return Engine(made.agent, evaluator, LLMBackwarder("expert"), LLMAggregator("expert"), LLMOptimizer("expert"))


def make_setting(number: int) -> Setting:
    """The setting of this number."""
    rng = Random(f"forecast {number}")
    compliance = rng.choice((1.0, 0.99, 0.97, 0.9))
    whole = make_scenario(NAMES[number % len(NAMES)], rng.randrange(1_000), compliance=compliance)
    made = take_cases(whole, rng.choice((8, 12, 16, 24)), rng.choice((4, 6, 8, 12)))
    made = replace(made, model=SimulatedModel(seed=made.seed, compliance=compliance, latency_s=LATENCY_S))
    has_model_stages = rng.random() < 0.25 and compliance == 1.0
    earlier = rng.choice(("baseline", "short run"))
    repeats = rng.choice((1, 1, 1, 2))
    test = take_test_set(whole, made) if rng.random() < 0.3 else None
    final_test = None if rng.random() < 0.1 else FinalTest()
    runs = repeats * (len(made.train.cases) + len(made.validation.cases))
    max_calls = round(rng.uniform(1.5, 5) * NODES * runs) if rng.random() < 0.15 else None
    request = RunRequest(
        train=made.train,
        validation=made.validation,
        test=test,
        final_test=final_test,
        max_rounds=rng.choice((1, 2, 4, 4, 6)),
    )
    kind = (
        made.name,
        f"compliance {compliance:g}",
        earlier,
        "model stages" if has_model_stages else "rules",
        "no final test" if final_test is None else "test set" if test is not None else "final test",
        "capped" if max_calls is not None else "no cap",
    )
    return Setting(
        made=made,
        first=replace(request, max_rounds=0 if earlier == "baseline" else 1),
        request=request,
        repeats=repeats,
        max_calls=max_calls,
        has_model_stages=has_model_stages,
        kind=kind,
    )


def take_test_set(whole: Scenario, made: Scenario) -> EvalSet | None:
    """A test set of cases that train and validation do not use; None if there are none left."""
    taken = {case.id for case in (*made.train.cases, *made.validation.cases)}
    left = tuple(case for case in (*whole.validation.cases, *whole.train.cases) if case.id not in taken)
    return EvalSet(id="test", cases=left[:MAX_TEST_CASES]) if left else None


class Counting:
    """A model that counts tokens as the simulated one does and reports no price."""

    is_simulated = True

    def __init__(self, model: ScriptedModel | SimulatedModel) -> None:
        self.model = model

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        reply = await self.model(request, repeat=repeat)
        usage = Usage(input_tokens=count_tokens(request.text), output_tokens=count_tokens(reply.text))
        return replace(reply, usage=usage)
