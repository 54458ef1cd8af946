"""Blame on planted faults: with the same model, one call over a whole trace finds what the walk finds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.propagate import StepwiseAttributor
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.stages.contracts import AttributeRequest, SurfaceGradient
from tests.worlds.expert import Expert
from tests.worlds.scenarios import NAMES, Scenario, make_scenario

pytestmark = pytest.mark.slow

SOME = 6


async def collect_failures(made: Scenario) -> list[AttributeRequest]:
    """The failed traces of some train cases under the baseline."""
    evaluator, snapshot = made.evaluator(), made.agent.describe()
    some = replace(made.train, cases=made.train.cases[:SOME])
    evaluation = await evaluator.evaluate(made.agent, some)
    return [
        AttributeRequest(
            case_loss=loss,
            trace=await evaluator.trace_store.get(loss.trace_digest),
            snapshot=snapshot,
            profile=Profile.baseline(snapshot),
            targets=frozenset(surface.id for surface in snapshot.surfaces if surface.type == "instruction"),
        )
        for loss in await extract_losses(evaluation, some, evaluator.trace_store.get)
    ]


async def blame(made: Scenario, *, is_whole: bool, error_rate: float = 0.0) -> tuple[set[SurfaceGradient], int]:
    """All gradients, and the number of calls."""
    expert = Expert(made, error_rate=error_rate)
    gateway = Gateway(models={"expert": expert.model})
    whole, backwarder = LLMAttributor("expert", gateway=gateway), LLMBackwarder("expert", gateway=gateway)
    attributor = whole if is_whole else StepwiseAttributor(backwarder)
    answers = await asyncio.gather(*map(attributor.attribute, await collect_failures(made)))
    found = {gradient for results in answers for result in results for gradient in result.gradients}
    return found, expert.calls["backwarder"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_whole_trace_gives_the_gradients_of_the_walk_in_one_call(name: str) -> None:
    made = make_scenario(name, 3)
    by_walk, many = await blame(made, is_whole=False)
    at_once, few = await blame(made, is_whole=True)
    assert at_once == by_walk
    assert {gradient.surface_id for gradient in at_once} == made.faulty
    assert few <= SOME < many


@pytest.mark.parametrize("name", ["two_visible", "join"])
async def test_with_the_same_errors_a_whole_trace_finds_more_faults_than_a_walk(name: str) -> None:
    """In a walk, an error at one step hides the steps before it."""
    made = make_scenario(name, 0)
    by_walk, _ = await blame(made, is_whole=False, error_rate=0.2)
    at_once, _ = await blame(made, is_whole=True, error_rate=0.2)
    correct = [{each for each in found if each.surface_id in made.faulty} for found in (by_walk, at_once)]
    assert correct[0] < correct[1]
    assert {each.surface_id for each in at_once} > made.faulty
