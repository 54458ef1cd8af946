"""What an expert learns from a world in production, and a run that validates it with the live agent."""

from __future__ import annotations

from pathlib import Path

from promptiter.agents.graph import GraphAgent
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.cheapest_attributor import CheapestAttributor
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.runlog.results import RunResult
from promptiter.structure import StructureSnapshot
from promptiter.tasks.failed_runs import find_failures, select_runs
from promptiter.tasks.feedback import load_feedback
from promptiter.tasks.learned_patches import LearnedPatches, write_patches
from promptiter.tasks.learning import learn
from promptiter.tasks.lessons import Lessons
from promptiter.tasks.recorded_agent import JudgedRun
from promptiter.tasks.recorded_run import read_run
from tests.worlds.planted_world import EXPERT, PlantedWorld
from tests.worlds.production import run_in_production
from tests.worlds.sighted_expert import SightedExpert
from traces import read_otel


async def record(world: PlantedWorld, cases: EvalSet, folder: Path, *, share: float = 0.3) -> list[JudgedRun]:
    """Run the world in production, export it, and read what is left of it; a share of the runs has feedback."""
    production = await run_in_production(world, cases)
    production.write_spans(folder / "spans.jsonl")
    production.write_feedback(folder / "feedback.csv", share=share)
    feedback = load_feedback(folder / "feedback.csv")
    return [
        JudgedRun(trace=trace, run=read_run(trace), feedback=feedback.find([trace.id], trace.conversation_id))
        for trace in read_otel(folder / "spans.jsonl")
    ]


async def learn_with_expert(
    world: PlantedWorld,
    runs: list[JudgedRun],
    *,
    live: StructureSnapshot | None = None,
    budget: Budget | None = None,
    most: int = 100,
) -> Lessons:
    expert = SightedExpert(world.knowledge, seed=world.seed)
    evaluator = Evaluator(gateway=Gateway(models={EXPERT: expert}, budget=budget))
    found = await find_failures(select_runs(runs, live=live), evaluator=evaluator, most=most)
    return await learn(
        found,
        evaluator=evaluator,
        backwarder=CheapestAttributor(LLMAttributor(EXPERT), LLMBackwarder(EXPERT)),
        aggregator=LLMAggregator(EXPERT),
        optimizer=LLMOptimizer(EXPERT),
        live=live,
    )


async def validate(world: PlantedWorld, live: GraphAgent, lessons: Lessons, folder: Path) -> RunResult:
    """Validate the patches with the live agent; the rounds that follow have no model."""
    write_patches(folder / "patches.json", lessons.patches)
    engine = Engine(live, world.build_evaluator(), search=LearnedPatches(patches=folder / "patches.json"))
    return await engine.run(RunRequest(train=world.train, validation=world.validation, seed=1, run_id="learned"))
