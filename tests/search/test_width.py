"""Several candidates per round: written from the same evidence, screened on the failed train cases."""

from __future__ import annotations

import pytest

from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.review import Review, ReviewRequest
from promptiter.errors import SetupError
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.runlog.journal import MemoryJournal
from promptiter.search.propose import EMPHASES
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.optimizer import OptimizeRequest
from tests.worlds import desk
from tests.worlds.desk_stages import Blames, BlamesTheEarliest, Merges, Writes


def write(request: OptimizeRequest) -> str | None:
    """Only the second emphasis leads to the word that the agent needs."""
    if "careful" in str(request.surface.value):
        return None
    return f"{request.surface.value} {'Be careful.' if request.emphasis == EMPHASES[1] else 'Think.'}"


def engine(width: int, optimizer: Writes, trace_store: FileTraceStore | None = None) -> Engine:
    search = BackpropRounds(Blames(), Merges(), optimizer, width=width, check=None)
    return Engine(desk.agent(), desk.evaluator(trace_store=trace_store), search=search)


async def test_the_candidate_that_does_best_on_the_failed_train_cases_is_validated() -> None:
    optimizer = Writes(write)
    result = await engine(2, optimizer).run(desk.request(stop=TargetScore(1.0)))
    [only] = result.rounds
    assert [sorted({request.emphasis for request in optimizer.requests})] == [sorted(EMPHASES[:2])]
    worse, best = only.candidates
    assert worse.decision is not None
    assert worse.decision.reason == (
        "no better on the failed train cases than the chosen candidate (0.000 against 1.000)"
    )
    assert (worse.validation, result.accepted_score) == (None, 1.0)
    assert {patch.value for patch in best.patches} == {"Draft. Be careful.", "Polish. Be careful."}
    [first] = get_passes(only)
    assert first.patches == best.patches, "the record has what was chosen"
    reruns = [each for each in only.all_evaluations if each.phase == "rerun"]
    assert [each.mean_score for each in reruns] == [0.0, 1.0]


async def test_equal_candidates_are_tried_once() -> None:
    result = await engine(3, Writes()).run(desk.request(stop=TargetScore(1.0)))
    [only] = result.rounds
    assert len(only.candidates) == 1
    assert [each.phase for each in only.all_evaluations] == ["train", "rerun", "validation"]
    assert get_passes(only)[0].patches == only.patches


async def test_a_round_starts_again_from_what_was_tried_if_no_candidate_helps() -> None:
    optimizer = Writes(lambda request: f"{request.emphasis or 'Think'} {len(request.rejected)}")
    await engine(2, optimizer).run(desk.request(max_rounds=2, targets=["draft#instruction"]))
    tried = [rejection.value for rejection in optimizer.requests[-1].rejected if rejection.kind.startswith("tried")]
    assert len(tried) == len(set(map(str, tried))) >= 2


async def test_without_a_model_there_is_one_candidate_and_a_person_reviews_one() -> None:
    class Approves:
        async def review(self, request: ReviewRequest) -> Review:
            return Review() if request.patch.value else Review(action="veto")

    class Rules(Writes):
        model = None

    assert BackpropRounds(optimizer=Rules(), width=2).width == 1
    optimizer = Writes(write)
    await engine(2, optimizer).run(desk.request(max_rounds=1), reviewer=Approves())
    assert {request.emphasis for request in optimizer.requests} == {""}


@pytest.mark.parametrize(("width", "reason"), [(0, "width is 0"), (9, "give a number from 1 to 4")])
def test_the_width_is_checked(width: int, reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        BackpropRounds(width=width)


def make_dead_end(request: ModelRequest) -> ModelReply:
    """Polish cannot work on drafts that are `stiff`."""
    instruction, asked = request.messages[0].content, request.messages[-1].content
    text = f"{asked} careful" if "careful" in instruction and "stiff" not in asked else asked
    return ModelReply(text=f"{text} stiff" if "stiff" in instruction else text)


def dead_end_engine(width: int, optimizer: Writes, trace_store: FileTraceStore | None = None) -> Engine:
    gateway = Gateway(models={"scripted": ScriptedModel(make_dead_end)})
    search = BackpropRounds(BlamesTheEarliest(), Merges(), optimizer, width=width, check=None)
    return Engine(desk.agent(), desk.evaluator(gateway, trace_store=trace_store), search=search)


def write_stiffly(request: OptimizeRequest) -> str | None:
    is_new = not any("stiff" in str(each.value) for each in request.rejected)
    if request.surface.id == "draft#instruction" and is_new:
        return None if "stiff" in str(request.surface.value) else "Draft: careful, stiff."
    if request.surface.id == "polish#instruction" and is_new and request.failing[0].input.count("careful") == 0:
        return None
    return f"{request.surface.value} Be careful{'!' * len(request.rejected)}."


@pytest.mark.parametrize(("width", "score"), [(1, 0.5), (2, 1.0)])
async def test_after_two_rejections_a_round_starts_from_an_earlier_accepted_profile(width: int, score: float) -> None:
    asked = desk.request(stop=TargetScore(1.0) | Patience(5))
    result = await dead_end_engine(width, Writes(write_stiffly)).run(asked)
    assert result.rounds[0].decision is not None
    assert (result.rounds[0].decision.accepted, result.accepted_score) == (True, score)
    if width == 2:
        *_, last = result.rounds
        assert last.candidate is not None
        assert last.candidate.parents == (result.initial_profile.digest,)


@pytest.mark.long
@pytest.mark.parametrize("is_dead_end", [False, True])
async def test_a_resumed_run_ends_as_one_that_was_not_interrupted(is_dead_end: bool) -> None:
    def make_engine(optimizer: Writes) -> Engine:
        return dead_end_engine(2, optimizer, trace_store) if is_dead_end else engine(2, optimizer, trace_store)

    whole, trace_store, asked = MemoryJournal(), FileTraceStore(), desk.request(stop=TargetScore(1.0) | Patience(5))
    writer = write_stiffly if is_dead_end else write
    expected = await make_engine(Writes(writer)).run(asked, journal=whole)
    assert expected.accepted_score == 1.0
    events = list(whole.events)
    for count in range(1, len(events) - 1, 5 if is_dead_end else 3):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        optimizer = Writes(writer)
        assert await make_engine(optimizer).run(asked, journal=journal) == expected
        if not is_dead_end and any(event.type == "patch_variants" for event in events[:count]):
            assert not optimizer.requests
