"""prompt_reader: what the prompts of the LLM stages show is read back as it was rendered."""

from __future__ import annotations

from dataclasses import replace

from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.corrector import LLMCorrector
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import Attributor, Backwarder
from tests.worlds.planted_world import EXPERT
from tests.worlds.prompt_reader import BlamePrompt, CorrectPrompt, MergePrompt, OptimizePrompt, read_prompt
from tests.worlds.rules_world import make_rules_world
from tests.worlds.sighted_expert import SightedExpert

WORLD = make_rules_world("one", seed=0)
[FAULTY] = WORLD.faulty
NODE = FAULTY.partition("#")[0]


class Recorder:
    """An expert that keeps its requests."""

    def __init__(self) -> None:
        self.expert = SightedExpert(WORLD.knowledge)
        self.requests: list[ModelRequest] = []

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.requests.append(request)
        return await self.expert(request, repeat=repeat)


async def test_a_whole_trace_is_read_with_the_input_of_every_step() -> None:
    [prompt] = (each for each in await record(LLMAttributor(EXPERT), cases=1) if isinstance(each, BlamePrompt))
    [run] = prompt.runs
    [turn] = WORLD.train.cases[0].turns
    assert not prompt.is_one_step
    assert (run.user, run.expected) == (turn.user, turn.expected)
    assert len(run.steps) == 10
    [faulty] = (step for step in run.steps if step.node == NODE)
    assert (faulty.input, faulty.output) == ("t00 / R00 / a=good / b=good", "t00 / R00 / a=bad / b=good")
    [alias] = faulty.blamable
    assert prompt.surfaces[alias].id == FAULTY
    assert prompt.surfaces[alias].value == f"You are the {NODE}."


async def test_a_step_of_a_walk_is_read_with_its_predecessors() -> None:
    prompts = [each for each in await record(LLMBackwarder(EXPERT), cases=1) if isinstance(each, BlamePrompt)]
    [last] = (each for each in prompts if each.runs[0].steps[0].node == "final")
    assert last.is_one_step
    assert last.runs[0].predecessors == {"P1": "t00 / R00 / a=bad / b=good"}
    assert [each.id for each in last.surfaces.values()] == ["final#instruction"]


async def test_points_signal_and_current_value_are_read() -> None:
    prompts = await record(LLMAttributor(EXPERT), cases=2)
    [merge] = (each for each in prompts if isinstance(each, MergePrompt))
    assert (merge.surface.id, merge.surface.value) == (FAULTY, f"You are the {NODE}.")
    assert [point.rpartition(": ")[2] for point in merge.points] == ["Always follow R00.", "Always follow R01."]
    [optimize] = (each for each in prompts if isinstance(each, OptimizePrompt))
    assert (optimize.surface.id, optimize.surface.value) == (FAULTY, f"You are the {NODE}.")
    assert "Always follow R00." in optimize.signal
    assert {each.quotes["step output"] for each in optimize.examples if not each.passed} == {
        "t00 / R00 / a=bad / b=good",
        "t01 / R01 / a=bad / b=good",
    }


async def test_the_step_to_correct_is_read_with_its_diagnosis() -> None:
    prompts = await record(LLMAttributor(EXPERT), cases=1, has_corrector=True)
    [correct] = (each for each in prompts if isinstance(each, CorrectPrompt))
    assert (correct.step.node, correct.diagnosis) == (NODE, ("Always follow R00.",))
    assert [each.id for each in correct.surfaces] == [FAULTY]


async def record(blame: Backwarder | Attributor, *, cases: int, has_corrector: bool = False) -> list[object]:
    """The prompts of a short run."""
    recorder, evaluator = Recorder(), WORLD.build_evaluator()
    evaluator.gateway.add_model(EXPERT, recorder)
    check = GradientCheck(LLMCorrector(EXPERT)) if has_corrector else None
    search = BackpropRounds(blame, LLMAggregator(EXPERT), LLMOptimizer(EXPERT), check=check)
    request = RunRequest(
        train=replace(WORLD.train, cases=WORLD.train.cases[:cases]),
        validation=replace(WORLD.validation, cases=WORLD.validation.cases[:1]),
        final_test=None,
        max_rounds=1,
    )
    await Engine(WORLD.agent, evaluator, search=search).run(request)
    return [read_prompt(each) for each in recorder.requests]
