"""SearchRun: one run of a search in a comparison: how it ended, what it scored and took, and its score as it spent.

It is read from the folder of the run alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from promptiter.evaluation.result import Evaluation
from promptiter.llm.ledger import Spending
from promptiter.runlog.payloads import StopDecided
from promptiter.runlog.results import RunResult
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.outcome import Outcome, classify_result, explain_outcome
from promptiter.runs.summary import read_result, summarize_costs

ADOPTED: tuple[Outcome, ...] = ("improved", "improved_on_validation")
UNFINISHED: tuple[Outcome, ...] = ("running", "interrupted", "stopped", "cancelled")
INCOMPLETE: tuple[Outcome, ...] = (*UNFINISHED, "failed", "invalid_eval")
"""Outcomes of runs whose figures do not count: they did not end, or could not be scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpentPoint:
    """The objective of the best profile on validation when a run had spent this much."""

    calls: int
    case_runs: int
    usd: float | None
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRun:
    """One run. `before` and `after` are the objective of the baseline and of the profile that the search ended with.

    Both are those of the final test if it `is_tested`, `test_before` and `test_after` those on the test set. A run
    that `is_changed` ended with another profile than the baseline, and not before its final test. One that `is_cut` was
    ended by its budget, and not by its search. `usd` is None if a price is unknown.
    """

    seed: int
    folder: str
    outcome: Outcome
    reason: str = ""
    is_changed: bool = False
    is_tested: bool = False
    is_cut: bool = False
    before: float | None = None
    after: float | None = None
    test_before: float | None = None
    test_after: float | None = None
    rounds: int = 0
    calls: int = 0
    case_runs: int = 0
    usd: float | None = None
    minutes: float = 0.0
    curve: tuple[SpentPoint, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether its figures count."""
        return self.outcome not in INCOMPLETE and self.after is not None

    @property
    def is_adopted(self) -> bool:
        return self.outcome in ADOPTED


def read_search_run(folder: str | os.PathLike[str], *, seed: int) -> SearchRun:
    """Read a run, finished or not. SetupError if it has not begun."""
    path = Path(folder)
    result = read_result(path)
    found, costs = result.conclusion, summarize_costs(result.measured.spent, result.measured)
    outcome = classify_result(result)
    is_tested = found is not None and bool(found.results)
    is_changed = is_tested or (found is not None and found.is_untested)
    before = found.before if found is not None and is_tested else result.baseline_score
    after = found.after if found is not None and is_tested else _find_untested_score(result)
    return SearchRun(
        seed=seed,
        folder=path.name,
        outcome=outcome,
        reason=explain_outcome(result, outcome),
        is_changed=is_changed,
        is_tested=is_tested,
        is_cut=_is_cut(result, outcome, EventFile(path / JOURNAL)),
        before=before,
        after=after,
        test_before=None if found is None else found.test_before,
        test_after=None if found is None else found.test_after,
        rounds=len(result.rounds),
        calls=costs.models.calls,
        case_runs=costs.case_runs,
        usd=_read_dollars(costs.models),
        minutes=costs.duration_s / 60,
        curve=tuple(_read_curve(result, EventFile(path / JOURNAL))),
    )


def _is_cut(result: RunResult, outcome: Outcome, journal: EventFile) -> bool:
    """Whether the budget ended the search, or the whole run: then no more of it can be resumed with this budget."""
    is_ended = result.status == "succeeded" and not result.is_final and outcome != "stopped"
    return is_ended or any(event.type == "budget_ended" for event in journal.read())


def _find_untested_score(result: RunResult) -> float | None:
    """The score without a final test: of a profile that is adopted untested, otherwise that of the baseline."""
    found = result.conclusion
    return result.accepted_score if found is not None and found.is_untested else result.baseline_score


def _read_dollars(spent: Spending) -> float | None:
    return None if spent.unpriced_calls or spent.uncounted_calls else spent.cost_usd


def _read_curve(result: RunResult, journal: EventFile) -> Iterator[SpentPoint]:
    """The best score on validation after the baseline and after each round, with what was spent by then."""
    best = dict(_list_best_scores(result))
    case_runs, score = 0, best.get(0)
    for event in journal.read():
        case_runs += event.type == "case"
        if event.type != "stop" or not isinstance(stop := event.payload, StopDecided):
            continue
        score = best.get(event.round, score)
        if score is not None:
            spent = stop.measured.spent
            yield SpentPoint(calls=spent.calls, case_runs=case_runs, usd=_read_dollars(spent), score=score)


def _list_best_scores(result: RunResult) -> Iterator[tuple[int, float]]:
    """The objective of each profile that became the best, by round; the baseline is in round 0."""
    baseline = next((each for each in result.evaluations if each.phase == "baseline"), result.baseline)
    for number, validation in ((0, baseline), *_list_accepted(result)):
        score = None if validation is None else validation.objective(result.objective)
        if score is not None:
            yield number, score


def _list_accepted(result: RunResult) -> Iterator[tuple[int, Evaluation | None]]:
    for each in result.rounds:
        if each.decision is not None and each.decision.accepted:
            yield each.round, each.validation
