"""The refinement loop: run the task again with what was wrong, until the loss stops falling. The best one is kept.

    gradient  = extract_gradient(prior)             # no model is called
    iteration = await runner.run(request)           # half the seed's budget, prior deliverable as input
    loss      = compute_loss(iteration)

The seed is iteration 0. Whatever happens, the session file says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from promptiter.errors import PromptiterError
from promptiter.llm.redaction import process_redactor
from promptiter.tasks.refine.best import BEST, BestManifest, write_best
from promptiter.tasks.refine.budget import BudgetFloors, IterationBudget, halve_budget
from promptiter.tasks.refine.deliverables import IterationFolders, find_deliverable, list_files
from promptiter.tasks.refine.gradient import RefinementGradient, extract_gradient
from promptiter.tasks.refine.loss import LossWeights, compute_loss
from promptiter.tasks.refine.prefix import describe_gradient
from promptiter.tasks.refine.records import ModelPair, RunRecord
from promptiter.tasks.refine.seeds import WORK, Seed
from promptiter.tasks.refine.sessions import IterationEntry, RefinementSession
from promptiter.tasks.refine.tiers import DEFAULT_ITERATIONS, TierPlan, clamp_iterations, find_tier
from traces import digest

logger = logging.getLogger(__name__)

PLATEAU = 0.01
"""A change of the loss between two iterations that is smaller than this ends the session."""
WALL_TIME_SHARE = 2.0
"""A session ends once its iterations took this much of the time of the seed."""
MOST_RISES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRequest:
    """What one iteration is asked to do. `files` are those of the prior deliverable, which is in `folders.input`."""

    number: int
    of: int
    run_id: str
    parent_run_id: str
    task: str
    gradient: RefinementGradient
    files: tuple[str, ...]
    folders: IterationFolders
    budget: IterationBudget
    models: ModelPair


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedIteration:
    """The record of an iteration's run, and its folder. `problem` says why it could not do all it should."""

    record: RunRecord
    run_dir: Path
    problem: str = ""


class IterationRunner(Protocol):
    """Runs iterations, one after the other. Called by the loop; whatever it raises ends the session."""

    async def run(self, request: IterationRequest) -> FinishedIteration:
        """Run the task again. The deliverable is in FINAL/ of the run's folder, or in `folders.output`."""

    async def measure(self, record: RunRecord, deliverable: Path) -> RunRecord:
        """The record of a seed that has not been measured, with what iterations are measured by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The time of day, and seconds that only pass."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    seconds: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True, kw_only=True)
class RefinementOptions:
    """How a seed is refined. Models are those of the `tiers`; without any, the `models`, or else those of the seed."""

    iterations: int = DEFAULT_ITERATIONS
    models: ModelPair = field(default_factory=ModelPair)
    tiers: TierPlan = field(default_factory=TierPlan)
    weights: LossWeights = field(default_factory=LossWeights)
    floors: BudgetFloors = field(default_factory=BudgetFloors)
    least_wall_time_s: float = 0.0
    """What the iterations may take in any case, for seeds that took next to no time."""
    work: Path | None = None
    """Where the folders of iterations are created; by default below the seed."""


def new_run_id(session_id: str, number: int, now: datetime) -> str:
    """The id of an iteration's run: its start, and a hash."""
    return f"{now.strftime('%Y-%m-%dT%H-%M-%S')}_{digest([session_id, number])[:8]}"


async def refine(
    seed: Seed,
    runner: IterationRunner,
    options: RefinementOptions | None = None,
    *,
    clock: Clock | None = None,
    make_run_id: Callable[[str, int, datetime], str] = new_run_id,
    notify: Callable[[str], None] = lambda _: None,
    on_begin: Callable[[str], None] = lambda _: None,
) -> RefinementSession:
    """Refine a seed. The session is returned, and stored, also if an iteration fails; `on_begin` gets its id."""
    loop = _Loop(
        seed=seed,
        runner=runner,
        options=options or RefinementOptions(),
        clock=clock or Clock(),
        make_run_id=make_run_id,
        notify=notify,
    )
    loop.begin()
    on_begin(loop.session.session_id)
    try:
        await loop.run()
    except (asyncio.CancelledError, KeyboardInterrupt) as error:
        loop.fail(error)
        raise
    except Exception as error:
        loop.fail(error)
        if not isinstance(error, (PromptiterError, OSError)):
            logger.exception("iteration %s failed", len(loop.session.iterations) + 1)
    finally:
        loop.finish()
    return loop.session


@dataclass(slots=True, kw_only=True)
class _Prior:
    """The run before an iteration."""

    record: RunRecord
    deliverable: Path | None


@dataclass(slots=True, kw_only=True)
class _Loop:
    seed: Seed
    runner: IterationRunner
    options: RefinementOptions
    clock: Clock
    make_run_id: Callable[[str, int, datetime], str]
    notify: Callable[[str], None]
    session: RefinementSession = field(init=False)
    wall_time_s: float = 0.0

    @property
    def of(self) -> int:
        return clamp_iterations(self.options.iterations)

    @property
    def losses(self) -> list[float]:
        """The loss of the seed, and of each iteration."""
        return [self.session.seed_loss or 0.0, *(each.loss for each in self.session.iterations)]

    def begin(self) -> None:
        started = self.clock.now()
        self.session = self.seed.sessions.begin(
            started,
            lambda session_id: RefinementSession(
                session_id=session_id,
                seed_run_id=self.seed.record.run_id,
                started_at=_format(started),
                tier_plan_used=not self.options.tiers.is_trivial,
                iterations_wanted=self.of,
            ),
        )

    async def run(self) -> None:
        record = self.seed.record
        if not self.seed.is_measured:
            self.notify("measuring the deliverable as it is")
            record = await self.runner.measure(record, self.seed.deliverable)
        self._change(seed_loss=compute_loss(record, self.options.weights))
        prior = _Prior(record=record, deliverable=self.seed.deliverable)
        gradient = extract_gradient(record)
        self.notify(f"the seed has a loss of {self.losses[0]:.3f}: {describe_gradient(gradient)}")
        if gradient.is_empty:
            return self._stop("empty_gradient")
        for number in range(1, self.of + 1):
            if prior.deliverable is None:
                return self._stop("no_prior_deliverable")
            gradient = extract_gradient(prior.record)
            if gradient.is_empty:
                return self._stop("empty_gradient_midloop")
            prior = await self._iterate(number, prior.record, prior.deliverable, gradient)
            if (reason := self._find_stop_reason()) is not None:
                return self._stop(reason)
        return self._stop("max_iterations")

    async def _iterate(self, number: int, before: RunRecord, deliverable: Path, gradient: RefinementGradient) -> _Prior:
        run_id = self.make_run_id(self.session.session_id, number, self.clock.now())
        work = (self.options.work or self.seed.home / WORK) / self.session.session_id
        folders = IterationFolders.of(work.absolute(), number=number, run_id=run_id)
        folders.prepare(deliverable)
        gradient.write(folders.root)
        models = self._choose_models(number)
        names = join_models(models)
        by = f" with {names}" if names else ""
        self.notify(f"iteration {number} of {self.of}{by}: {describe_gradient(gradient)}")
        started = self.clock.seconds()
        finished = await self.runner.run(
            IterationRequest(
                number=number,
                of=self.of,
                run_id=run_id,
                parent_run_id=before.run_id,
                task=self.seed.record.task,
                gradient=gradient,
                files=tuple(list_files(folders.input)),
                folders=folders,
                budget=halve_budget(self.seed.record.use, self.options.floors),
                models=models,
            )
        )
        took = self.clock.seconds() - started
        self.wall_time_s += took
        record = _add_missing_metrics(finished.record, before)
        delivered = find_deliverable(finished.run_dir, record.run_id, run_id)
        entry = IterationEntry(
            k=number,
            run_id=record.run_id,
            loss=compute_loss(record, self.options.weights) if delivered is not None else 1.0,
            status=record.status,
            tier=None if self.options.tiers.is_trivial else find_tier(number, self.of),
            model_manager=models.manager or None,
            model_worker=models.worker or None,
            parent_run_id=before.run_id,
            run_dir=_relative(finished.run_dir, self.seed.home),
            wall_time_s=round(took, 3),
            problem=finished.problem or None,
        )
        self._take(entry, delivered)
        return _Prior(record=record, deliverable=delivered)

    def _choose_models(self, number: int) -> ModelPair:
        if self.options.tiers.is_trivial:
            return self.options.models.or_else(self.seed.record.models)
        return self.options.tiers.resolve(number, self.of, seed=self.seed.record.models)

    def _take(self, entry: IterationEntry, delivered: Path | None) -> None:
        """Add an iteration to the session. If it is the best so far, BEST becomes its deliverable."""
        before = self.session.best_loss or 0.0
        is_best = delivered is not None and entry.loss < before
        self._change(iterations=(*self.session.iterations, entry))
        self.notify(f"iteration {entry.k} has a loss of {entry.loss:.3f} ({entry.loss - self.losses[-2]:+.3f})")
        if entry.problem:
            self.notify(f"iteration {entry.k}: {entry.problem}")
        if not is_best or delivered is None:
            return
        manifest = BestManifest(
            best_run_id=entry.run_id,
            best_loss=entry.loss,
            seed_loss=self.losses[0],
            session_id=self.session.session_id,
            seed_run_id=self.session.seed_run_id,
            best_iter=entry.k,
            delta=round(entry.loss - self.losses[0], 6),
            run_dir=entry.run_dir or "",
        )
        try:
            promoted = write_best(self.seed.home, delivered, manifest)
        except OSError as error:
            reason = f"{str(self.seed.home / BEST)!r} cannot be replaced: {error}"
            raise IterationFailedError(type(error).__name__, reason) from error
        self._change(best_iter=entry.k, promoted=promoted or bool(self.session.promoted))

    def _find_stop_reason(self) -> str | None:
        losses = self.losses
        last = losses[-MOST_RISES - 1 :]
        if len(last) > MOST_RISES and all(before < after for before, after in pairwise(last)):
            return "regression"
        if len(losses) > 2 and abs(losses[-1] - losses[-2]) < PLATEAU:  # the seed is not an iteration
            return "plateau"
        observed, least = self.seed.record.use.wall_time_s, self.options.least_wall_time_s
        if observed and self.wall_time_s >= max(WALL_TIME_SHARE * observed, least):
            return "wall_time_exhausted"
        return None

    def fail(self, error: BaseException) -> None:
        name = error.kind if isinstance(error, IterationFailedError) else type(error).__name__
        text = process_redactor().redact_text(str(error))
        self._change(stop_reason=f"error:{name}", error=text or None)

    def finish(self) -> None:
        self._change(completed_at=_format(self.clock.now()))

    def _stop(self, reason: str) -> None:
        self._change(stop_reason=reason)

    def _change(self, **fields: object) -> None:
        self.session = self.session.model_copy(update=fields)
        self._save()

    def _save(self) -> None:
        self.seed.sessions.write(self.session)


class IterationFailedError(PromptiterError):
    """The agent of an iteration failed. `kind` is the name of its error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message or kind)
        self.kind = kind


def _add_missing_metrics(record: RunRecord, before: RunRecord) -> RunRecord:
    """The record with the metrics that only the run before has, as 0: without them, the loss would seem to fall."""
    known = {each.name for each in record.metrics}
    missing = (replace(each, value=0.0) for each in before.metrics if each.name not in known)
    return replace(record, metrics=(*record.metrics, *missing))


def join_models(models: ModelPair) -> str:
    """The models of an iteration, for progress lines."""
    return " and ".join(dict.fromkeys(filter(None, (models.manager, models.worker))))


def _relative(folder: Path, home: Path) -> str:
    folder, home = folder.absolute(), home.absolute()
    return folder.relative_to(home).as_posix() if folder.is_relative_to(home) else str(folder)


def _format(time_of_day: datetime) -> str:
    return time_of_day.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
