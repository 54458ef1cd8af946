"""Runs with a scorer that has figures, and with a hold-out: what the search sees of them, and what each may claim."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from promptiter.agents.base import RunContext
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.scorer import ScoredProfile, Scorer
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.stop_limits import MaxFailures
from promptiter.profile import Profile
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CaseFinished
from promptiter.runlog.results import RunResult
from tests.engine.test_run_shapes import BOTH, STRUCTURE, carefulness, scored
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries

EIGHT = tuple(f"part-{number}" for number in range(8))


def measure(profile: Profile) -> ScoredProfile:
    """The score, and how long the texts are."""
    score = carefulness(profile)
    length = sum(len(str(profile.value(each, STRUCTURE))) for each in STRUCTURE.surface_ids)
    return ScoredProfile(scores=(score,), figures={"careful": 2 * (score.value or 0.0), "length": length})


async def run(scorer: Any, *candidates: Any, **changes: Any) -> RunResult:
    return await Engine(STRUCTURE, Evaluator(), search=Tries(*candidates)).run(scored(scorer=scorer, **changes))


# Figures


async def test_the_figures_of_a_scorer_are_recorded_and_decide() -> None:
    journal = MemoryJournal()
    policy = Bound("length", "<=", 5000) & FigureGain("careful", tie_breakers=(("lower", "length"),))
    engine = Engine(STRUCTURE, Evaluator(), search=Tries(WORSE, DRAFT, BOTH))
    result = await engine.run(scored(scorer=measure, acceptance=policy), journal=journal)
    decisions = [each.decision for each in result.rounds if each.decision]
    assert [each.accepted for each in decisions] == [False, True, True]
    assert "careful is 1, was 0: better by 1" in decisions[1].reason
    rows = [event.payload.row for event in journal.events if isinstance(event.payload, CaseFinished)]
    assert {"careful", "length"} == {name for row in rows for name in row.figures}
    assert result.baseline is not None
    assert RunResult.from_json(result.to_json()) == result


@pytest.mark.slow
async def test_figures_and_hold_outs_are_the_same_in_other_processes() -> None:
    scorer = Scorer(measure, holdout=carefulness, holdout_cases=("a",))
    expected = await run(scorer, DRAFT, BOTH)
    with ProcessExecutor(workers=2) as executor:
        engine = Engine(STRUCTURE, Evaluator(executor=executor), search=Tries(DRAFT, BOTH))
        assert await engine.run(scored(scorer=scorer)) == expected


async def test_a_row_without_figures_is_written_as_before() -> None:
    journal = MemoryJournal()
    engine = Engine(STRUCTURE, Evaluator(), search=Tries(BOTH))
    result = await engine.run(scored(), journal=journal)
    assert all("figures" not in event.data.get("row", {}) for event in journal.events)
    assert b"figures" not in result.to_json()


async def test_a_bound_comes_before_the_score() -> None:
    result = await run(measure, BOTH, acceptance=Bound("length", "<=", 3) & FigureGain("careful"))
    [decision] = [each.decision for each in result.rounds]
    assert decision is not None
    assert not decision.accepted
    assert "which is not <= 3" in decision.reason


async def test_a_figure_that_the_scorer_does_not_return_is_an_error_before_the_search() -> None:
    with pytest.raises(RunFailedError, match=r"acceptance names 'size', .* the scorer returned careful, length"):
        await run(measure, BOTH, acceptance=Bound("size", "<=", 3))


@pytest.mark.parametrize("value", ["3", None])
async def test_a_figure_that_is_no_number_is_an_error(value: Any) -> None:
    def broken(profile: Profile) -> ScoredProfile:
        return ScoredProfile(scores=(carefulness(profile),), figures={"size": value})

    with pytest.raises(RunFailedError, match="as the figure 'size'; return a finite number"):
        await run(broken, BOTH)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
async def test_a_figure_that_is_not_finite_is_a_crash_of_that_candidate(value: float) -> None:
    def divides(profile: Profile) -> ScoredProfile:
        figures = {"size": value if profile.overrides == DRAFT else 1.0}
        return ScoredProfile(scores=(carefulness(profile),), figures=figures)

    result = await run(divides, DRAFT, BOTH)
    assert [each.decision.accepted for each in result.rounds if each.decision] == [False, True]


# Crashes


def crashes_unless_baseline(profile: Profile) -> ScoredProfile:
    if profile.overrides:
        raise OSError("exit code 1")
    return measure(profile)


@pytest.mark.parametrize(("limit", "rounds"), [(1, 1), (2, 2), (3, 3)])
async def test_a_run_stops_once_so_many_candidates_crashed(limit: int, rounds: int) -> None:
    result = await run(crashes_unless_baseline, WORSE, DRAFT, POLISH, BOTH, stop=MaxFailures(limit), max_rounds=9)
    assert len(result.rounds) == rounds
    assert result.stop is not None
    assert result.stop.reason == "max_failures"
    assert (result.status, result.verdict) == ("succeeded", "no_evidence")


async def test_a_crash_is_a_rejection_and_not_the_end_of_the_run() -> None:
    def fragile(profile: Profile) -> ScoredProfile:
        if profile.overrides == DRAFT:
            raise OSError("exit code 1")
        return measure(profile)

    result = await run(fragile, DRAFT, BOTH, stop=MaxFailures(2), max_rounds=9)
    assert [each.decision.accepted for each in result.rounds if each.decision] == [False, True]


# Hold-outs


def hold_out(cases: tuple[str, ...], *, gain: float, seen: Counter[str] | None = None) -> Scorer:
    """A scorer with a hold-out that improves by `gain` if anything is changed."""

    def score_hidden(profile: Profile, context: RunContext, case: str) -> float:
        if seen is not None:
            seen[f"{case}/{context.repeat}"] += 1
        return 0.5 + gain * bool(profile.overrides)

    return Scorer(carefulness, holdout=score_hidden, holdout_cases=cases)


async def test_enough_cases_of_a_hold_out_show_an_improvement() -> None:
    seen = Counter[str]()
    result = await run(hold_out(EIGHT, gain=0.5, seen=seen), BOTH)
    assert result.verdict == "improved"
    assert seen == {f"{case}/{repeat}": 2 for case in EIGHT for repeat in (0, 1)}  # in the final test only
    assert result.conclusion is not None
    assert (result.conclusion.test_before, result.conclusion.test_after) == (0.5, 1.0)


@pytest.mark.parametrize(("gain", "verdict"), [(0.25, "improved_on_validation"), (0, "improved_on_validation")])
async def test_few_cases_of_a_hold_out_are_run_and_shown(gain: float, verdict: str) -> None:
    seen = Counter[str]()
    result = await run(hold_out(("a", "b"), gain=gain, seen=seen), BOTH)
    assert result.verdict == verdict
    assert sum(seen.values()) == 8
    assert result.conclusion is not None
    assert result.conclusion.obstacle == "2 cases cannot decide about new cases; give at least 8"
    figures = f"the hold-out, which the search never saw, is {0.5 + gain:.3f}, was 0.500"
    assert figures in result.conclusion.reasons


@pytest.mark.parametrize("cases", [(), ("a", "b"), EIGHT], ids=["one", "few", "enough to show a gain"])
async def test_a_lower_mean_of_a_hold_out_is_a_risk_of_overfitting(cases: tuple[str, ...]) -> None:
    result = await run(hold_out(cases, gain=-0.1), BOTH)
    assert result.verdict == "overfit_risk"
    assert not result.accepted_profile.overrides
    assert result.conclusion is not None
    assert any("is 0.400, was 0.500: it got worse, so the gain may be" in each for each in result.conclusion.reasons)


async def test_a_hold_out_that_crashes_under_the_candidate_only_is_a_risk_of_overfitting() -> None:
    def hidden(profile: Profile) -> float:
        if profile.overrides:
            raise OSError("exit code 1")
        return 0.5

    assert (await run(Scorer(carefulness, holdout=hidden), BOTH)).verdict == "overfit_risk"


async def test_a_hold_out_that_always_crashes_shows_nothing() -> None:
    def hidden(_profile: Profile) -> float:
        raise OSError("exit code 1")

    result = await run(Scorer(carefulness, holdout=hidden), BOTH)
    assert result.verdict == "improved_on_validation"


async def test_without_a_hold_out_a_gain_is_one_on_validation_at_most() -> None:
    assert (await run(carefulness, BOTH)).verdict == "improved_on_validation"


async def test_a_search_may_not_run_the_hold_out() -> None:
    class Peeks:
        async def search(self, session: Any) -> None:
            [*_] = [session.train]
            cases = hold_out(("a",), gain=0.1).holdout_set
            await session.evaluate(cases, session.accepted.profile, phase="peek")

    engine = Engine(STRUCTURE, Evaluator(), search=Peeks())
    with pytest.raises(RunFailedError, match="a search may not run test cases"):
        await engine.run(scored(scorer=hold_out(("a",), gain=0.1)))


async def test_the_hold_out_is_reserved_from_the_metric_calls() -> None:
    scorer = hold_out(("a", "b"), gain=0.1)
    checked = Engine(STRUCTURE, Evaluator(), search=Tries(BOTH)).check(scored(scorer=scorer, max_metric_calls=9))
    assert checked.count_metric_calls().reserved == 6
    assert [case.id for case in checked.test.cases] == ["a", "b"] if checked.test else False


async def test_a_hold_out_gets_the_case_by_name_or_as_its_third_argument() -> None:
    seen: list[Any] = []

    def by_name(_profile: Profile, *, case: str) -> float:
        seen.append(case)
        return 0.5

    def by_name_with_context(_profile: Profile, context: RunContext, case: str) -> float:
        seen.append((context.repeat, case))
        return 0.5

    def by_place(_profile: Profile, context: RunContext, name: str) -> float:
        seen.append((context.case_id, name))
        return 0.5

    def without(_profile: Profile) -> float:
        return 0.5

    for each in (by_name, by_name_with_context, by_place, without):
        scorer = Scorer(carefulness, holdout=each, holdout_cases=("a",))
        await scorer.score(Profile.baseline(STRUCTURE), RunContext(case_id="a", repeat=3))
    assert seen == ["a", (3, "a"), ("a", "a")]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"holdout": 0.5}, r"the hold-out of a scorer is 0\.5; give a function"),
        ({"holdout_cases": ("a",)}, "has `holdout_cases`, and no hold-out"),
        ({"holdout": carefulness, "holdout_cases": "a"}, "the cases of a hold-out are 'a'; give a tuple"),
        ({"holdout": carefulness, "holdout_cases": ("a", "a")}, "give each its own name"),
        ({"holdout": carefulness, "holdout_cases": ("scorer",)}, "give each its own name"),
    ],
)
def test_a_hold_out_is_checked_when_it_is_made(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        Scorer(carefulness, **options)


async def test_a_killed_run_with_a_hold_out_resumes_with_the_same_result() -> None:
    request = scored(scorer=hold_out(("a", "b"), gain=0.25), stop=MaxFailures(3))
    whole = MemoryJournal()

    def make() -> Engine:
        return Engine(STRUCTURE, Evaluator(), search=Tries(DRAFT, BOTH))

    expected = await make().run(request, journal=whole)
    for count in range(1, len(list(whole.events))):
        journal = MemoryJournal()
        for event in list(whole.events)[:count]:
            await journal.append(event)
        assert await make().run(request, journal=journal) == expected


def test_a_request_with_a_hold_out_is_a_run_request() -> None:
    assert RunRequest(scorer=hold_out(EIGHT, gain=0.1)).test is None
