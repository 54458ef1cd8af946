"""Every changed passage of a run links to gradients, cases and steps that are in its record, or says that it cannot."""

from __future__ import annotations

import json

import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.review import Review, ReviewRequest
from promptiter.engine.session import Session
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.profile import PatchEdit, PatchEvidence, PatchSet, SurfacePatch
from promptiter.runlog.fold import fold
from promptiter.runlog.results import RunResult
from promptiter.runs.hunk_evidence import make_anchor, read_hunks
from promptiter.search.cheaper import ModelDownsizing
from promptiter.search.rounds import BackpropRounds
from promptiter.search.shorter import PromptShortening
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SignalPoint
from tests.runs.hunk_links import check_links, list_hunks
from tests.worlds import desk, desk_stages, shop
from tests.worlds.desk_stages import Blames, Writes
from tests.worlds.planted_world import optimize_world
from tests.worlds.planted_worlds import make_world


@pytest.mark.slow
@pytest.mark.parametrize("name", ["triage", "wrong-route", "usual-suspect"])
async def test_every_hunk_of_a_world_that_models_blame_and_patch_links_to_the_record(name: str) -> None:
    world = make_world(name, seed=0)
    check_links((await optimize_world(world)).result, world.train)


class MergesByCase:
    """An aggregator with one point for each of the first `points` cases."""

    def __init__(self, points: int) -> None:
        self.points = points

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        points = tuple(
            SignalPoint(text=f"care {number}", case_ids=(each.case_id,), gradient_ids=(each.id,))
            for number, each in enumerate(request.gradients[: self.points], 1)
        )
        return AggregateResult(surface_id=request.surface.id, text="care", points=points)


def optimize_draft(*answers: dict[str, object], points: int) -> RunResult:
    """Run a desk of one node, whose optimizer is a model with these answers, one per round."""
    waiting = list(answers)

    def write(_: ModelRequest) -> ModelReply:
        return ModelReply(text=json.dumps({"reason": "more care", **waiting.pop(0)}))

    agent = GraphAgent(name="desk", nodes=(ModelNode(name="draft", instruction="Answer. Go.", model="scripted"),))
    gateway = Gateway(models={"scripted": desk.model(), "writer": ScriptedModel(write)})
    search = BackpropRounds(Blames(), MergesByCase(points), LLMOptimizer("writer"), check=None)
    result = Engine(agent, desk.evaluator(gateway), search=search).run_sync(desk.request(max_rounds=len(answers)))
    assert waiting == []
    return result


def test_each_hunk_of_a_model_has_the_gradients_of_the_points_that_it_names() -> None:
    changes = [{"text": "Be careful.", "points": [1]}, {"text": "Be calm.", "points": [2, 3]}]
    result = optimize_draft({"value": "Be careful. Answer. Be calm. Go.", "changes": changes}, points=3)
    check_links(result, desk.eval_set("train", 3))
    first, second = list_hunks(result)
    assert [(each.after, len(each.gradients), each.whole_surface) for each in (first, second)] == [
        ("Be careful.", 1, False),
        ("Be calm.", 2, False),
    ]
    assert (first.reason, second.reason) == ("care 1", "care 2; care 3")
    [effect] = first.effects
    assert effect.subject == "the candidate of round 1: 2 changes in 1 surface together"


def test_all_hunks_answer_a_signal_with_one_point() -> None:
    result = optimize_draft({"value": "Be careful. Answer. Be calm. Go."}, points=1)
    check_links(result, desk.eval_set("train", 3))
    assert [(each.reason, len(each.gradients)) for each in list_hunks(result)] == [("care 1", 1)] * 2


def test_hunks_of_a_model_that_names_no_points_say_that_their_evidence_is_of_the_whole_surface() -> None:
    hunks = list_hunks(optimize_draft({"value": "Be careful. Answer. Be calm. Go."}, points=3))
    assert [(each.whole_surface, len(each.gradients), len(each.cases)) for each in hunks] == [(True, 3, 3)] * 2
    [hunk] = list_hunks(optimize_draft({"value": "Be careful. Answer. Go."}, points=3))
    assert (hunk.whole_surface, len(hunk.gradients), hunk.after) == (False, 3, "Be careful.")
    assert [effect.subject for effect in hunk.effects] == ["this change alone"]


def make_patch(value: str, after: str, case: str) -> PatchSet:
    edit = PatchEdit(before="", after=after, reason=f"for {case}", evidence=PatchEvidence(cases=(case,)))
    return PatchSet((SurfacePatch(surface_id="draft#instruction", value=value, reason="tried", edits=(edit,)),))


class TriesPatches:
    """A search that validates the given patches, one set per round."""

    def __init__(self, *patches: PatchSet) -> None:
        self.patches = patches

    async def search(self, session: Session) -> None:
        for patches in self.patches:
            await session.begin_round()
            await session.validate(patches)
            await session.complete_round()


def test_passages_of_several_rounds_are_traced_through_all_of_them() -> None:
    """The second round is rejected, so its patch is behind nothing."""
    search = TriesPatches(
        make_patch("Draft. Be careful.", "Be careful.", "train-0"),
        make_patch("Draft badly.", "badly", "train-1"),
        PatchSet((SurfacePatch(surface_id="polish#instruction", value="Polish. Be careful.", reason="tried"),)),
    )
    found = read_hunks(desk.engine(search=search).run_sync(desk.request(max_rounds=4)))
    [draft], [polish] = found["draft#instruction"], found["polish#instruction"]
    assert (draft.rounds, draft.cases, draft.reason) == ((1,), ("train-0",), "for train-0")
    assert (polish.rounds, polish.cases, polish.reason) == ((3,), (), "tried")
    assert [(each.scope, each.delta, each.newly_passed) for each in polish.effects[:1]] == [
        ("hunk", 0.5, ("validation-0", "validation-1"))
    ]


def test_what_a_reviewer_writes_is_marked_and_what_they_leave_keeps_its_evidence() -> None:
    class Person:
        async def review(self, request: ReviewRequest) -> Review:
            value = (
                f"Hello. {request.patch.value}" if request.surface.id == "draft#instruction" else "Polished: careful."
            )
            return Review(action="edit", value=value, reason="tone")

    result = desk_stages.engine().run_sync(desk.request(max_rounds=1), reviewer=Person())
    hello, careful = read_hunks(result)["draft#instruction"]
    assert (hello.after, hello.is_reviewed, hello.gradients, hello.reason) == (
        "Hello.",
        True,
        (),
        "edited in review: tone",
    )
    assert (careful.after, careful.is_reviewed, len(careful.gradients)) == ("Be careful.", False, 3)
    [polish] = read_hunks(result)["polish#instruction"]
    assert (polish.before, polish.after, polish.is_reviewed) == ("Polish.", "Polished: careful.", True)


def test_a_run_in_progress_has_the_hunks_of_what_is_accepted_so_far() -> None:
    watcher = desk.Watcher()
    desk_stages.engine().run_sync(desk.request(), observers=[watcher])
    for count in range(2, len(watcher.events)):
        result = fold(watcher.events[:count])
        changed = {each.surface_id for each in result.initial_profile.changes(result.working_profile, result.structure)}
        assert set(read_hunks(result)) == changed


def test_a_run_that_changed_nothing_has_no_hunks() -> None:
    assert read_hunks(desk_stages.engine(optimizer=Writes(lambda _: None)).run_sync(desk.request())) == {}


@pytest.mark.slow
async def test_removed_sentences_say_why_and_name_the_cases_that_did_as_well_without_them() -> None:
    request = desk.request(
        train=shop.eval_set("train", 6),
        validation=shop.eval_set("validation", 6),
        goal=Goal(kind="fewer_tokens"),
        acceptance=NonInferior(0.05),
        final_test=None,
    )
    hunks = list_hunks(await shop.engine(PromptShortening(), shop.agent()).run(request))
    assert hunks
    for hunk in hunks:
        assert hunk.gradients == ()
        assert hunk.tokens_after < hunk.tokens_before
        assert hunk.reason == "it does not help"
        assert set(hunk.cases) == {case.id for case in shop.eval_set("train", 6).cases}
        assert hunk.whole_surface == (len(hunks) > 1)


async def test_a_cheaper_model_names_the_steps_that_used_the_old_one() -> None:
    request = desk.request(
        train=shop.eval_set("train", 2),
        validation=shop.eval_set("validation", 20),
        goal=Goal(kind="cheaper"),
        acceptance=NonInferior(0.05, "usd"),
        final_test=None,
    )
    [hunk] = list_hunks(await shop.engine(ModelDownsizing(), shop.agent()).run(request))
    assert (hunk.whole_surface, hunk.gradients, len(hunk.cases)) == (False, (), 20)
    assert {(each.case_id, each.step_id) for each in hunk.steps} == {(case_id, "clerk") for case_id in hunk.cases}


def test_anchors_of_different_names_differ() -> None:
    names = ["a-b", "a_b", "a.b", "a b", "a#b", "a/b", "<b>", "ä", "a_2d_b"]
    assert len({make_anchor("case", name) for name in names}) == len(names)
    assert make_anchor("step", "a", "b-c") != make_anchor("step", "a-b", "c")
