"""The pool of a GEPA run, and its iterations as rows: what a reader of gepa's own output looks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.backprop.record import StagesMeasured
from promptiter.engine.engine import Engine
from promptiter.llm.budget import Budget
from promptiter.runlog.results import RunResult
from promptiter.runs.candidate_pool import PoolCandidate, PoolSummary
from promptiter.runs.iteration_rows import list_iterations
from promptiter.runs.report.candidate_tree import count_widest, draw_candidates
from promptiter.runs.summary import summarize
from tests.worlds import desk
from tests.worlds.two_cares import build_engine, build_merging_search, build_request, is_fair


def gepa(budget: Budget | None = None) -> Engine:
    """Two candidates that are best on one half of the cases each, and their merge."""
    return build_engine(build_merging_search(), second=is_fair, budget=budget)


@pytest.fixture(scope="module")
def merged() -> RunResult:
    return gepa().run_sync(build_request())


def test_a_pool_has_parents_scores_and_the_cases_on_which_each_candidate_is_best(merged: RunResult) -> None:
    found = summarize(merged).pool
    assert found.cases == 6
    assert [(each.number, each.parents, each.round, each.score, each.best_on) for each in found.candidates] == [
        (0, (), 0, 0.5, 0),
        (1, (0,), 1, 0.625, 3),
        (2, (0,), 2, 0.625, 3),
        (3, (1, 2), 3, 1.0, 6),
    ]
    assert [each.number for each in found.candidates if each.is_best] == [3]
    assert [each.number for each in found.candidates if each.is_on_frontier] == [1, 2, 3]


def test_without_an_accepted_candidate_the_baseline_is_the_best(merged: RunResult) -> None:
    only = replace(merged, rounds=(merged.rounds[1],))  # it kept its candidate, and accepted none
    assert [(each.number, each.is_best) for each in summarize(only).pool.candidates] == [(0, True), (2, False)]


def test_other_searches_have_no_pool() -> None:
    result = desk.engine(desk.DRAFT).run_sync(desk.request())
    summary = summarize(result)
    assert summary.rounds
    assert summary.pool == PoolSummary()


def test_an_iteration_has_a_row_with_its_scores_and_what_became_of_its_candidate(merged: RunResult) -> None:
    rows = list(list_iterations(summarize(merged)))
    assert [(each.kind, each.parents, each.minibatch, each.validation, each.number, each.outcome) for each in rows] == [
        ("reflective", "#0", "0.500 → 0.750", 0.625, "#1", "best"),
        ("reflective", "#0", "0.500 → 0.750", 0.625, "#2", "kept"),
        ("merge", "#1 + #2", "0.700 and 0.550 → 1.000", 1.0, "#3", "best"),
    ]
    assert rows[0].components == ("draft#instruction",)
    assert rows[1].reason.startswith("kept on the frontier: ")
    assert [each.reflection for each in rows] == ["1 call, 120 tokens", "1 call, 120 tokens", ""]


def test_the_tokens_of_a_reflection_are_unknown_if_its_model_does_not_report_them(merged: RunResult) -> None:
    summary = summarize(merged)
    silent = replace(summary.rounds[0], reflection=StagesMeasured(calls=2, uncounted_calls=2, cost_usd=None))
    [first] = list_iterations(replace(summary, rounds=(silent,)))
    assert first.reflection == "2 calls, tokens unknown"


def test_an_iteration_that_the_budget_ended_has_what_is_known_of_it() -> None:
    result = gepa(Budget(max_calls=45)).run_sync(build_request())
    *_, last = list_iterations(summarize(result))
    assert result.stop_reason == "max_calls"
    assert (last.kind, last.parents, last.components) == ("reflective", "#0", ("polish#instruction",))
    assert (last.outcome, last.reason, last.validation) == ("undecided", "ended before a decision", None)


def test_a_tree_leads_from_parents_to_children_and_marks_the_best(merged: RunResult) -> None:
    tree = draw_candidates(summarize(merged).pool)
    assert [(each.source, each.target) for each in tree.arrows] == [("0", "1"), ("0", "2"), ("1", "3"), ("2", "3")]
    assert [each.tone for each in tree.boxes] == ["candidate", "frontier", "frontier", "best"]
    assert tree.boxes[3].detail == "1.000 · best on 6 of 6"
    assert tree.boxes[3].hover == "round 3: merge of #1 + #2, changes polish#instruction"
    assert count_widest(tree) == 2


def test_of_a_large_pool_the_best_and_the_frontier_are_drawn_with_their_ancestors() -> None:
    def candidate(number: int, *parents: int, score: float = 0.0) -> PoolCandidate:
        return PoolCandidate(
            number=number,
            digest=f"{number}",
            parents=parents,
            score=score,
            is_best=number == 5,
            is_on_frontier=number == 7,
        )

    pool = PoolSummary(
        candidates=(
            candidate(0),
            *(candidate(number, 0, score=0.1 * number) for number in (1, 2, 3)),
            candidate(4, 3),
            candidate(5, 4),
            candidate(6, 1),
            candidate(7, 6),
        ),
        cases=3,
    )
    assert [each.number for each in pool.choose(4)] == [0, 3, 4, 5], "no room for the frontier"
    assert [each.number for each in pool.choose(7)] == [0, 1, 3, 4, 5, 6, 7]
    assert pool.choose(8) == pool.candidates
