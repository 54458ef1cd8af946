from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.backprop.record import NO_TRACE, get_passes
from promptiter.engine.engine import Engine
from promptiter.engine.review import Review, ReviewRequest
from promptiter.engine.run import RunFailedError
from promptiter.errors import StageError
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.gateway import Gateway
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import TargetScore
from promptiter.profile import Profile
from promptiter.runlog.journal import MemoryJournal
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import (
    AggregateRequest,
    AggregateResult,
    AttributeRequest,
    BackwardRequest,
    BackwardResult,
    SurfaceGradient,
)
from promptiter.stages.optimizer import OptimizeRequest
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import Watcher
from tests.worlds.desk_stages import Blames, BlamesTheEarliest, Merges, Writes, engine


async def test_all_blamed_surfaces_change_together_and_no_other_does() -> None:
    optimizer = Writes()
    result = await engine(optimizer=optimizer).run(desk.request(stop=TargetScore(1.0)))
    [only] = result.rounds
    assert sorted(patch.surface_id for patch in only.patches) == ["draft#instruction", "polish#instruction"]
    assert {change.surface_id for change in result.changes} == only.patches.surface_ids
    assert (result.baseline_score, result.accepted_score, result.stop_reason) == (0.0, 1.0, "target_score")
    assert len(optimizer.requests) == 2


@pytest.mark.slow
async def test_a_fault_behind_another_is_found_in_the_same_round() -> None:
    optimizer = Writes()
    result = await engine(BlamesTheEarliest(), optimizer).run(desk.request(stop=TargetScore(1.0)))
    [only] = result.rounds
    assert [[patch.surface_id for patch in each.patches] for each in get_passes(only)] == [
        ["draft#instruction"],
        ["polish#instruction"],
    ]
    assert [each.mean_score for each in only.all_evaluations if each.phase == "rerun"] == [0.5, 1.0]
    assert result.accepted_score == 1.0
    assert len(optimizer.requests) == 2


async def test_a_surface_that_is_not_a_target_never_changes() -> None:
    result = await engine().run(desk.request(targets=["polish#instruction"], max_rounds=1))
    assert [change.surface_id for change in result.changes] == ["polish#instruction"]


async def test_after_a_rejection_nothing_known_is_paid_again_and_the_optimizer_sees_the_reason() -> None:
    def write(request: OptimizeRequest) -> str | None:
        number = len(request.rejected) + 1
        if "Attempt" in str(request.surface.value):
            return None
        return f"Attempt {number}." if number < 3 else f"{request.surface.value} Be careful."

    backwarder, optimizer, watcher = Blames(), Writes(write), Watcher()
    result = await engine(backwarder, optimizer).run(desk.request(stop=TargetScore(1.0)), observers=[watcher])
    assert [each.decision.accepted for each in result.rounds if each.decision] == [False, False, True]
    trained = [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "train"]
    assert len(trained) == 1
    assert len(result.rounds) == 3
    assert [each.train is not None for each in result.rounds] == [True, False, False]
    last = [request for request in optimizer.requests if request.surface.id == "draft#instruction"][-1]
    assert [rejection.value for rejection in last.rejected] == ["Attempt 1.", "Attempt 2."]
    assert "did no better" in last.rejected[0].reason


async def test_the_optimizer_learns_nothing_of_validation_but_the_rejection() -> None:
    optimizer = Writes(lambda request: f"{request.surface.value} Be careful {len(request.rejected)}.")
    asked = desk.request(acceptance=MinGain(1.0), targets=("draft#instruction",), max_rounds=2)
    journal = MemoryJournal()
    result = await engine(optimizer=optimizer).run(asked, journal=journal)
    first = result.rounds[0].decision
    assert first is not None
    assert "+0.500" in first.reason, "the record has the figures"
    [rejection] = optimizer.requests[-1].rejected
    failing = "train-0, train-1, train-2"
    assert rejection.reason == f"not accepted on validation; train cases that still fail with it: {failing}"
    assert "validation_read" not in {event.type for event in journal.events}


async def test_a_candidate_that_does_not_help_its_own_cases_is_not_validated() -> None:
    watcher = Watcher()
    result = await engine(optimizer=Writes(lambda _: "Something else.")).run(
        desk.request(max_rounds=1), observers=[watcher]
    )
    assert not [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "validation"]
    decision = result.rounds[0].decision
    assert decision is not None
    assert decision.reason == "the 3 failed train cases that were run again did no better"
    assert result.rounds[0].validation is None


async def test_a_patch_that_lint_refuses_is_written_again_with_the_reason() -> None:
    def write(request: OptimizeRequest) -> str:
        return f"{request.surface.value} Be careful." if request.rejected else str(request.surface.value)

    optimizer = Writes(write)
    result = await engine(optimizer=optimizer).run(desk.request(stop=TargetScore(1.0)))
    assert result.verdict == "improved_on_validation"
    refused = get_passes(result.rounds[0])[0].refused
    assert {rejection.surface_id for rejection in refused} == {"draft#instruction", "polish#instruction"}
    assert len(optimizer.requests) == 4


async def test_an_optimizer_with_nothing_left_ends_the_search() -> None:
    result = await engine(optimizer=Writes(lambda _: None)).run(desk.request())
    assert (result.stop_reason, result.verdict) == ("exhausted", "no_evidence")
    assert result.rounds[0].skipped == "draft#instruction: nothing left; polish#instruction: nothing left"
    assert result.conclusion is not None
    assert result.conclusion.reasons[0] == f"no candidate was tried: {result.rounds[0].skipped}"


async def test_a_veto_reaches_the_optimizer_and_an_edited_patch_is_tried() -> None:
    class Person:
        def __init__(self) -> None:
            self.seen: list[str] = []

        async def review(self, request: ReviewRequest) -> Review:
            self.seen.append(request.surface.id)
            if request.surface.id == "draft#instruction" and len(self.seen) < 3:
                return Review(action="veto", reason="too vague")
            refused = [bool(request.find_problem(each)) for each in ("", request.surface.value, "Reviewed: careful.")]
            assert refused == [True, True, False]
            return Review(action="edit", value="Reviewed: careful.", reason="shorter")

    optimizer = Writes(lambda request: f"{request.surface.value} Be careful ({len(request.rejected)}).")
    result = await engine(optimizer=optimizer).run(desk.request(max_rounds=2), reviewer=Person())
    vetoed = get_passes(result.rounds[0])[0].refused
    assert [rejection.reason for rejection in vetoed] == ["vetoed in review: too vague"]
    heard = [request.rejected for request in optimizer.requests if request.surface.id == "draft#instruction"]
    assert "vetoed in review: too vague" in [rejection.reason for rejection in heard[-1]]
    assert {change.after for change in result.changes} == {"Reviewed: careful."}


async def test_a_stage_that_fails_on_everything_fails_the_run() -> None:
    class Broken(Blames):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            raise ValueError(f"cannot read {request.step.id}")

    with pytest.raises(RunFailedError) as caught:
        await engine(Broken()).run(desk.request())
    assert isinstance(caught.value.__cause__, StageError)
    assert "cannot read polish" in str(caught.value)


async def test_a_stage_that_fails_on_some_cases_skips_those() -> None:
    class Shaky(Blames):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            if request.case_id == "train-1":
                raise ValueError("no idea")
            return await super().backward(request)

    result = await engine(Shaky()).run(desk.request(stop=TargetScore(1.0)))
    assert result.verdict == "improved_on_validation"
    errors = [step.error for blame in get_passes(result.rounds[0])[0].blames for step in blame.results if step.error]
    assert errors == ["ValueError: no idea"]


async def test_an_attributor_may_be_given_instead_of_a_backwarder() -> None:
    class Points:
        async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
            step = request.trace.steps[0]
            gradient = SurfaceGradient(
                surface_id="draft#instruction", case_id=request.case_loss.case_id, step_id=step.id, text="care"
            )
            return [BackwardResult(step_id=step.id, gradients=(gradient,))]

    built = Engine(desk.agent(), desk.evaluator(), Points(), Merges(), Writes())
    result = await built.run(desk.request(max_rounds=1))
    assert [change.surface_id for change in result.changes] == ["draft#instruction"]


async def test_a_surface_with_little_support_is_not_patched() -> None:
    class Uneven(Blames):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            result = await super().backward(request)
            if request.step.node_id == "polish" and not request.case_id.endswith("-0"):
                return BackwardResult(step_id=result.step_id, packets=result.packets)
            return result

    search = BackpropRounds(Uneven(), Merges(), Writes(), min_support=0.5, passes=1)
    result = await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(max_rounds=1))
    first = get_passes(result.rounds[0])[0]
    assert [signal.surface_id for signal in first.signals] == ["draft#instruction"]
    assert [signal.surface_id for signal in first.below_support] == ["polish#instruction"]


async def test_the_surface_of_highest_priority_is_patched_and_re_run_first() -> None:
    """Both are read by all cases, so they cost the same: three bad cases are more than one very bad one."""

    class Uneven(Merges):
        async def aggregate(self, request: AggregateRequest) -> AggregateResult:
            merged = await super().aggregate(request)
            if request.surface.id == "polish#instruction":
                return replace(merged, severity="P0", support=1.0, case_ids=("train-2",))
            return merged

    optimizer = Writes()
    search = BackpropRounds(Blames(), Uneven(), optimizer, most_rerun=1)
    result = await Engine(desk.agent(), desk.evaluator(), search=search).run(desk.request(max_rounds=1))
    [only] = result.rounds
    names = ["draft#instruction", "polish#instruction"]
    assert [signal.surface_id for signal in get_passes(only)[0].signals] == names
    assert sorted(request.surface.id for request in optimizer.requests) == names
    rerun = next(each for each in only.all_evaluations if each.phase == "rerun")
    assert [row.case_id for row in rerun.rows] == ["train-0"]


@pytest.mark.slow
async def test_a_resumed_run_asks_no_stage_again() -> None:
    whole, trace_store = MemoryJournal(), FileTraceStore()
    expected = await engine(BlamesTheEarliest(), trace_store=trace_store).run(
        desk.request(stop=TargetScore(1.0)), journal=whole
    )
    events = list(whole.events)
    assert len(events) >= 39
    for count in range(1, len(events) - 1, 3):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        backwarder, optimizer = BlamesTheEarliest(), Writes()
        going_on = engine(backwarder, optimizer, trace_store=trace_store)
        result = await going_on.run(desk.request(stop=TargetScore(1.0)), journal=journal)
        assert result == expected
        written = sum(event.type == "patches" for event in events[:count])
        assert len(optimizer.requests) <= 2 - written
        if any(event.type == "backward" and event.phase == "rerun" for event in events[:count]):
            assert not backwarder.asked


async def test_after_a_round_of_vetoes_the_search_continues_and_the_optimizer_sees_the_reasons() -> None:
    class Strict:
        async def review(self, request: ReviewRequest) -> Review:
            wanted = len(str(request.patch.value)) > 40
            return Review() if wanted else Review(action="veto", reason="say more")

    optimizer = Writes(
        lambda request: f"{request.surface.value} Be careful." + " Very much so, indeed." * len(request.rejected)
    )
    result = await engine(optimizer=optimizer).run(desk.request(stop=TargetScore(1.0)), reviewer=Strict())
    assert result.accepted_score == 1.0
    first = result.rounds[0].decision
    assert first is not None
    assert first.reason.startswith("every patch was refused: draft#instruction: vetoed in review: say more")


async def test_the_search_ends_when_the_optimizer_only_repeats_itself() -> None:
    optimizer = Writes(lambda _: "Draft something else altogether.")
    result = await engine(optimizer=optimizer).run(desk.request(max_rounds=6, targets=("draft#instruction",)))
    reasons = [each.decision.reason for each in result.rounds if each.decision is not None]
    assert len(reasons) == 2
    assert reasons[1].count("this value was rejected before") == 1
    assert f"({reasons[0]}; train cases that still fail with it: train-0, train-1, train-2)" in reasons[1]


async def test_the_good_half_of_a_rejected_pair_may_be_tried_again() -> None:
    def write(request: OptimizeRequest) -> str | None:
        if request.surface.id == "polish#instruction":
            return "Polish: careful."
        return None if request.rejected else "Draft something that ruins it all."

    class Ruined(Blames):
        """What `draft` says now makes every case worse, and hides what `polish` gained."""

    def ruin(request: object) -> None:
        if "ruins" in str(getattr(request, "messages", "")):
            raise RuntimeError("ruined")

    gateway = Gateway(models={"scripted": desk.model(ruin)})
    built = Engine(desk.agent(), desk.evaluator(gateway), Ruined(), Merges(), Writes(write))
    result = await built.run(desk.request(max_rounds=2))
    assert [each.decision.accepted for each in result.rounds if each.decision] == [False, True]
    assert [change.surface_id for change in result.changes] == ["polish#instruction"]


async def test_gradients_on_unread_surfaces_unknown_steps_and_other_cases_are_dropped() -> None:
    class Invents:
        async def attribute(self, request: AttributeRequest) -> list[BackwardResult]:
            step, case = request.trace.steps[-1].id, request.case_loss.case_id
            made = [
                ("draft#instruction", step, case),
                ("unknown#instruction", step, case),
                ("polish#instruction", "no-step", case),
                ("polish#instruction", step, "no-case"),
                ("polish#instruction", step, case),
                ("polish#instruction", step, ""),
            ]
            gradients = [
                SurfaceGradient(surface_id=surface, case_id=of, step_id=at, text="care") for surface, at, of in made
            ]
            return [BackwardResult(step_id=step, gradients=tuple(gradients))]

    built = Engine(desk.agent(), desk.evaluator(), Invents(), Merges(), Writes())
    result = await built.run(desk.request(max_rounds=1))
    for blame in get_passes(result.rounds[0])[0].blames:
        assert [(each.surface_id, each.case_id) for each in blame.gradients] == [
            ("polish#instruction", blame.case_id)
        ] * 2
        assert blame.dropped == 4


async def test_a_stage_that_worked_once_may_fail_later_without_losing_results() -> None:
    class Tires(BlamesTheEarliest):
        async def backward(self, request: BackwardRequest) -> BackwardResult:
            if len(self.asked) >= 6:
                raise ValueError("tired")
            return await super().backward(request)

    result = await engine(Tires()).run(desk.request(max_rounds=1))
    assert [change.surface_id for change in result.changes] == ["draft#instruction"]
    assert "tired" in result.measured.problems[0]


async def test_what_still_fails_with_every_target_patched_is_blamed_again() -> None:
    backwarder = Blames()
    await engine(backwarder).run(desk.request(targets=["polish#instruction"], max_rounds=1))
    assert len(backwarder.asked) == 6


async def test_a_case_that_passes_over_its_repeats_has_no_loss() -> None:
    repeats = iter(range(1000))

    def sometimes(_case: object, run: object) -> float:
        return 1.0 if next(repeats) % 2 else 0.8

    metric = FunctionMetric(name="sometimes", function=sometimes, threshold=0.85)
    evaluator = Evaluator(
        [metric],
        gateway=Gateway(models={"scripted": desk.model()}),
        options=EvaluationOptions(repeats=2, concurrency=1),
    )
    result = await Engine(desk.agent(), evaluator, Blames(), Merges(), Writes()).run(desk.request(max_rounds=1))
    assert not any(each.losses for each in get_passes(result.rounds[0]))


class Untraced:
    """An agent that returns answers only."""

    def __init__(self, output: str) -> None:
        self.output = output

    def describe(self) -> StructureSnapshot:
        return desk.agent().describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        return AgentRun(output=self.output)


@pytest.mark.parametrize(
    ("output", "reason"),
    [("no", f"no candidate was tried: {NO_TRACE}"), ("careful careful", "there was nothing to try")],
)
async def test_an_agent_that_records_no_trace_is_the_reason_that_nothing_was_tried(output: str, reason: str) -> None:
    result = await Engine(Untraced(output), desk.evaluator()).run(desk.request())
    assert result.conclusion is not None
    assert (result.verdict, result.conclusion.reasons[0]) == ("no_evidence", reason)
