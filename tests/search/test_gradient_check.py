"""The gradient check: blame that moves the score is supported, blame that does not loses weight."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Literal

import orjson
import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode
from promptiter.backprop.corrections import Correction, CorrectionRequest
from promptiter.backprop.record import GradientsChecked, get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.stopping import TargetScore
from promptiter.profile import Profile, SurfacePatch
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.search.gradient_check import GradientCheck, is_about_output
from promptiter.search.replays import ReplayContext
from promptiter.search.rounds import BackpropRounds
from promptiter.search.run_check import MOST_VISITS
from promptiter.stages.contracts import SurfaceGradient
from promptiter.stages.optimizer import OptimizeRequest, PatchResult
from promptiter.structure import Node, StructureSnapshot, Surface
from tests.worlds.clerks import ALL, Accuser, blame, cases, evaluator, failed, office
from tests.worlds.results import drop_measured


def verdicts(found: GradientsChecked) -> dict[tuple[str, str], str]:
    return {(each.surface_id.partition("#")[0], each.case_id): each.verdict for each in found.checks}


async def check(runs: ReplayContext, *blamed: tuple[str, str], most: int = 12, seed: int = 0) -> GradientsChecked:
    return await GradientCheck(most=most).check([blame(*each) for each in blamed], runs, rng=Random(seed))


async def test_a_guilty_step_is_supported_and_innocent_ones_before_and_after_it_are_not() -> None:
    runs = await failed(office(second="keep order day"))
    found = await check(runs, ("first", "c0"), ("second", "c0"), ("third", "c0"), ("last", "c0"))
    assert verdicts(found) == {
        ("first", "c0"): "unsupported",
        ("second", "c0"): "supported",
        ("third", "c0"): "unsupported",
        ("last", "c0"): "unsupported",
    }
    assert found.replays == 1
    [reason] = [each.reason for each in found.checks if each.verdict == "supported"]
    assert reason == "it lost 'Lyon'; with corrections the run scores right 1"


async def test_the_last_step_is_not_supported_by_the_expected_answer_alone() -> None:
    """What the answer lacks was lost earlier, so no instruction of the last step could have helped."""
    runs = await failed(office(second="keep order day"))
    assert verdicts(await check(runs, ("last", "c0"))) == {("last", "c0"): "unsupported"}
    runs = await failed(office(last="keep order day"))
    assert verdicts(await check(runs, ("last", "c0"))) == {("last", "c0"): "supported"}


async def test_faults_that_hide_each_other_are_supported_together() -> None:
    runs = await failed(office(first="keep order day", third="keep order day"))
    both = await check(runs, ("first", "c0"), ("third", "c0"))
    assert set(verdicts(both).values()) == {"supported"}
    assert both.replays == 2
    apart = await check(runs, ("first", "c0"), ("third", "c1"))  # what is blamed elsewhere is corrected along
    assert set(verdicts(apart).values()) == {"supported"}
    alone = await check(runs, ("third", "c0"))
    assert verdicts(alone) == {("third", "c0"): "unsupported"}


async def test_a_fault_beside_another_is_supported_though_the_score_stays_down() -> None:
    runs = await failed(office(first="keep order city", third="keep order day"))
    assert verdicts(await check(runs, ("third", "c0"))) == {("third", "c0"): "supported"}


async def test_what_comes_before_a_corrected_step_costs_nothing() -> None:
    judge = evaluator()
    runs = await failed(office(third="keep order day"), judge=judge)
    before = judge.gateway.ledger.snapshot().total.calls
    await check(runs, ("third", "c0"))
    assert judge.gateway.ledger.snapshot().total.calls - before == 1  # the last clerk alone


async def test_the_sample_is_spread_bounded_and_the_same_for_a_seed() -> None:
    runs = await failed(office(second="keep order day"), eval_set=cases(8))
    blamed = [(node, f"c{number}") for number in range(8) for node in ("second", "third")]
    blamed.append(("first", "c7"))
    found = await check(runs, *blamed)
    counts = [sum(each.surface_id.startswith(name) for each in found.checks) for name in ("first", "second", "third")]
    assert counts == [1, 3, 3]  # three of a surface are enough
    assert len(verdicts(await check(runs, *blamed, most=5))) <= 5
    assert await check(runs, *blamed, seed=1) == await check(runs, *reversed(blamed), seed=1)


async def test_blame_of_what_a_step_did_is_not_checked() -> None:
    runs = await failed(office(second="keep order day"))
    gradient = blame("second", "c0", category="wrong_tool")
    found = await GradientCheck().check([gradient], runs, rng=Random(0))
    assert (verdicts(found), found.replays) == ({}, 0)


async def test_each_gradient_about_actions_is_left_out_and_the_others_of_its_step_are_checked() -> None:
    runs = await failed(office(second="keep order day"))
    right = Says(Correction(kind="corrected", output="order: A-1000\ncity: Lyon\nday: 2026-03-10"))
    both = [blame("second", "c0"), blame("second", "c0", category="wrong_tool")]
    found = await GradientCheck(right).check(both, runs, rng=Random(0))
    assert verdicts(found) == {("second", "c0"): "supported"}
    assert [each.category for each in right.asked[0].gradients] == ["other"]


async def test_blame_beside_an_unchecked_one_is_not_refuted() -> None:
    """What the step did may hide the effect of a correction."""
    runs = await failed(office(second="keep order day"))
    alone, beside = blame("third", "c0"), blame("second", "c0", category="route")
    assert verdicts(await GradientCheck().check([alone], runs, rng=Random(0))) == {("third", "c0"): "unsupported"}
    found = await GradientCheck().check([alone, beside], runs, rng=Random(0))
    assert verdicts(found) == {("third", "c0"): "unknown"}


def test_the_description_of_a_tool_is_never_checked_by_outputs() -> None:
    surfaces = (Surface(node_id="a", type="tool", part="search"), Surface(node_id="a", type="instruction"))
    snapshot = StructureSnapshot(nodes=(Node(id="a"),), surfaces=surfaces)
    found = [
        is_about_output(SurfaceGradient(surface_id=each, case_id="c", step_id="a", text="t"), snapshot)
        for each in ("a#tool.search", "a#instruction")
    ]
    assert found == [False, True]


class Opaque:
    """An agent whose outputs cannot be substituted."""

    def __init__(self, inner: GraphAgent) -> None:
        self.inner = inner

    def describe(self) -> StructureSnapshot:
        return self.inner.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        assert not context.substitutes
        return await self.inner.run(case, profile, context)


async def test_an_agent_that_cannot_substitute_is_not_checked() -> None:
    runs = await failed(office(second="keep order day"))
    opaque = ReplayContext(
        agent=Opaque(office()),
        evaluator=runs.evaluator,
        eval_set=runs.eval_set,
        evaluation=runs.evaluation,
        profile=runs.profile,
    )
    assert await check(opaque, ("second", "c0")) == GradientsChecked()


class Says:
    """A corrector that always says the same, or fails."""

    def __init__(self, answer: Correction | Exception) -> None:
        self.answer = answer
        self.asked: list[CorrectionRequest] = []

    async def correct(self, request: CorrectionRequest) -> Correction:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_correctors_are_asked_in_turn_until_one_knows() -> None:
    runs = await failed(office(second="keep order day"))
    silent, broken = Says(Correction(kind="unknown")), Says(RuntimeError("no idea"))
    right = Says(Correction(kind="corrected", output="order: A-1000\ncity: Lyon\nday: 2026-03-10"))
    never = Says(AssertionError("must not be asked"))
    found = await GradientCheck(silent, broken, right, never).check([blame("second", "c0")], runs, rng=Random(0))
    assert verdicts(found) == {("second", "c0"): "supported"}
    assert [len(each.asked) for each in (silent, broken, right, never)] == [1, 1, 1, 0]
    assert right.asked[0].gradients[0].text == "keep what is needed"
    found = await GradientCheck(broken).check([blame("second", "c0")], runs, rng=Random(0))
    assert found.checks[0].reason.startswith("RuntimeError: no idea")
    assert found.checks[0].verdict == "unknown"


async def test_of_a_node_that_is_visited_often_only_some_visits_are_corrected_the_blamed_ones_first() -> None:
    visits = MOST_VISITS + 4

    def route(context: NodeContext) -> str | None:
        return "again" if context.visits("draft") < visits else None

    agent = GraphAgent(
        name="loop",
        nodes=(FunctionNode(name="draft", function=lambda text: text, declared={"instruction": "Draft."}),),
        edges=(Choice("draft", route, {"again": "draft"}),),
        max_visits=visits,
        output="draft",
    )
    eval_set = EvalSet(id="train", cases=(EvalCase(id="c0", turns=(Turn(user="A-1", expected="A-2"),)),))
    wrong = Evaluator([FunctionMetric(name="wrong", function=lambda _case, _run: 0.0)])
    evaluation, profile = await wrong.evaluate(agent, eval_set), Profile.baseline(agent.describe())
    runs = ReplayContext(agent=agent, evaluator=wrong, eval_set=eval_set, evaluation=evaluation, profile=profile)
    trace = await wrong.trace_store.get(evaluation.rows[0].trace_digests[0])
    last = trace.steps[-1].id
    corrector = Says(Correction(kind="no_better"))
    gradient = SurfaceGradient(surface_id="draft#instruction", case_id="c0", step_id=last, text="another order")
    await GradientCheck(corrector).check([gradient], runs, rng=Random(0))
    asked = [each.step.id for each in corrector.asked]
    assert asked == [*(step.id for step in trace.steps[: MOST_VISITS - 1]), last]


class CorrectsInAThread:
    def __init__(self, answer: Correction | None) -> None:
        self.answer = answer

    def correct(self, request: CorrectionRequest) -> Correction:
        assert request.step.id == "second"
        return self.answer  # type: ignore[return-value]


async def test_a_corrector_may_be_synchronous_and_a_wrong_return_value_names_its_class() -> None:
    runs = await failed(office(second="keep order day"))
    right = Correction(kind="corrected", output="order: A-1000\ncity: Lyon\nday: 2026-03-10")
    for answer, verdict, reason in (
        (right, "supported", "with corrections the run scores"),
        (None, "unknown", "TypeError: CorrectsInAThread.correct() returned None"),
    ):
        check = GradientCheck(CorrectsInAThread(answer))
        [found] = (await check.check([blame("second", "c0")], runs, rng=Random(0))).checks
        assert found.verdict == verdict
        assert found.reason.startswith(reason)


async def test_a_correction_that_does_harm_or_changes_nothing_does_not_support_blame() -> None:
    runs = await failed(office(second="keep order day"))
    for output in ("nonsense", "order: A-1000\nday: 2026-03-10"):
        found = await GradientCheck(Says(Correction(kind="corrected", output=output))).check(
            [blame("second", "c0")], runs, rng=Random(0)
        )
        assert verdicts(found) == {("second", "c0"): "unsupported"}


async def test_a_spent_budget_ends_a_check() -> None:
    runs = await failed(office(second="keep order day"))
    with pytest.raises(BudgetEndedError):
        await GradientCheck(Says(BudgetEndedError("spent"))).check([blame("second", "c0")], runs, rng=Random(0))


def test_a_check_needs_at_least_one_step() -> None:
    with pytest.raises(SetupError, match="at least one"):
        GradientCheck(most=0)


class KeepEverything:
    """An optimizer that tells clerks to keep everything."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        self.asked.append(request.surface.id)
        value = f"answer {ALL}" if request.surface.node_id == "last" else f"please {ALL}"
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value=value, reason="keep all"))


def engine(
    accused: Iterable[str], optimizer: KeepEverything, *, check: GradientCheck | Literal["auto"] | None = "auto"
) -> Engine:
    rounds = BackpropRounds(Accuser(*accused), None, optimizer, check=check)
    return Engine(office(second="keep order day"), evaluator(), search=rounds)


def request() -> RunRequest:
    train, validation = cases(12), cases(3, start=12)
    return RunRequest(
        train=train, validation=validation, stop=TargetScore(1.0), final_test=None, max_rounds=1, run_id="r"
    )


@pytest.mark.slow
async def test_innocent_surfaces_do_not_change_once_blame_is_checked() -> None:
    unchecked, checked = KeepEverything(), KeepEverything()
    accused = ("first", "second", "third", "last")
    await engine(accused, unchecked, check=None).run(request())
    result = await engine(accused, checked).run(request())
    assert len(set(unchecked.asked)) == 4
    assert checked.asked == ["second#instruction"]
    assert (result.accepted_score, [each.surface_id for each in result.changes]) == (1.0, ["second#instruction"])
    [first, *_] = get_passes(result.rounds[0])
    assert {(each.surface_id, each.verdict) for each in first.checks} == {
        (f"{name}#instruction", "supported" if name == "second" else "unsupported") for name in accused
    }
    assert first.replays == 3
    assert {each.surface_id for each in first.below_support} == {
        "first#instruction",
        "third#instruction",
        "last#instruction",
    }
    assert result.measured.case_runs <= 12 + 3 + 12 + 3  # replays are not among them


class Counted(GradientCheck):
    """A check that counts its calls."""

    made = 0

    async def check(
        self, gradients: Iterable[SurfaceGradient], runs: ReplayContext, *, rng: Random
    ) -> GradientsChecked:
        self.made += 1
        return await super().check(gradients, runs, rng=rng)


@pytest.mark.slow
async def test_a_resumed_run_does_not_check_again() -> None:
    journal, accused = MemoryJournal(), ("second", "third")
    whole = await engine(accused, KeepEverything()).run(request(), journal=journal)
    events = list(journal.events)
    at = [event.type for event in events].index("gradient_check")
    for kept, made in ((at, 1), (at + 1, 0), (at + 2, 0)):
        cut, check = MemoryJournal(), Counted()
        for event in events[:kept]:
            await cut.append(event)
        result = await engine(accused, KeepEverything(), check=check).run(request(), journal=cut)
        assert check.made == made
        assert _plain(result) == _plain(whole)
        assert [event.type for event in cut.events] == [event.type for event in events]


def _plain(result: RunResult) -> object:
    return drop_measured(orjson.loads(result.to_json()))


def test_only_the_blame_of_models_is_checked_by_default() -> None:
    assert BackpropRounds().check is None
    assert BackpropRounds(Accuser("first")).check is not None
    assert BackpropRounds(Accuser("first"), check=None).check is None
    assert BackpropRounds(Accuser("first")).outline().max_checked == 12
