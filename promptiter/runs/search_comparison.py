"""SearchComparison: several searches on the same task, with the same seeds: what each reached and took.

The score of a run is that of the profile its search ended with, on the test set if that was run for every changed
profile, otherwise in the final test on the validation cases. A search that changed nothing ends with the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

from promptiter.evaluation.result import Objective
from promptiter.evaluation.stats.search_differences import (
    ALPHA,
    ComparedFigure,
    RunFigures,
    SearchDifference,
    compare_figures,
)
from promptiter.evaluation.stats.sign_flips import CenterInterval, estimate_center
from promptiter.grouping import group_by
from promptiter.runs.search_runs import UNFINISHED, SearchRun
from promptiter.wording import join_names, plural

Basis: TypeAlias = Literal["test set", "final test", "validation"]
"""Which cases the compared scores are from. `validation`: no run had a final test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedSearch:
    """A search by the name it has in the comparison, its kind, and its runs in the order of their seeds."""

    name: str
    search: str
    config: str
    runs: tuple[SearchRun, ...] = ()

    @property
    def complete(self) -> tuple[SearchRun, ...]:
        return tuple(each for each in self.runs if each.is_complete)

    @property
    def failed(self) -> tuple[SearchRun, ...]:
        """The runs that ended without a score."""
        return tuple(each for each in self.runs if not each.is_complete and each.outcome not in UNFINISHED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchFigures:
    """The figures of a search over its complete runs: means with 95% intervals; None if a figure is unknown.

    Besides, `failed` runs ended without a score. Of the complete ones, `cut` were ended by the budget.
    """

    runs: int
    adopted: int
    failed: int
    cut: int
    outcomes: Mapping[str, int]
    score: CenterInterval | None = None
    gain: CenterInterval | None = None
    calls: CenterInterval | None = None
    case_runs: CenterInterval | None = None
    usd: CenterInterval | None = None
    minutes: CenterInterval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchComparison:
    """What a comparison shows. `costs` are the figures besides the score that are compared, the most important first.

    `differences` are those of each search from each later one. `notes` are what a reader must know about the figures.
    While there are `runs_left`, nothing is claimed: a look at each new seed would raise the chance of a false claim.
    For the same reason, p-values are multiplied by the number of results: `earlier` are those that were seen before
    this one, by their number of seeds.
    """

    objective: Objective
    seeds: tuple[int, ...]
    budget: Mapping[str, float]
    basis: Basis
    baseline: float | None
    costs: tuple[ComparedFigure, ...]
    searches: tuple[ComparedSearch, ...]
    figures: Mapping[str, SearchFigures]
    differences: tuple[SearchDifference, ...]
    notes: tuple[str, ...] = ()
    alpha: float = ALPHA
    runs_left: int = 0
    earlier: tuple[int, ...] = ()

    @property
    def can_claim(self) -> bool:
        """Whether any difference could be shown."""
        return any(each.can_claim for each in self.differences)

    def score(self, run: SearchRun) -> float | None:
        """The compared score of a run."""
        return find_score(run, self.basis, self.baseline)


def compare_search_runs(
    searches: Sequence[ComparedSearch],
    *,
    objective: Objective = "mean_score",
    seeds: Sequence[int],
    budget: Mapping[str, float] | None = None,
    earlier: Sequence[int] = (),
    alpha: float = ALPHA,
) -> SearchComparison:
    """Compare the runs of the searches, as far as they have ended. `earlier` results are given by their seeds."""
    complete = [run for each in searches for run in each.complete]
    basis = choose_basis(complete)
    baseline = _find_baseline(complete, basis)
    costs = _choose_costs(complete)
    table: dict[str, dict[int, RunFigures]] = {
        each.name: {run.seed: _list_figures(run, find_score(run, basis, baseline)) for run in each.complete}
        for each in searches
    }
    cut = {each.name: [run.seed for run in each.complete if run.is_cut] for each in searches}
    differences = compare_figures(table, ("score", *costs), cut=cut, results=len(earlier) + 1, alpha=alpha)
    runs_left = _count_runs_left(searches, len(seeds))
    return SearchComparison(
        objective=objective,
        seeds=tuple(seeds),
        budget=budget or {},
        basis=basis,
        baseline=baseline,
        costs=costs,
        searches=tuple(searches),
        figures={each.name: _summarize(each, basis, baseline) for each in searches},
        differences=tuple(_withhold_claims(differences, searches, runs_left)),
        notes=(*_describe_gaps(searches, len(seeds)), *_describe_basis(basis, complete)),
        alpha=alpha,
        runs_left=runs_left,
        earlier=tuple(earlier),
    )


def _count_runs_left(searches: Sequence[ComparedSearch], seeds: int) -> int:
    ended = sum(run.outcome not in UNFINISHED for each in searches for run in each.runs)
    return len(searches) * seeds - ended


def _withhold_claims(
    differences: Iterable[SearchDifference], searches: Sequence[ComparedSearch], runs_left: int
) -> Iterator[SearchDifference]:
    """Claim nothing before all runs have ended, or about a search with failed runs: those with a score may be lucky."""
    failed = {each.name: len(each.failed) for each in searches}
    for each in differences:
        without = [f"{plural(failed[name], 'run')} of {name}" for name in (each.first, each.second) if failed[name]]
        if runs_left:
            yield each.withhold("not all runs have ended")
        elif without:
            yield each.withhold(f"{' and '.join(without)} failed")
        else:
            yield each


def choose_basis(runs: Sequence[SearchRun]) -> Basis:
    """The strictest measurement that all runs share."""
    changed = [run for run in runs if run.is_changed]
    if changed and all(run.test_after is not None for run in changed):
        return "test set"
    return "final test" if all(run.is_tested for run in changed) else "validation"


def find_score(run: SearchRun, basis: Basis, baseline: float | None) -> float | None:
    """The score of a run. On the test set, a run that changed nothing has that of the baseline in the other runs."""
    if basis != "test set":
        return run.after
    return run.test_after if run.test_after is not None else baseline


def _find_baseline(runs: Sequence[SearchRun], basis: Basis) -> float | None:
    """The mean score of the baseline."""
    found = [run.test_before if basis == "test set" else run.before for run in runs]
    known = [each for each in found if each is not None]
    return fmean(known) if known else None


def _list_figures(run: SearchRun, score: float | None) -> RunFigures:
    return {"score": score, "calls": run.calls, "case_runs": run.case_runs, "usd": run.usd}


def _choose_costs(runs: Sequence[SearchRun]) -> tuple[ComparedFigure, ...]:
    """Dollars if all are known, and model calls; case runs if no model was called through promptiter."""
    if not any(run.calls for run in runs):
        return ("case_runs",)
    has_dollars = all(run.usd is not None for run in runs) and any(run.usd for run in runs)
    return ("usd", "calls") if has_dollars else ("calls",)


def _summarize(search: ComparedSearch, basis: Basis, baseline: float | None) -> SearchFigures:
    runs = search.complete
    gains = [_subtract_baseline(run, basis) for run in runs]
    return SearchFigures(
        runs=len(runs),
        adopted=sum(run.is_adopted for run in runs),
        failed=len(search.failed),
        cut=sum(run.is_cut for run in runs),
        outcomes={name: len(each) for name, each in group_by(search.runs, lambda run: run.outcome).items()},
        score=_estimate([find_score(run, basis, baseline) for run in runs]),
        gain=_estimate(gains),
        calls=_estimate([run.calls for run in runs]),
        case_runs=_estimate([run.case_runs for run in runs]),
        usd=_estimate([run.usd for run in runs]),
        minutes=_estimate([run.minutes for run in runs]),
    )


def _subtract_baseline(run: SearchRun, basis: Basis) -> float | None:
    """The gain over the baseline in the same final test; 0 if nothing was changed."""
    if not run.is_changed:
        return 0.0
    before, after = (run.test_before, run.test_after) if basis == "test set" else (run.before, run.after)
    return None if before is None or after is None else after - before


def _estimate(values: Sequence[float | None]) -> CenterInterval | None:
    known = [each for each in values if each is not None]
    return estimate_center(known) if known and len(known) == len(values) else None


def _describe_gaps(searches: Sequence[ComparedSearch], seeds: int) -> Iterable[str]:
    """Say which runs are missing or did not count."""
    for each in searches:
        if each.failed:
            runs = plural(len(each.failed), "run")
            yield f"{each.name}: {runs} without a score, left out of its means: {_name_runs(each.failed)}"
        if unfinished := [run for run in each.runs if run.outcome in UNFINISHED]:
            yield f"{each.name}: {plural(len(unfinished), 'run')} not finished: {_name_runs(unfinished)}"
        if len(each.runs) < seeds:
            yield f"{each.name}: {len(each.runs)} of {plural(seeds, 'run')} so far"
        if ended := [run for run in each.complete if run.outcome == "budget_ended"]:
            runs = plural(len(ended), "run")
            yield f"{each.name}: the budget ended {runs} before the final test; the score is that of the baseline"
        if cut := [run for run in each.complete if run.is_cut and run.outcome != "budget_ended"]:
            of_all = f"{len(cut)} of {plural(len(each.complete), 'run')}"
            yield (
                f"{each.name}: the budget cut {of_all} short, so their costs say what it allows, not what they need; "
                "a seed whose cheaper run was cut short is a tie in costs"
            )


def _name_runs(runs: Sequence[SearchRun]) -> str:
    return join_names([f"seed {run.seed} ({run.outcome.replace('_', ' ')})" for run in runs], limit=4)


def _describe_basis(basis: Basis, runs: Sequence[SearchRun]) -> Iterable[str]:
    if basis == "validation":
        yield "without a final test, scores are those that the search selected by, and so too high"
    elif basis == "final test" and any(run.test_after is not None for run in runs):
        yield "the test set was not run for every changed profile, so scores are those on the validation cases"
