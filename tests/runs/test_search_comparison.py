from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from promptiter.runs.outcome import Outcome
from promptiter.runs.report.comparison_files import comparison_as_json, render_comparison, write_comparison
from promptiter.runs.search_comparison import ComparedSearch, SearchComparison, compare_search_runs
from promptiter.runs.search_runs import SearchRun, SpentPoint
from promptiter.runs.search_verdict import describe_difference, write_verdict
from promptiter.runs.spending_curves import average_curves


def make_run(
    seed: int, *, after: float = 0.9, calls: int = 300, outcome: Outcome = "improved_on_validation"
) -> SearchRun:
    return SearchRun(
        seed=seed,
        folder=f"run-{seed}",
        outcome=outcome,
        is_changed=True,
        is_tested=True,
        before=0.4,
        after=after + seed % 3 / 100,
        calls=calls + seed,
        case_runs=calls,
        usd=0.0,
        minutes=0.5,
        curve=(
            SpentPoint(calls=20, case_runs=20, usd=0.0, score=0.4),
            SpentPoint(calls=calls // 2, case_runs=calls // 2, usd=0.0, score=after),
        ),
    )


def make_search(name: str, *, seeds: int = 8, after: float = 0.9, calls: int = 300) -> ComparedSearch:
    runs = tuple(make_run(seed, after=after, calls=calls) for seed in range(seeds))
    return ComparedSearch(name=name, search="backprop", config=f"{name}.yaml", runs=runs)


TRADES = (("low", 0.5, 100), ("middle", 0.7, 200), ("high", 0.9, 400))


def compare(*searches: ComparedSearch, seeds: int = 8) -> SearchComparison:
    return compare_search_runs(searches, seeds=range(seeds))


def test_a_search_that_scores_higher_and_takes_less_is_said_to() -> None:
    found = compare(make_search("good", after=0.9, calls=100), make_search("poor", after=0.6, calls=200))
    assert write_verdict(found) == (
        "good scores higher than poor: score +0.300 (95% interval +0.300 to +0.300, p = 0.0078); good takes fewer "
        "model calls than poor: 0.51 times the model calls (95% interval 0.50 to 0.51, p = 0.0078)."
    )
    assert found.figures["good"].adopted == 8


def test_a_trade_of_score_and_calls_is_left_to_the_reader() -> None:
    found = compare(make_search("good", after=0.9, calls=400), make_search("cheap", after=0.6, calls=200))
    assert write_verdict(found).endswith("Which one pays depends on what the score is worth to you.")


def test_equal_scores_are_no_difference() -> None:
    found = compare(make_search("fast", calls=100), make_search("slow", calls=200))
    assert write_verdict(found).endswith("No difference in score is shown.")


def test_searches_that_are_alike_show_no_difference() -> None:
    found = compare(make_search("one"), make_search("two"))
    assert write_verdict(found).startswith("No difference between one and two is shown in 8 seeds: score +0.000 (")


@pytest.mark.parametrize("seeds", [1, 5])
def test_below_six_seeds_nothing_can_be_shown(seeds: int) -> None:
    found = compare(make_search("a", seeds=seeds, calls=1), make_search("b", seeds=seeds), seeds=seeds)
    assert write_verdict(found).startswith(f"Nothing can be shown with {seeds} common seed")
    assert "Run at least 6 seeds" in write_verdict(found)


def test_the_best_of_three_searches_is_named() -> None:
    poor = [make_search("poor", after=0.5), make_search("worse", after=0.3)]
    assert write_verdict(compare(make_search("best"), *poor)) == "best beats all others."
    alike = [make_search("same"), make_search("poor", after=0.5)]
    assert write_verdict(compare(make_search("best"), *alike)) == (
        "Beaten by another search: poor. Not beaten: best, same."
    )
    same = [make_search("two"), make_search("three")]
    assert write_verdict(compare(make_search("one"), *same)) == "No search is shown to beat another in 8 seeds."


@pytest.mark.parametrize("outcome", ["failed", "invalid_eval"])
def test_nothing_is_claimed_about_a_search_with_runs_that_failed(outcome: Outcome) -> None:
    good = make_search("good", calls=100)
    broken = replace(good, runs=(*good.runs[:7], replace(good.runs[7], outcome=outcome)))
    found = compare(broken, make_search("poor", after=0.6, calls=200))
    assert write_verdict(found) == (
        "Runs failed: 1 of 8 of good. Nothing is claimed about good; its other seeds may be the easier ones. Give the "
        "same command to run them again."
    )
    [difference] = found.differences
    assert (difference.seeds, found.figures["good"].failed, found.can_claim) == (7, 1, False)
    assert not any(each.is_shown or each.p_value for each in difference.figures)
    assert describe_difference(difference).startswith(
        "good and poor: nothing is claimed, because 1 run of good failed; score +0.300 (95% interval"
    )
    named = f"seed 7 ({outcome.replace('_', ' ')})"
    assert found.notes == (f"good: 1 run without a score, left out of its means: {named}",)
    assert '<th class="number">failed</th>' in render_comparison(found)


def test_a_search_with_runs_that_failed_does_not_silence_the_others() -> None:
    broken = make_search("broken")
    broken = replace(broken, runs=(replace(broken.runs[0], outcome="failed"), *broken.runs[1:]))
    found = compare(broken, make_search("good"), make_search("poor", after=0.5))
    assert [each.untested for each in found.differences] == ["1 run of broken failed", "1 run of broken failed", ""]
    assert write_verdict(found).startswith("good beats poor. Runs failed: 1 of 8 of broken.")


def test_results_that_were_seen_earlier_multiply_the_p_values() -> None:
    searches = make_search("good", after=0.9), make_search("poor", after=0.6)
    first, third = (compare_search_runs(searches, seeds=range(8), earlier=earlier) for earlier in ((), (6, 10)))
    assert [each.figures[0].p_value for each in (*first.differences, *third.differences)] == [2 / 2**8, 6 / 2**8]
    assert write_verdict(third).endswith(
        " Results for 6 and 10 seeds were shown before, so p-values are multiplied by 3."
    )
    few = compare_search_runs([replace(each, runs=each.runs[:6]) for each in searches], seeds=range(6), earlier=(10,))
    assert write_verdict(few).startswith(
        "Nothing can be shown with 6 common seeds: even if one search won every time, p would be 0.062. Run at least 7"
    )
    assert write_verdict(few).endswith(" A result for 10 seeds was shown before, so p-values are multiplied by 2.")


def test_runs_that_are_missing_are_counted() -> None:
    found = compare(make_search("a", seeds=3), make_search("b"))
    assert found.notes == ("a: 3 of 8 runs so far",)


@pytest.mark.parametrize("outcome", [None, "interrupted"])
def test_nothing_is_claimed_before_all_runs_have_ended(outcome: Outcome | None) -> None:
    good, poor = make_search("good", calls=100), make_search("poor", after=0.6, calls=200)
    last = () if outcome is None else (replace(poor.runs[7], outcome=outcome),)
    found = compare(good, replace(poor, runs=(*poor.runs[:7], *last)))
    assert found.runs_left == 1
    assert write_verdict(found).startswith("15 of 16 runs have ended. Nothing is claimed before all have")
    sentence = describe_difference(found.differences[0])
    assert sentence.startswith("good and poor: nothing is claimed, because not all runs have ended; score +")
    assert "p = " not in sentence
    assert not any(each.is_shown for each in found.differences[0].figures)


def test_runs_that_the_budget_cut_short_are_counted() -> None:
    search = make_search("a")
    cut = tuple(replace(run, is_cut=run.seed < 5) for run in search.runs)
    found = compare(replace(search, runs=cut), make_search("b"))
    [note] = found.notes
    assert note == (
        "a: the budget cut 5 of 8 runs short, so their costs say what it allows, not what they need; a seed whose "
        "cheaper run was cut short is a tie in costs"
    )
    assert found.figures["a"].cut == 5
    assert '<th class="number">cut by budget</th>' in render_comparison(found)


def test_a_search_that_the_budget_stopped_is_not_said_to_take_less() -> None:
    search = make_search("stopped", calls=100)
    cut = replace(search, runs=tuple(replace(run, is_cut=True) for run in search.runs))
    [difference] = compare(cut, make_search("ended", calls=200)).differences
    calls = difference.figure("calls")
    assert calls is not None
    assert (calls.ties, calls.is_shown) == (8, False)
    [other] = compare(cut, make_search("frugal", calls=50)).differences
    frugal = other.figure("calls")
    assert frugal is not None
    assert (frugal.ties, frugal.is_worse) == (0, True)


def test_three_searches_that_trade_score_for_calls_are_said_to() -> None:
    searches = [make_search(name, after=after, calls=calls) for name, after, calls in TRADES]
    assert write_verdict(compare(*searches)) == (
        "No search is shown to beat another in 8 seeds. "
        "Those that score higher take more; the differences say how much."
    )


def test_a_run_whose_budget_ended_counts_with_the_baseline() -> None:
    search = make_search("a")
    ended = replace(search.runs[0], outcome="budget_ended", is_changed=False, is_tested=False, after=0.4)
    found = compare(replace(search, runs=(ended, *search.runs[1:])), make_search("b"))
    assert found.differences[0].seeds == 8
    assert found.notes == ("a: the budget ended 1 run before the final test; the score is that of the baseline",)


def test_scores_are_those_on_the_test_set_if_it_was_run_for_every_change() -> None:
    searches = [make_search(name) for name in "ab"]
    tested = [
        replace(each, runs=tuple(replace(run, test_before=0.3, test_after=0.7) for run in each.runs))
        for each in searches
    ]
    unchanged = replace(tested[0].runs[0], is_changed=False, test_before=None, test_after=None)
    found = compare(replace(tested[0], runs=(unchanged, *tested[0].runs[1:])), tested[1])
    assert found.basis == "test set"
    assert found.baseline == pytest.approx(0.3)
    assert [found.score(run) for run in found.searches[0].runs[:2]] == pytest.approx([0.3, 0.7])
    partly = compare(tested[0], searches[1])
    assert partly.basis == "final test"
    assert partly.notes[0].startswith("the test set was not run for every changed profile")


def test_without_a_final_test_scores_are_said_to_be_too_high() -> None:
    searches = [make_search(name) for name in "ab"]
    untested = [replace(each, runs=tuple(replace(run, is_tested=False) for run in each.runs)) for each in searches]
    found = compare(*untested)
    assert found.basis == "validation"
    assert found.notes == ("without a final test, scores are those that the search selected by, and so too high",)


def test_dollars_are_compared_if_all_are_known() -> None:
    paid = [make_search(name) for name in "ab"]
    paid = [replace(each, runs=tuple(replace(run, usd=0.01) for run in each.runs)) for each in paid]
    assert compare(*paid).costs == ("usd", "calls")
    partly = replace(paid[0], runs=(replace(paid[0].runs[0], usd=None), *paid[0].runs[1:]))
    assert compare(partly, paid[1]).costs == ("calls",)


def test_the_axis_of_dollars_shows_whole_amounts() -> None:
    curve = tuple(SpentPoint(calls=calls, case_runs=calls, usd=calls / 50_000, score=0.5) for calls in (20, 900))
    paid = replace(make_search("a"), runs=tuple(replace(make_run(seed), usd=0.02, curve=curve) for seed in range(8)))
    page = render_comparison(compare(paid, replace(paid, name="b")))
    assert "$0.0040" in page
    assert "…" not in page


def test_case_runs_are_compared_if_no_model_was_called() -> None:
    silent = [make_search(name) for name in "ab"]
    silent = [replace(each, runs=tuple(replace(run, calls=0) for run in each.runs)) for each in silent]
    assert compare(*silent).costs == ("case_runs",)


def test_a_curve_keeps_the_last_score_of_runs_that_have_ended() -> None:
    runs = [make_run(0, calls=100), make_run(1, calls=200, after=0.6)]
    curve = average_curves(runs, "calls")
    assert [curve[0].spent, curve[0].score.mean] == pytest.approx([20, 0.4])
    assert [curve[-1].spent, curve[-1].score.mean] == pytest.approx([100, 0.75])
    assert curve[6].score.mean == pytest.approx((0.9 + 0.4) / 2)


def test_a_curve_against_unknown_dollars_is_empty() -> None:
    unknown = replace(make_run(0), curve=(SpentPoint(calls=1, case_runs=1, usd=None, score=0.1),))
    assert average_curves([make_run(1), unknown], "usd") == []
    assert average_curves([], "calls") == []


def test_the_page_is_one_file_and_shows_names_as_text(tmp_path: Path) -> None:
    found = compare(make_search("<b>one</b>"), make_search("two", after=0.5))
    path = write_comparison(tmp_path, found)
    page = path.read_text()
    assert "<b>one</b>" not in page
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<script" not in page
    assert page.count("<svg") == 1
    assert "%3Cb%3Eone%3C/b%3E/seed-0/run-0/report.html" in page
    assert "model calls of a run" in page
    stored = orjson.loads((tmp_path / "comparison.json").read_bytes())
    assert stored["verdict"] == write_verdict(found)
    assert stored == orjson.loads(orjson.dumps(comparison_as_json(found)))
    assert stored["searches"][1]["runs"][0]["calls"] == 300


def test_a_loss_is_shown_as_a_positive_number() -> None:
    runs = [make_search(name) for name in "ab"]
    lost = [
        replace(each, runs=tuple(replace(run, before=-0.6, after=-0.25, curve=()) for run in each.runs))
        for each in runs
    ]
    page = render_comparison(compare_search_runs(lost, seeds=range(8), objective="weighted_loss"))
    assert "0.600 → 0.250" in page
    assert '0.250<span class="interval fine muted">0.250 to 0.250</span>' in page
    assert "<svg" not in page


def test_a_comparison_without_runs_can_be_shown() -> None:
    found = compare(make_search("a", seeds=0), make_search("b", seeds=0))
    assert write_verdict(found).startswith("0 of 16 runs have ended")
    assert "not run yet" in render_comparison(found)
