"""Patches in result.json name what they rest on: the gradients, steps and cases behind them, also for single edits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.profile import PatchEvidence, SurfacePatch
from promptiter.runlog.results import RunResult
from promptiter.search.cheaper import ModelDownsizing
from promptiter.search.rounds import BackpropRounds
from promptiter.search.shorter import PromptShortening
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SignalPoint, SurfaceGradient
from tests.worlds import desk, shop
from tests.worlds.desk_stages import Blames, BlamesTheEarliest, Merges, Writes
from tests.worlds.starter import Shop


def list_patches(result: RunResult) -> Iterator[tuple[int, SurfacePatch]]:
    """The patches of all candidates, as a reader of result.json gets them, each with its round."""
    for each in RunResult.from_json(result.to_json()).rounds:
        for candidate in each.candidates:
            for patch in candidate.patches:
                yield each.round, patch


def list_gradients(result: RunResult) -> dict[str, SurfaceGradient]:
    """All gradients of a run by id; no two have the same."""
    found = [
        gradient
        for each in RunResult.from_json(result.to_json()).rounds
        for one in get_passes(each)
        for blame in one.blames
        for step in blame.results
        for gradient in step.gradients
    ]
    by_id = {each.id: each for each in found}
    assert len(by_id) == len(found)
    return by_id


def check_evidence(evidence: PatchEvidence, surface_id: str, gradients: dict[str, SurfaceGradient]) -> None:
    behind = [gradients[name] for name in evidence.gradients]
    assert behind
    assert {each.surface_id for each in behind} == {surface_id}
    assert set(evidence.cases) == {each.case_id for each in behind}
    assert set(evidence.steps) == {f"{each.case_id}/{each.step_id}" for each in behind}


@pytest.mark.slow
def test_patches_of_rules_name_the_gradients_behind_them_and_behind_each_edit() -> None:
    world = Shop()
    result = world.engine.run_sync(replace(world.request, final_test=None))
    gradients, patches = list_gradients(result), list(list_patches(result))
    assert {patch.surface_id for _, patch in patches} == {"reception#instruction", "filing#instruction"}
    for _, patch in patches:
        check_evidence(patch.evidence, patch.surface_id, gradients)
        assert patch.edits
        before = str(result.initial_profile.value(patch.surface_id, result.structure))
        for edit in patch.edits:
            assert (edit.before in before, edit.after in str(patch.value)) == (True, True)
            assert "of 8 failing outputs" in edit.reason
            check_evidence(edit.evidence, patch.surface_id, gradients)


def test_a_stage_that_names_no_evidence_gets_that_of_its_gradients() -> None:
    """Also in a later round, which uses the blame of an earlier one, and in the second pass of a round."""
    rounds = iter(["Badly.", None, "With care: careful.", "With care: careful."])
    search = BackpropRounds(BlamesTheEarliest(), Merges(), Writes(lambda _: next(rounds)), check=None)
    result = desk.engine(search=search).run_sync(desk.request())
    gradients, patches = list_gradients(result), list(list_patches(result))
    assert {number for number, _ in patches} == {1, 2}
    for _, patch in patches:
        check_evidence(patch.evidence, patch.surface_id, gradients)
        assert len(patch.evidence.cases) == 3


class MergesByCase:
    """An aggregator with one point for each case."""

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        points = tuple(
            SignalPoint(text=f"care {number}", case_ids=(each.case_id,), gradient_ids=(each.id,))
            for number, each in enumerate(request.gradients, 1)
        )
        return AggregateResult(surface_id=request.surface.id, text="care", points=points)


def test_hunks_of_a_value_are_traced_to_the_points_that_the_model_names() -> None:
    def write(request: ModelRequest) -> ModelReply:
        assert "2. care 2 (1 case)" in request.text
        changes = [{"text": "Be careful.", "points": [1]}, {"text": "Be calm.", "points": [2, 3]}]
        value = "Be careful. Answer. Be calm."
        return ModelReply(text=json.dumps({"reason": "more care", "value": value, "changes": changes}))

    agent = GraphAgent(name="desk", nodes=(ModelNode(name="draft", instruction="Answer.", model="scripted"),))
    gateway = Gateway(models={"scripted": desk.model(), "writer": ScriptedModel(write)})
    search = BackpropRounds(Blames(), MergesByCase(), LLMOptimizer("writer"), check=None)
    result = Engine(agent, desk.evaluator(gateway), search=search).run_sync(desk.request(max_rounds=1))
    gradients = list_gradients(result)
    [(_, patch)] = list_patches(result)
    assert [(each.before, each.after, each.reason) for each in patch.edits] == [
        ("", "Be careful.", "care 1"),
        ("", "Be calm.", "care 2; care 3"),
    ]
    for edit in patch.edits:
        check_evidence(edit.evidence, patch.surface_id, gradients)
    assert [len(each.evidence.cases) for each in patch.edits] == [1, 2]


def test_edits_of_a_model_name_the_points_behind_them() -> None:
    """A long text is changed by edits; the model gives the numbers of the points it was shown."""
    rules = "".join(f"Rule {number}: be kind. " for number in range(1_500))

    def write(request: ModelRequest) -> ModelReply:
        assert "2. care 2 (1 case)" in request.text
        edits = [
            {"find": "Rule 7: be kind.", "replace": "Rule 7: be careful.", "reason": "care", "points": [2, 99]},
            {"find": "Rule 9: be kind.", "replace": "Rule 9: be calm.", "reason": "", "points": []},
        ]
        return ModelReply(text=json.dumps({"reason": "more care", "edits": edits}))

    agent = GraphAgent(name="desk", nodes=(ModelNode(name="draft", instruction=rules, model="scripted"),))
    gateway = Gateway(models={"scripted": desk.model(), "writer": ScriptedModel(write)})
    search = BackpropRounds(Blames(), MergesByCase(), LLMOptimizer("writer", max_prompt_tokens=8_000), check=None)
    result = Engine(agent, desk.evaluator(gateway), search=search).run_sync(desk.request(max_rounds=1))
    gradients = list_gradients(result)
    [(_, patch)] = list_patches(result)
    check_evidence(patch.evidence, patch.surface_id, gradients)
    assert len(patch.evidence.cases) == 3
    first, second = patch.edits
    assert (first.before, first.after, first.reason) == ("Rule 7: be kind.", "Rule 7: be careful.", "care")
    check_evidence(first.evidence, patch.surface_id, gradients)
    assert len(first.evidence.cases) == 1
    assert second.evidence == PatchEvidence()


@pytest.mark.slow
async def test_removed_sentences_name_the_train_cases_that_did_as_well_without_them() -> None:
    request = desk.request(
        train=shop.eval_set("train", 6),
        validation=shop.eval_set("validation", 6),
        goal=Goal(kind="fewer_tokens"),
        acceptance=NonInferior(0.05),
        final_test=None,
    )
    result = await shop.engine(PromptShortening(), shop.agent()).run(request)
    [(_, patch), *_] = list_patches(result)
    assert set(patch.evidence.cases) == {case.id for case in shop.eval_set("train", 6).cases}
    before = str(result.initial_profile.value(patch.surface_id, result.structure))
    assert len(patch.edits) == int(patch.reason.split()[0])
    for edit in patch.edits:
        assert (edit.before in before, edit.before in str(patch.value), edit.after) == (True, False, "")


async def test_a_cheaper_model_names_the_steps_that_use_the_old_one() -> None:
    request = desk.request(
        train=shop.eval_set("train", 2),
        validation=shop.eval_set("validation", 20),
        goal=Goal(kind="cheaper"),
        acceptance=NonInferior(0.05, "usd"),
        final_test=None,
    )
    result = await shop.engine(ModelDownsizing(), shop.agent()).run(request)
    [(_, patch)] = list_patches(result)
    assert len(patch.evidence.cases) == 20
    assert set(patch.evidence.steps) == {f"{case_id}/clerk" for case_id in patch.evidence.cases}
    assert [note.type for note in result.notes] == ["swaps"]
