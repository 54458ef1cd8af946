from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from promptiter.errors import BudgetEndedError, SetupError
from promptiter.tasks.refine.best import read_manifest
from promptiter.tasks.refine.budget import BudgetFloors, IterationBudget
from promptiter.tasks.refine.gradient import FILE_NAME as GRADIENT
from promptiter.tasks.refine.gradient import RefinementGradient
from promptiter.tasks.refine.loop import (
    Clock,
    FinishedIteration,
    IterationFailedError,
    IterationRequest,
    RefinementOptions,
    refine,
)
from promptiter.tasks.refine.records import Defect, MetricValue, ModelPair, RunRecord
from promptiter.tasks.refine.seeds import Seed, open_run_folder
from promptiter.tasks.refine.sessions import RefinementSession
from promptiter.tasks.refine.tiers import TierPlan, parse_pair
from tests.tasks.refine.foreign_runs import RUN_ID, write_completion, write_run


@dataclass
class FakeClock:
    """Time passes only if an iteration takes some."""

    seconds: float = 0.0

    def build(self) -> Clock:
        started = datetime(2026, 4, 19, 18, 24, 38, tzinfo=UTC)
        return Clock(now=lambda: started + timedelta(seconds=self.seconds), seconds=lambda: self.seconds)


@dataclass(frozen=True)
class Scripted:
    """What one iteration does: its loss (1 minus its only metric), or what it raises."""

    loss: float = 0.5
    text: str | None = "better"
    took_s: float = 1.0
    raises: BaseException | None = None
    threshold: float = 1.0
    defects: tuple[Defect, ...] = ()
    status: str = "completed"
    run_id: str | None = None
    is_measured: bool = True
    problem: str = ""


@dataclass
class ScriptedRunner:
    """Answers one iteration after the other. Fails on one that is not expected."""

    steps: Sequence[Scripted]
    clock: FakeClock = field(default_factory=FakeClock)
    requests: list[IterationRequest] = field(default_factory=list)

    async def run(self, request: IterationRequest) -> FinishedIteration:
        assert len(self.requests) < len(self.steps), "an iteration that was not expected"
        step = self.steps[len(self.requests)]
        self.requests.append(request)
        self.clock.seconds += step.took_s
        if step.raises is not None:
            raise step.raises
        if step.text is not None:
            (request.folders.output / "report.md").write_text(step.text)
        record = RunRecord(
            run_id=step.run_id or request.run_id,
            task=request.task,
            status=step.status,
            metrics=(MetricValue(name="quality", value=1 - step.loss, threshold=step.threshold),) * step.is_measured,
            defects=step.defects,
        )
        return FinishedIteration(record=record, run_dir=request.folders.run_dir, problem=step.problem)

    async def measure(self, record: RunRecord, deliverable: Path) -> RunRecord:
        raise AssertionError(f"{record.run_id} in {deliverable} is measured already")


@pytest.fixture
def seed(tmp_path: Path) -> Seed:
    """A run with a loss of 0.55: half of its only metric is missing, and one defect is open."""
    run_dir = tmp_path / "seed"
    write_run(run_dir, evaluation={"per_metric": {"quality": 0.5}, "thresholds": {"quality": 1.0}})
    return open_run_folder(run_dir)


async def run_steps(
    seed: Seed, *steps: Scripted, iterations: int = 3, options: RefinementOptions | None = None
) -> tuple[RefinementSession, ScriptedRunner]:
    runner = ScriptedRunner(steps)
    options = replace(options or RefinementOptions(), iterations=iterations)
    session = await refine(seed, runner, options, clock=runner.clock.build())
    assert seed.sessions.read_all()[-1] == session
    assert session.completed_at is not None
    return session, runner


def best_text(seed: Seed) -> str | None:
    file = seed.home / "BEST" / "report.md"
    return file.read_text() if file.exists() else None


async def test_the_best_iteration_becomes_best(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.4, "one"), Scripted(0.2, "two"), Scripted(0.3, "three"))
    assert (session.stop_reason, session.best_iter, session.best_loss) == ("max_iterations", 2, 0.2)
    assert [each.loss for each in session.iterations] == [0.4, 0.2, 0.3]
    assert best_text(seed) == "two"
    found = read_manifest(seed.home)
    assert found is not None
    assert (found.best_loss, found.seed_loss, found.session_id) == (0.2, 0.55, session.session_id)
    assert found.best_run_id == session.iterations[1].run_id
    assert found.delta == pytest.approx(-0.35)
    assert (seed.home / found.run_dir / "FINAL" / "report.md").read_text() == "two"


async def test_each_iteration_starts_from_the_one_before(seed: Seed) -> None:
    session, runner = await run_steps(seed, Scripted(0.4, "one"), Scripted(0.45, "two"), iterations=2)
    first, second = runner.requests
    assert (first.parent_run_id, second.parent_run_id) == (RUN_ID, session.iterations[0].run_id)
    assert (first.folders.input / "report.md").read_text() == "draft"
    assert (second.folders.input / "report.md").read_text() == "one"
    assert first.task == second.task == "Write the report."
    assert second.gradient.run_id == session.iterations[0].run_id
    stored = RefinementGradient.model_validate_json((first.folders.root / GRADIENT).read_bytes())
    assert stored == first.gradient
    assert [each.description for each in stored.defects] == ["no sources"]
    assert first.folders.root.relative_to(seed.home).as_posix() == f"refinements_work/{session.session_id}/iter_1"


async def test_the_budget_is_half_of_what_the_seed_used(seed: Seed) -> None:
    _, runner = await run_steps(seed, Scripted(), Scripted(0.2), iterations=2)
    assert {request.budget for request in runner.requests} == {
        IterationBudget(
            max_loops=3,
            max_total_workers=4,
            max_tool_calls=17,
            max_total_tokens=91_000,
            max_wall_time_s=205,
            max_depth=3,
        )
    }


async def test_a_loss_that_rises_twice_in_a_row_is_a_regression(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.6), Scripted(0.7), iterations=10)
    assert (session.stop_reason, session.best_iter) == ("regression", 0)
    assert best_text(seed) is None


async def test_a_rise_and_a_fall_is_no_regression(seed: Seed) -> None:
    session, _ = await run_steps(
        seed, Scripted(0.6), Scripted(0.58), Scripted(0.62), Scripted(0.5), Scripted(0.6), Scripted(0.7), iterations=9
    )
    assert (session.stop_reason, session.best_iter, len(session.iterations)) == ("regression", 4, 6)


async def test_a_change_below_a_hundredth_is_a_plateau(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.4), Scripted(0.391), iterations=10)
    assert (session.stop_reason, session.best_iter) == ("plateau", 2)


async def test_a_change_of_a_hundredth_is_none(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.4), Scripted(0.38), Scripted(0.2), iterations=3)
    assert session.stop_reason == "max_iterations"


async def test_an_iteration_like_the_seed_is_no_plateau(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.55), Scripted(0.3), iterations=2)
    assert (session.stop_reason, session.best_iter) == ("max_iterations", 2)


async def test_twice_the_time_of_the_seed_is_enough(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.4, took_s=500), Scripted(0.2, took_s=323), iterations=10)
    assert (session.stop_reason, session.best_iter) == ("wall_time_exhausted", 2)
    session, _ = await run_steps(seed, Scripted(0.4, took_s=500), Scripted(0.2, took_s=322.9), iterations=2)
    assert session.stop_reason == "max_iterations"


async def test_a_quick_seed_may_leave_time_for_an_iteration(seed: Seed) -> None:
    quick = replace(seed, record=replace(seed.record, use=replace(seed.record.use, wall_time_s=1.5)))
    session, _ = await run_steps(quick, Scripted(0.4, took_s=2.9), Scripted(0.2, took_s=0.1), iterations=5)
    assert (session.stop_reason, len(session.iterations)) == ("wall_time_exhausted", 2)
    options = RefinementOptions(least_wall_time_s=60)
    steps = Scripted(0.4, took_s=59), Scripted(0.2, took_s=1)
    session, _ = await run_steps(quick, *steps, iterations=5, options=options)
    assert (session.stop_reason, len(session.iterations)) == ("wall_time_exhausted", 2)


async def test_a_run_with_an_id_of_its_own_may_deliver_where_it_was_told_to(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.4, run_id="own"), iterations=1)
    assert (session.best_iter, session.iterations[0].run_id) == (1, "own")
    assert best_text(seed) == "better"


async def test_an_empty_gradient_ends_the_session_before_anything_runs(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "seed")
    (run_dir / "iterations" / "1" / "critique.json").unlink()
    session, runner = await run_steps(open_run_folder(run_dir))
    assert (session.stop_reason, session.best_iter, session.iterations) == ("empty_gradient", 0, ())
    assert runner.requests == []
    assert not (run_dir / "refinements_work").exists()


async def test_an_iteration_without_anything_to_refine_ends_the_session(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.2, threshold=0.8))
    assert (session.stop_reason, session.best_iter) == ("empty_gradient_midloop", 1)


async def test_an_iteration_that_delivers_nothing_ends_the_session(seed: Seed) -> None:
    session, _ = await run_steps(seed, Scripted(0.35), Scripted(text=None, status="budget_ended"), iterations=5)
    assert (session.stop_reason, session.best_iter) == ("no_prior_deliverable", 1)
    assert [(each.loss, each.status) for each in session.iterations] == [(0.35, "completed"), (1.0, "budget_ended")]
    assert best_text(seed) == "better"


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ValueError("broken"), "error:ValueError"),
        (BudgetEndedError("no money"), "error:BudgetEndedError"),
        (IterationFailedError("CommandError", "exit code 3"), "error:CommandError"),
    ],
)
async def test_an_iteration_that_fails_ends_the_session(seed: Seed, raised: Exception, reason: str) -> None:
    session, _ = await run_steps(seed, Scripted(0.3), Scripted(raises=raised))
    assert (session.stop_reason, session.best_iter, len(session.iterations)) == (reason, 1, 1)
    assert str(raised) in (session.error or "")
    assert best_text(seed) == "better"


@pytest.mark.parametrize("interruption", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_an_interrupted_session_is_stored(seed: Seed, interruption: BaseException) -> None:
    runner = ScriptedRunner([Scripted(0.3), Scripted(raises=interruption)])
    with pytest.raises(type(interruption)):
        await refine(seed, runner, clock=runner.clock.build())
    [session] = seed.sessions.read_all()
    assert (session.stop_reason, session.best_iter) == (f"error:{type(interruption).__name__}", 1)


async def test_a_session_that_is_killed_has_a_file_without_a_stop_reason(seed: Seed) -> None:
    seen: list[RefinementSession] = []

    class Watching(ScriptedRunner):
        async def run(self, request: IterationRequest) -> FinishedIteration:
            seen.extend(seed.sessions.read_all())
            return await super().run(request)

    runner = Watching([Scripted(0.3), Scripted(0.2)])
    await refine(seed, runner, RefinementOptions(iterations=2), clock=runner.clock.build())
    assert [(each.stop_reason, len(each.iterations), each.best_iter) for each in seen] == [(None, 0, 0), (None, 1, 1)]


async def test_a_later_session_replaces_best_only_with_a_better_one(seed: Seed) -> None:
    await run_steps(seed, Scripted(0.3, "first session"), iterations=1)
    worse, _ = await run_steps(seed, Scripted(0.4, "second session"), iterations=1)
    assert (worse.best_iter, worse.promoted, best_text(seed)) == (1, False, "first session")
    better, _ = await run_steps(seed, Scripted(0.29, "third session"), iterations=1)
    assert (better.promoted, best_text(seed)) == (True, "third session")
    assert len(seed.sessions.read_all()) == 3


@pytest.mark.parametrize(("wanted", "run"), [(0, 1), (-3, 1), (25, 10)])
async def test_iterations_are_clamped(seed: Seed, wanted: int, run: int) -> None:
    steps = [Scripted(0.5 - 0.03 * at) for at in range(run)]
    session, _ = await run_steps(seed, *steps, iterations=wanted)
    assert (session.stop_reason, len(session.iterations)) == ("max_iterations", run)


async def test_tiers_choose_the_models(seed: Seed) -> None:
    seed = replace(seed, record=replace(seed.record, models=ModelPair(manager="seed-m", worker="seed-w")))
    tiers = TierPlan(low=parse_pair("small:"), high=parse_pair("large:large-w"))
    options = RefinementOptions(tiers=tiers, models=ModelPair(manager="ignored"))
    session, runner = await run_steps(seed, Scripted(0.4), Scripted(0.3), Scripted(0.2), options=options)
    assert [(each.tier, each.model_manager, each.model_worker) for each in session.iterations] == [
        ("low", "small", "seed-w"),
        ("mid", "seed-m", "seed-w"),
        ("high", "large", "large-w"),
    ]
    assert session.tier_plan_used
    assert [request.models.manager for request in runner.requests] == ["small", "seed-m", "large"]


async def test_without_tiers_all_iterations_have_the_same_models(seed: Seed) -> None:
    options = RefinementOptions(models=ModelPair(worker="w"))
    session, _ = await run_steps(seed, Scripted(0.4), Scripted(0.3), iterations=2, options=options)
    assert {(each.tier, each.model_manager, each.model_worker) for each in session.iterations} == {(None, None, "w")}
    assert session.tier_plan_used is False


async def test_another_folder_for_the_work_is_used(seed: Seed, tmp_path: Path) -> None:
    options = RefinementOptions(work=tmp_path / "elsewhere", floors=BudgetFloors(tokens=10**6))
    session, runner = await run_steps(seed, Scripted(0.4), iterations=1, options=options)
    assert not (seed.home / "refinements_work").exists()
    assert runner.requests[0].folders.root == tmp_path / "elsewhere" / session.session_id / "iter_1"
    assert runner.requests[0].budget.max_total_tokens == 10**6
    assert (seed.home / "FINAL" / "report.md").read_text() == "draft"


async def test_the_input_of_an_iteration_is_a_copy(seed: Seed) -> None:
    class Vandal(ScriptedRunner):
        async def run(self, request: IterationRequest) -> FinishedIteration:
            (request.folders.input / "report.md").write_text("vandalized")
            return await super().run(request)

    runner = Vandal([Scripted(0.4, "one"), Scripted(0.3, "two")])
    await refine(seed, runner, RefinementOptions(iterations=2), clock=runner.clock.build())
    assert (seed.deliverable / "report.md").read_text() == "draft"
    assert (runner.requests[0].folders.run_dir / "FINAL" / "report.md").read_text() == "one"


async def test_a_seed_without_a_deliverable_is_a_setup_error(tmp_path: Path) -> None:
    write_completion(tmp_path / "seed")
    with pytest.raises(SetupError, match="has no deliverable"):
        open_run_folder(tmp_path / "seed")


async def test_a_metric_that_an_iteration_leaves_out_counts_as_0(seed: Seed) -> None:
    session, runner = await run_steps(seed, Scripted(is_measured=False), Scripted(0.3), iterations=2)
    assert [entry.loss for entry in session.iterations] == [1.0, 0.3]
    assert [gap.gap for gap in runner.requests[1].gradient.metric_gaps] == [1.0]


async def test_a_best_that_cannot_be_written_is_not_an_improvement(seed: Seed) -> None:
    (seed.home / ".BEST.lock").mkdir()
    session, _ = await run_steps(seed, Scripted(0.3))
    assert (session.stop_reason, session.best_iter) == ("error:IsADirectoryError", 0)
    assert "BEST' cannot be replaced: " in (session.error or "")


async def test_what_an_iteration_could_not_do_is_reported(seed: Seed) -> None:
    messages: list[str] = []
    runner = ScriptedRunner([Scripted(text=None, problem="its budget ended")])
    session = await refine(seed, runner, clock=runner.clock.build(), notify=messages.append)
    assert session.iterations[0].problem == "its budget ended"
    assert "iteration 1: its budget ended" in messages
