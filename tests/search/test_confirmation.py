"""Blame with little support: it is tried last, and only if a repeat of its cases confirms it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.record import get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.stopping import TargetScore
from promptiter.profile import SurfacePatch
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import AttributeRequest, BackwardResult, SurfaceGradient
from promptiter.stages.optimizer import OptimizeRequest, PatchResult

pytestmark = pytest.mark.slow

DRAFT, POLISH = "draft#instruction", "polish#instruction"
Slips = Mapping[tuple[str, int], str]
"""The node that spoils a case by accident, by case and repeat."""


class Desk:
    """Draft handles common cases and polish rare ones, if their instructions say so; both slip now and then."""

    def __init__(self, slips: Slips) -> None:
        self.slips = slips

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        node, text = request.model, request.messages[-1].content
        case, kind = text.split()[:2]
        needed = {"draft": "common", "polish": "rare"}[node]
        is_spoiled = kind == needed and needed not in request.messages[0].content
        if is_spoiled or self.slips.get((case, repeat)) == node:
            text += f" spoiled-by-{node}"
        return ModelReply(text=text)


class BlamesTheSpoiler:
    """Blames the steps whose output is spoiled while their input is not."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        return [
            BackwardResult(
                step_id=step.id,
                gradients=(
                    SurfaceGradient(
                        surface_id=f"{step.node_id}#instruction",
                        case_id=request.case_loss.case_id,
                        step_id=step.id,
                        text="it spoils the case",
                    ),
                ),
            )
            for step in request.trace.steps
            if f"spoiled-by-{step.node_id}" in (step.output.text or "")
        ]


class BlamesTheFirst(BlamesTheSpoiler):
    """Blames the first of these steps only, so that it hides the others."""

    async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
        return (await super().attribute(request))[:1]


class NamesTheKind:
    """Adds the kinds of the failing cases to an instruction."""

    def __init__(self, *, is_wrong_about: str = "") -> None:
        self.is_wrong_about = is_wrong_about

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        kinds = sorted({example.case_input.split()[1] for example in request.failing} - {self.is_wrong_about})
        sentence, value = f"Handle {' and '.join(kinds) or 'all'} cases.", str(request.surface.value)
        if any(sentence in str(known) for known in (value, *(each.value for each in request.rejected))):
            return PatchResult(patch=None, reason="nothing else comes to mind")
        return PatchResult(
            patch=SurfacePatch(surface_id=request.surface.id, value=f"{value} {sentence}", reason="kinds")
        )


def eval_set(name: str, *, count: int, common: int = 0, rare: int = 0) -> EvalSet:
    kinds = ["common"] * common + ["rare"] * rare
    kinds += ["plain"] * (count - len(kinds))
    turns = {f"{name}-{number}": Turn(user=f"{name}-{number} {kind}") for number, kind in enumerate(kinds)}
    return EvalSet(id=name, cases=tuple(EvalCase(id=case_id, turns=(turn,)) for case_id, turn in turns.items()))


def engine(
    slips: Slips | None = None,
    optimizer: NamesTheKind | None = None,
    trace_store: FileTraceStore | None = None,
    attributor: BlamesTheSpoiler | None = None,
) -> Engine:
    def judge(_: EvalCase, run: AgentRun) -> float:
        return float("spoiled" not in str(run.output))

    agent = GraphAgent(
        name="desk",
        nodes=(
            ModelNode(name="draft", instruction="Draft.", model="draft"),
            ModelNode(name="polish", instruction="Polish.", model="polish"),
        ),
        edges=(Edge("draft", "polish"),),
    )
    desk = Desk(slips or {})
    evaluator = Evaluator(
        [FunctionMetric(name="judge", function=judge)],
        gateway=Gateway(models={"draft": desk, "polish": desk}),
        trace_store=trace_store,
    )
    search = BackpropRounds(attributor or BlamesTheSpoiler(), optimizer=optimizer or NamesTheKind(), check=None)
    return Engine(agent, evaluator, search=search)


def request(*, common: int = 0, rare: int = 0, **changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": eval_set("train", count=24, common=common, rare=rare),
        "validation": eval_set("validation", count=6, common=min(common, 2), rare=1),
        "stop": TargetScore(1.0),
        "final_test": None,
        "run_id": "r",
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


def list_phases(result: RunResult) -> list[tuple[str, int]]:
    """The phases of all rounds, each with its case runs."""
    return [(each.phase, len(each.rows)) for done in result.rounds for each in done.all_evaluations]


async def test_a_fault_of_two_cases_in_24_is_confirmed_and_fixed() -> None:
    result = await engine().run(request(rare=2))
    assert [change.surface_id for change in result.changes] == [POLISH]
    assert result.accepted_score == 1.0
    assert list_phases(result) == [("train", 24), ("repeat", 2), ("rerun", 2), ("validation", 6)]
    first, confirmed = get_passes(result.rounds[0])
    assert [signal.surface_id for signal in first.below_support] == [POLISH]
    assert [(signal.surface_id, signal.case_ids) for signal in confirmed.signals] == [(POLISH, ("train-0", "train-1"))]


async def test_a_case_that_passes_when_it_is_repeated_blames_nothing() -> None:
    result = await engine({("train-5", 0): "polish"}).run(request())
    assert (result.changes, result.stop_reason) == ((), "exhausted")
    assert list_phases(result) == [("train", 24), ("repeat", 1)]


async def test_a_case_that_fails_again_in_another_place_blames_nothing() -> None:
    result = await engine({("train-5", 0): "polish", ("train-5", 1): "draft"}).run(request())
    assert (result.changes, result.stop_reason) == ((), "exhausted")
    assert not any(each.patches for each in get_passes(result.rounds[0]))


async def test_a_slip_that_hides_a_rare_fault_in_the_repeat_does_not_hide_it_for_good() -> None:
    result = await engine({("train-0", 1): "draft"}, attributor=BlamesTheFirst()).run(request(rare=1))
    assert [change.surface_id for change in result.changes] == [POLISH]
    assert list_phases(result)[:3] == [("train", 24), ("repeat", 1), ("repeat", 1)]


async def test_a_rare_fault_is_fixed_in_the_round_that_fixes_a_common_one() -> None:
    """Its support is a tenth of the common one's, so it is left for the second pass."""
    result = await engine().run(request(common=20, rare=2))
    [only] = result.rounds
    patched = [[patch.surface_id for patch in each.patches] for each in get_passes(only) if each.patches]
    assert patched == [[DRAFT], [POLISH]]
    assert result.accepted_score == 1.0
    assert ("repeat", 2) in list_phases(result)


async def test_a_few_slips_in_one_place_need_confirmation_in_a_later_pass_too() -> None:
    """The four slips are a fifth of the common cases, but a third of those that are run again."""
    slips = {(f"train-{number}", 0): "polish" for number in range(4)}
    result = await engine(slips).run(request(common=20))
    assert [change.surface_id for change in result.changes] == [DRAFT]
    assert ("repeat", 4) in list_phases(result)
    passes = get_passes(result.rounds[0])
    assert [[signal.surface_id for signal in each.below_support] for each in passes] == [[POLISH], [POLISH]]


async def test_what_has_little_support_is_tried_once_the_rest_was_rejected() -> None:
    result = await engine(optimizer=NamesTheKind(is_wrong_about="common")).run(request(common=20, rare=2))
    first, second = result.rounds[:2]
    assert (first.patches.surface_ids, second.patches.surface_ids) == (frozenset({DRAFT}), frozenset({POLISH}))
    assert [each.decision.accepted for each in (first, second) if each.decision is not None] == [False, True]
    assert [change.surface_id for change in result.changes] == [POLISH]


@pytest.mark.parametrize("failed", [4, 5])
async def test_a_candidate_is_validated_twice_if_few_train_cases_failed(failed: int) -> None:
    """Two slips hide the gain in the first comparison. With more failures, that one decides."""
    slips = dict.fromkeys([("validation-0", 0), ("validation-1", 0)], "polish")
    result = await engine(slips).run(request(common=failed))
    decisions = [each.decision.accepted for each in result.rounds[0].candidates if each.decision is not None]
    assert decisions == ([False, True] if failed == 4 else [False])


async def test_a_candidate_for_few_cases_is_validated_twice_before_it_is_rejected() -> None:
    """The only validation case that can show the gain fails by accident at first."""
    slips = {("validation-0", 0): "draft"}
    result = await engine(slips).run(request(rare=2))
    assert [change.surface_id for change in result.changes] == [POLISH]
    first, second = result.rounds[0].candidates
    assert first.decision is not None
    assert second.decision is not None
    assert (first.profile, first.decision.accepted, second.decision.accepted) == (second.profile, False, True)


@pytest.mark.long
async def test_a_resumed_run_ends_as_one_that_was_not_interrupted() -> None:
    slips = {("validation-1", 0): "draft", ("train-9", 0): "draft", ("train-9", 1): "polish"}
    asked, whole, trace_store = request(common=16, rare=2), MemoryJournal(), FileTraceStore()
    optimizer = NamesTheKind(is_wrong_about="common")
    expected = await engine(slips, optimizer, trace_store).run(asked, journal=whole)
    events = list(whole.events)
    for count in range(1, len(events) - 1, 13):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        assert await engine(slips, optimizer, trace_store).run(asked, journal=journal) == expected
