"""PlantedWorld: an agent with planted faults and a task model of its own, and a run in which an expert optimizes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from promptiter.agents.base import Agent
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.evaluation.metrics.metric import Metric
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stop_limits import MaxEvaluations
from promptiter.policies.stopping import TargetScore
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import StopDecided
from promptiter.runlog.results import RunResult
from promptiter.search.gepa import GepaSearch
from promptiter.search.gepa_library import ModuleSelector
from promptiter.stages.contracts import Attributor, Backwarder
from promptiter.structure import TEXT_TYPES
from tests.worlds.sighted_expert import Knowledge, SightedExpert, Spending
from traces.model import Json

EXPERT = "expert"
CASES = 12
AFTER_SEARCH = frozenset(("ablation", "final_test", "test"))
"""The phases of a run after its search."""

Answer: TypeAlias = Callable[[ModelRequest, Random], ModelReply]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskModel:
    """The model of an agent's nodes. A request has the same answer at the same repeat; its slips are drawn there."""

    answer: Answer
    seed: int
    spent: Spending = field(default_factory=Spending)

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        reply = self.answer(request, Random(f"{self.seed} {repeat} {request.digest}"))
        self.spent.add(request, reply)
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedWorld:
    """An agent with planted faults. `fixes` are values of the faulty surfaces with which every case passes.

    The model of each node has its own name, so that the task model knows which node asks.
    """

    name: str
    agent: GraphAgent
    answer: Answer
    metrics: tuple[Metric, ...]
    train: EvalSet
    validation: EvalSet
    fixes: Mapping[str, str]
    knowledge: Knowledge
    seed: int = 0

    @property
    def faulty(self) -> frozenset[str]:
        return frozenset(self.fixes)

    @property
    def perfect(self) -> Profile:
        """The profile in which all faults are fixed."""
        return self.make_profile(self.fixes)

    @property
    def texts(self) -> dict[str, str]:
        """The baseline of the text surfaces, which may change."""
        return {each.id: each.value for each in self.agent.describe().surfaces if each.type in TEXT_TYPES}

    @property
    def innocent(self) -> frozenset[str]:
        return frozenset(self.texts) - self.faulty

    def make_profile(self, values: Mapping[str, Json]) -> Profile:
        return Profile.of(self.agent.describe(), dict(values))

    def build_evaluator(self, task: TaskModel | None = None, *, cache: Cache | None = None) -> Evaluator:
        """A new evaluator, by default with a cache of its own."""
        task = task or TaskModel(answer=self.answer, seed=self.seed)
        names = {node.model for node in self.agent.nodes if isinstance(node, ModelNode)}
        return Evaluator(self.metrics, gateway=Gateway(models=dict.fromkeys(sorted(names), task), cache=cache))

    async def measure_score(self, profile: Profile | None = None) -> float:
        """The mean score of all cases under a profile, by default the baseline."""
        evaluator = self.build_evaluator()
        found = [await evaluator.evaluate(self.agent, each, profile) for each in (self.train, self.validation)]
        return sum((each.mean_score or 0.0) * len(each.rows) for each in found) / sum(len(each.rows) for each in found)


def make_exact_world(
    name: str,
    make_turn: Callable[[str, int, Random], Turn],
    *,
    agent: GraphAgent,
    answer: Answer,
    fixes: Mapping[str, str],
    knowledge: Knowledge,
    seed: int,
) -> PlantedWorld:
    """A world of CASES train and validation cases each, whose answers have to match exactly.

    `make_turn` makes the turn of a case, given the name of its set, its number from 1, and what it may draw from.
    """
    rng = Random(f"{name} {seed}")
    train, validation = (
        EvalSet(
            id=each,
            cases=tuple(
                EvalCase(id=f"{each}-{number}", turns=(make_turn(each, number + 1, rng),)) for number in range(CASES)
            ),
        )
        for each in ("train", "validation")
    )
    return PlantedWorld(
        name=name,
        agent=agent,
        answer=answer,
        metrics=build_metrics([{"metric_name": "exact_match"}]),
        train=train,
        validation=validation,
        fixes=fixes,
        knowledge=knowledge,
        seed=seed,
    )


class _SearchMeter:
    """Remembers what the task model had spent when the search ended."""

    def __init__(self, task: TaskModel) -> None:
        self.calls = 0
        self._task = task

    async def observe(self, event: Event) -> None:
        if event.type == StopDecided.event_type:
            self.calls = self._task.spent.calls


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOutcome:
    """The result of a run, and what task model and stages spent; `search_calls` are the node calls of the search."""

    result: RunResult
    expert: SightedExpert
    task: Spending
    search_calls: int

    @property
    def changed(self) -> frozenset[str]:
        """The surfaces that the final profile changes."""
        return frozenset(change.surface_id for change in self.result.changes)

    @property
    def executed_in_search(self) -> int:
        """The case runs of the search, without rows that were known before."""
        of_rounds = (each for done in self.result.rounds for each in done.all_evaluations)
        others = (each for each in self.result.evaluations if each.phase not in AFTER_SEARCH)
        by_number = {each.number: each for each in (*of_rounds, *others)}
        return sum(row.origin != "kept" for each in by_number.values() for row in each.rows)

    @property
    def case_runs_of_search(self) -> int:
        """The case runs up to the last validation, without ablation and final test."""
        of_rounds = (each for done in self.result.rounds for each in done.all_evaluations)
        others = (each for each in self.result.evaluations if each.phase not in AFTER_SEARCH)
        by_number = {each.number: each for each in (*of_rounds, *others)}
        return sum(len(each.rows) for each in by_number.values())


async def run_gepa_search(
    world: PlantedWorld,
    *,
    module_selector: ModuleSelector,
    is_sighted: bool = True,
    minibatch: int | None = None,
    max_case_runs: int = 1_500,
) -> WorldOutcome:
    """Optimize the agent with GEPA: the expert rewrites components, and blames them if the selector asks for that."""
    task = TaskModel(answer=world.answer, seed=world.seed)
    expert = SightedExpert(world.knowledge, seed=world.seed, is_sighted=is_sighted)
    evaluator = world.build_evaluator(task)
    evaluator.gateway.add_model(EXPERT, expert)
    search = GepaSearch(
        CheapestAttributor(LLMAttributor(EXPERT), LLMBackwarder(EXPERT)),
        LLMAggregator(EXPERT),
        reflection_model=EXPERT,
        module_selector=module_selector,
        reflection_minibatch_size=minibatch,
        seed=world.seed,
    )
    request = RunRequest(
        train=world.train,
        validation=world.validation,
        targets=tuple(world.texts),
        final_test=None,
        stop=TargetScore(1.0) | MaxEvaluations(max_case_runs),
        max_rounds=10 * max_case_runs,
        seed=world.seed,
        run_id=world.name,
    )
    meter = _SearchMeter(task)
    result = await Engine(world.agent, evaluator, search=search).run(request, observers=[meter])
    return WorldOutcome(result=result, expert=expert, task=task.spent, search_calls=meter.calls)


async def optimize_world(
    world: PlantedWorld,
    *,
    error_rate: float = 0.0,
    blame: Backwarder | Attributor | None = None,
    final_test: FinalTest | None = None,
    max_rounds: int = 8,
    agent: Agent | None = None,
    cache: Cache | None = None,
) -> WorldOutcome:
    """Optimize the agent with the LLM stages, which ask a sighted expert. The default blame is the cheapest.

    `agent` is the same agent in another form.
    """
    task = TaskModel(answer=world.answer, seed=world.seed)
    expert = SightedExpert(world.knowledge, error_rate=error_rate, seed=world.seed)
    evaluator = world.build_evaluator(task, cache=cache)
    evaluator.gateway.add_model(EXPERT, expert)
    blame = blame or CheapestAttributor(LLMAttributor(EXPERT), LLMBackwarder(EXPERT))
    engine = Engine(agent or world.agent, evaluator, blame, LLMAggregator(EXPERT), LLMOptimizer(EXPERT))
    request = RunRequest(
        train=world.train,
        validation=world.validation,
        final_test=final_test,
        stop=TargetScore(1.0),
        max_rounds=max_rounds,
        seed=world.seed,
        run_id=world.name,
    )
    meter = _SearchMeter(task)
    result = await engine.run(request, observers=[meter])
    return WorldOutcome(result=result, expert=expert, task=task.spent, search_calls=meter.calls)
