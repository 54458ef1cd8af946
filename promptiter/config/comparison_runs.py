"""Runs a comparison: every search with every seed, each in its own folder.

A run that has ended is not run again, also if its budget ended it. One that was interrupted or failed is resumed, and
one whose evaluation was invalid is replaced by a new one. Seeds come in order, and within a
seed the searches, so that a comparison that is stopped early has runs of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from promptiter.concurrency import run_in_thread, run_together
from promptiter.config.comparison_plan import (
    ComparisonPlan,
    PlannedSearch,
    StoredPlan,
    StoredResult,
    open_plan,
    store_plan,
)
from promptiter.config.configured_run import ConfiguredRun
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.outline import ModelCallingSearch
from promptiter.errors import RequestError, RunLockedError, SetupError
from promptiter.runlog.payloads import RunCompleted
from promptiter.runs.directory import RunDirectory
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import read_header
from promptiter.runs.report.comparison_files import write_comparison
from promptiter.runs.search_comparison import ComparedSearch, SearchComparison, compare_search_runs
from promptiter.runs.search_runs import SearchRun, read_search_run
from promptiter.runs.stored_run import check_inputs
from traces import digest
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """One run of a comparison: a search and a seed. `number` counts all runs, from 1."""

    search: PlannedSearch
    seed: int
    number: int


OnRun = Callable[[PlannedRun, SearchRun], None]


def run_comparison(
    plan: ComparisonPlan,
    *,
    parallel: int = 1,
    on_run: OnRun = lambda planned, run: None,  # noqa: ARG005
    notify: Callable[[str], None] = lambda _: None,
) -> SearchComparison:
    """Run what is left of a comparison, write its report, and return it. Ctrl-C stops it; it can be continued.

    `on_run` is called with each run that ends here. ChangedInputsError if a run was started with other inputs.
    """
    if parallel > 1 and plan.is_in_place:
        raise SetupError("candidates are written into files in place, one at a time; leave out --parallel")
    if problems := find_search_problems(plan):
        raise RequestError(problems)
    stored = open_plan(plan)
    interrupt = Interrupt()
    run_blocking(lambda: _run_all(plan, parallel, interrupt, on_run), interrupt, notify=notify)
    found, result = read_comparison(plan, stored)
    if found.can_claim and result not in stored.results:
        store_plan(plan.folder, stored.model_copy(update={"results": (*stored.results, result)}))
    write_comparison(plan.folder, found)
    return found


def read_comparison(plan: ComparisonPlan, stored: StoredPlan) -> tuple[SearchComparison, StoredResult]:
    """Compare the runs that there are, given the results that were shown earlier.

    A result for the same seeds is another one if it has other runs: some were removed and run again.
    """
    searches = [
        ComparedSearch(name=each.name, search=each.search, config=str(each.config), runs=tuple(_read_runs(plan, each)))
        for each in plan.searches
    ]
    runs: list[Json] = [[each.name, run.folder] for each in searches for run in each.runs]
    result = StoredResult(seeds=len(plan.seeds), runs=digest(runs))
    found = compare_search_runs(
        searches,
        objective=plan.objective,
        seeds=plan.seeds,
        budget=plan.budget,
        earlier=[each.seeds for each in stored.results if each != result],
    )
    return found, result


def count_runs_left(plan: ComparisonPlan) -> dict[str, int]:
    """The runs that each search still has to make or to finish."""
    return {
        search.name: sum(not _has_ended(_read_end(_find_run(plan, search, seed))) for seed in plan.seeds)
        for search in plan.searches
    }


def find_search_problems(plan: ComparisonPlan) -> list[str]:
    """What the searches with runs left need and do not have: packages, keys of models. One line each."""
    problems: list[str] = []
    left = count_runs_left(plan)
    for search in (each for each in plan.searches if left[each.name]):
        run = plan.load(search, plan.seeds[0])
        if isinstance(run.engine.search, ModelCallingSearch):
            problems += [f"{search.name}: {each}" for each in run.engine.search.find_setup_problems(run.gateway)]
        run.gateway.cache.close()
    return problems


class _RunInterrupt(Interrupt):
    """Stops one run, also when the whole comparison is stopped."""

    def __init__(self, whole: Interrupt) -> None:
        super().__init__()
        self._whole = whole

    @property
    def reason(self) -> str | None:
        return self._whole.reason or super().reason


async def _run_all(plan: ComparisonPlan, parallel: int, interrupt: Interrupt, on_run: OnRun) -> None:
    left = iter(_list_runs(plan))

    async def work() -> None:
        for planned in left:
            if interrupt.reason is not None:
                return
            await _run(plan, planned, interrupt, on_run)

    with suppress(asyncio.CancelledError):  # by a second Ctrl-C; what is recorded is shown
        await run_together(work() for _ in range(parallel))


def _list_runs(plan: ComparisonPlan) -> list[PlannedRun]:
    pairs = [(search, seed) for seed in plan.seeds for search in plan.searches]
    return [PlannedRun(search=search, seed=seed, number=at) for at, (search, seed) in enumerate(pairs, start=1)]


async def _run(plan: ComparisonPlan, planned: PlannedRun, interrupt: Interrupt, on_run: OnRun) -> None:
    """Run one run to its end, from wherever it is. A run that fails is recorded; the comparison continues."""
    configured = await run_in_thread(lambda: plan.load(planned.search, planned.seed))
    try:
        directory = await run_in_thread(lambda: _open(plan, planned, configured))
        if directory is None:
            return
        outcome = await directory.execute(observers=(), interrupt=_RunInterrupt(interrupt))
        if isinstance(outcome.error, RunLockedError):
            raise outcome.error
    finally:
        configured.gateway.cache.close()
    on_run(planned, await run_in_thread(lambda: read_search_run(directory.path, seed=planned.seed)))


def _open(plan: ComparisonPlan, planned: PlannedRun, configured: ConfiguredRun) -> RunDirectory | None:
    """The folder of a run, new or to be resumed; None if the run has ended."""
    folder = _find_run(plan, planned.search, planned.seed)
    if folder is None:
        return configured.begin()
    end = _read_end(folder)
    if end is not None and end.verdict == "invalid_eval":
        return configured.begin()
    if not _has_ended(end):
        return configured.resume(folder)
    check_inputs(
        read_header(folder),
        configured.engine,
        configured.checked,
        configuration=configured.configuration,
        where=str(folder),
    )
    return None


def _find_run(plan: ComparisonPlan, search: PlannedSearch, seed: int) -> Path | None:
    """The folder of a run, the latest if there are several."""
    return max((each.parent for each in plan.locate(search, seed).glob(f"*/{HEADER}")), default=None)


def _read_end(folder: Path | None) -> RunCompleted | None:
    """How the run in a folder ended; None if it did not."""
    last = None if folder is None else EventFile(folder / JOURNAL).last()
    return last.payload if last is not None and isinstance(last.payload, RunCompleted) else None


def _has_ended(end: RunCompleted | None) -> bool:
    """Whether a run counts as it is. One that its budget ended could be resumed with a higher one, but not here."""
    if end is None or end.status != "succeeded" or end.verdict == "invalid_eval":
        return False
    return end.stop is None or not end.stop.is_user_stop


def _read_runs(plan: ComparisonPlan, search: PlannedSearch) -> Iterator[SearchRun]:
    for seed in plan.seeds:
        folder = _find_run(plan, search, seed)
        if folder is not None:
            with suppress(SetupError):  # it has recorded nothing yet
                yield read_search_run(folder, seed=seed)
