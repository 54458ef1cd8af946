"""Blame on planted faults: one call over a whole trace gives what the walk gives, from the same eyes."""

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
from promptiter.stages.contracts import AttributeRequest, Attributor, SurfaceGradient
from tests.worlds.expert import Expert
from tests.worlds.scenarios import NAMES, Scenario, scenario

SOME = 6


async def failures_of(made: Scenario) -> list[AttributeRequest]:
    """The failed traces of some train cases under the baseline."""
    evaluator, snapshot = made.evaluator(), made.agent.describe()
    some = replace(made.train, cases=made.train.cases[:SOME])
    evaluation = await evaluator.evaluate(made.agent, some)
    return [
        AttributeRequest(
            case_loss=loss,
            trace=evaluator.trace_store.get(loss.trace_digest),
            snapshot=snapshot,
            profile=Profile.baseline(snapshot),
            targets=frozenset(surface.id for surface in snapshot.surfaces if surface.type == "instruction"),
        )
        for loss in extract_losses(evaluation, some, evaluator.trace_store.get)
    ]


async def blame(made: Scenario, *, is_whole: bool, error_rate: float = 0.0) -> tuple[set[SurfaceGradient], int]:
    """All gradients, and how many calls they took."""
    expert = Expert(made, error_rate=error_rate)
    gateway = Gateway(models={"expert": expert.model})
    whole, backwarder = LLMAttributor("expert", gateway=gateway), LLMBackwarder("expert", gateway=gateway)
    attributor: Attributor = whole if is_whole else StepwiseAttributor(backwarder)
    answers = await asyncio.gather(*map(attributor.attribute, await failures_of(made)))
    found = {gradient for results in answers for result in results for gradient in result.gradients}
    return found, expert.calls["backwarder"]


@pytest.mark.parametrize("name", NAMES)
async def test_a_whole_trace_gives_the_gradients_of_the_walk_in_one_call(name: str) -> None:
    made = scenario(name, 3)
    by_walk, many = await blame(made, is_whole=False)
    at_once, few = await blame(made, is_whole=True)
    assert at_once == by_walk
    assert {gradient.surface_id for gradient in at_once} == made.faulty
    assert few <= SOME < many


@pytest.mark.parametrize("name", ["two_visible", "join"])
async def test_a_whole_trace_finds_every_fault_that_a_walk_of_the_same_eyes_finds(name: str) -> None:
    """Whoever errs on the way of a walk sees nothing of what is behind."""
    made = scenario(name, 0)
    by_walk, _ = await blame(made, is_whole=False, error_rate=0.2)
    at_once, _ = await blame(made, is_whole=True, error_rate=0.2)
    right = [{each for each in found if each.surface_id in made.faulty} for found in (by_walk, at_once)]
    assert right[0] < right[1]
    assert {each.surface_id for each in at_once} > made.faulty
