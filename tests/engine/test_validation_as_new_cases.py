"""Validation cases may speak for new cases if nothing but decisions reached the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.review import Review, ReviewRequest
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.stats.validation_use import ValidationUse
from promptiter.policies.acceptance import MinGain
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import MaxRounds, Patience, TargetScore
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.case_uses import MemoryCaseUses
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from tests.worlds import desk, desk_stages
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries

BOTH = {**DRAFT, **POLISH}


def request(*, cases: int = 12, **changes: object) -> RunRequest:
    values: dict[str, object] = {
        "validation": desk.eval_set("validation", cases),
        "stop": MaxRounds(9),
        "max_rounds": 9,
        "final_test": FinalTest(ablate=False),
    }
    return desk.request(**(values | changes))


def find_use(result: RunResult) -> ValidationUse:
    assert result.conclusion is not None
    assert result.conclusion.validation_use is not None
    return result.conclusion.validation_use


def reasons(result: RunResult) -> str:
    assert result.conclusion is not None
    return "\n".join(result.conclusion.reasons)


@pytest.mark.slow
async def test_a_large_gain_is_shown_for_new_cases_without_a_test_set() -> None:
    result = await desk.engine(BOTH).run(request())
    assert (result.verdict, result.scope, result.is_shown_for_new_cases) == ("improved", "new cases", True)
    assert result.conclusion is not None
    on_validation, on_new_cases = result.conclusion.results
    assert on_validation.is_shown, "it presupposes the gain on these cases"
    assert [look.alpha for look in on_new_cases.looks] == [pytest.approx(0.05 / 4)]
    assert on_new_cases.looks[0].repeats == 2, "without run noise, more repeats would change nothing"
    [runs] = result.conclusion.runs
    assert (runs.scope, runs.before.runs, runs.after.runs) == ("these cases", 2 * 12, 2 * 12)
    learned = "of the validation cases the search knows only decisions (1 accepted, 0 rejected)"
    assert f"{learned}, so they count as new, with p <= 0.013 instead of 0.05" in reasons(result)


async def test_too_few_improved_cases_show_the_gain_on_these_cases_only() -> None:
    journal = MemoryJournal()
    result = await desk.engine(BOTH).run(request(cases=8, alpha=0.01), journal=journal)
    assert (result.verdict, result.scope) == ("improved_on_validation", "these cases")
    assert result.conclusion is not None
    assert [each.outcome for each in result.conclusion.results] == ["shown", "not_shown"]
    assert max(look.repeats for look in result.conclusion.results[1].looks) == 2, "more repeats would change nothing"
    few = "8 validation cases, which the search selected on, are too few for a gain of this size"
    assert result.conclusion.obstacle == f"{few}; give a test set (`test`) of 8 cases or more"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "bits"), [(None, 1), (TargetScore(1.0), 1), (Patience(3), 0), (MaxRounds(2) & TargetScore(0.9), 1)]
)
async def test_a_stop_policy_that_looks_at_the_score_costs_a_bit_after_an_acceptance(stop: Any, bits: int) -> None:
    result = await desk.engine(WORSE, BOTH).run(request(stop=stop, acceptance=MinGain(0.1)))
    assert find_use(result) == ValidationUse(accepted=1, rejected=1, stops_by_score=bits)


@pytest.mark.slow
async def test_after_the_last_round_no_score_is_read_and_a_single_decision_costs_a_bit() -> None:
    result = await desk.engine(BOTH).run(request(stop=TargetScore(1.0), max_rounds=1))
    assert find_use(result) == ValidationUse(acceptance_share=1 / 2, accepted=1)


@pytest.mark.slow
async def test_a_search_that_ends_by_itself_is_told_nothing_by_a_stop_policy() -> None:
    class Once:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            patches = (SurfacePatch(surface_id=name, value=text, reason="try") for name, text in BOTH.items())
            await session.validate(PatchSet(tuple(patches)))
            await session.complete_round()

    result = await desk.engine(search=Once()).run(request(stop=TargetScore(1.0)))
    assert find_use(result) == ValidationUse(accepted=1)


@pytest.mark.slow
async def test_candidates_that_never_ran_on_validation_cost_nothing() -> None:
    class Rejects(Tries):
        async def search(self, session: Session) -> None:
            await session.begin_round()
            await session.validate(session.baseline.profile)
            patch = SurfacePatch(surface_id="draft#instruction", value="No.", reason="try")
            await session.reject(PatchSet((patch,)), "no")
            await session.skip_round("nothing to try")
            await session.complete_round()
            await super().search(session)

    result = await desk.engine(search=Rejects(BOTH)).run(request())
    assert find_use(result) == ValidationUse(accepted=1)


class Reads(Tries):
    async def search(self, session: Session) -> None:
        found = await session.read_validation()
        assert found.accepted.mean_score == 0.0
        assert len(found.eval_set.cases) == 12
        await super().search(session)


async def test_a_search_that_reads_validation_shows_nothing_for_new_cases() -> None:
    result = await desk.engine(search=Reads(BOTH)).run(request())
    assert (result.verdict, result.scope) == ("improved_on_validation", "these cases")
    assert "not shown for new cases: the search reads results of the validation cases; give a test set" in reasons(
        result
    )


class Approves:
    async def review(self, _: ReviewRequest) -> Review:
        return Review(action="approve")


async def test_a_reviewer_may_have_seen_validation_results() -> None:
    result = await desk_stages.engine().run(request(stop=None), reviewer=Approves())
    assert (result.verdict, result.scope) == ("improved_on_validation", "these cases")
    assert "patches are reviewed by someone who may see results of the validation cases" in reasons(result)


async def cut(journal: MemoryJournal, end: int) -> MemoryJournal:
    """The journal of a run that was killed after some events."""
    found = MemoryJournal()
    for event in journal.events[:end]:
        await found.append(event)
    return found


@pytest.mark.slow
async def test_a_reviewer_may_join_a_run_that_is_resumed() -> None:
    asked, whole = request(cases=8, stop=None, alpha=0.2), MemoryJournal()
    assert (await desk_stages.engine().run(asked, journal=whole)).verdict == "improved"
    events = [event.type for event in whole.events]
    end = events.index("patches")
    journal = await cut(whole, end)
    result = await desk_stages.engine().run(asked, reviewer=Approves(), journal=journal)
    assert "patches are reviewed by someone who may see results of the validation cases" in reasons(result)
    assert journal.events[end].type == "validation_read"
    again = await desk_stages.engine().run(asked, journal=await cut(journal, len(journal.events) - 9))
    assert again.conclusion == result.conclusion, "also if it is resumed once more, without a reviewer"
    over = await cut(whole, events.index("final_test_begun"))
    assert (await desk_stages.engine().run(asked, reviewer=Approves(), journal=over)).verdict == "improved"


@pytest.mark.slow
async def test_a_search_may_read_validation_in_a_run_that_a_reviewer_joins() -> None:
    asked, whole = request(), MemoryJournal()
    await desk.engine(search=Reads(BOTH)).run(asked, journal=whole)
    read = next(event.seq for event in whole.events if event.type == "validation_read")
    for end in (read, read + 1):
        journal = await cut(whole, end)
        result = await desk.engine(search=Reads(BOTH)).run(asked, journal=journal, reviewer=Approves())
        assert "the search reads results of the validation cases" in reasons(result)
        again = await desk.engine(search=Reads(BOTH)).run(asked, journal=await cut(journal, len(journal.events) - 9))
        assert again.conclusion == result.conclusion


@pytest.mark.slow
async def test_with_a_test_set_a_search_may_read_validation() -> None:
    result = await desk.engine(search=Reads(BOTH)).run(request(test=desk.eval_set("held-out", 8)))
    assert (result.verdict, result.scope) == ("improved", "new cases")


def repeat_inputs(name: str, *, inputs: int, count: int = 24) -> EvalSet:
    """An eval set of different cases with the same inputs."""
    asked = desk.eval_set(name, inputs).cases
    return EvalSet(id=name, cases=tuple(replace(asked[n % inputs], id=f"{name}-{n}") for n in range(count)))


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "verdict"), [(7, "improved_on_validation"), (12, "improved")])
async def test_validation_cases_with_the_same_input_count_as_one(inputs: int, verdict: str) -> None:
    result = await desk.engine(BOTH).run(request(validation=repeat_inputs("validation", inputs=inputs)))
    assert result.verdict == verdict
    assert f"24 cases with {inputs} different inputs count as {inputs}" in reasons(result)


@pytest.mark.slow
@pytest.mark.parametrize(("inputs", "verdict"), [(7, "improved_on_validation"), (8, "improved")])
async def test_test_cases_with_the_same_input_count_as_one(inputs: int, verdict: str) -> None:
    asked = request(cases=7, test=repeat_inputs("held-out", inputs=inputs))
    result = await desk.engine(BOTH).run(asked)
    assert result.verdict == verdict
    few = "the test set was not run: 7 cases cannot decide about new cases; give at least 8; 24 cases with 7 different"
    assert (few in reasons(result)) == (inputs == 7)
    assert ("8 cases or more (this one has 24 with 7 different inputs)" in reasons(result)) == (inputs == 7)
    assert f"24 cases with {inputs} different inputs count as {inputs}" in reasons(result)


@pytest.mark.slow
async def test_only_the_first_run_on_validation_cases_speaks_for_new_ones() -> None:
    engine = desk.engine(BOTH, case_uses=MemoryCaseUses())
    first, second = [await engine.run(request()) for _ in range(2)]
    assert (first.verdict, second.verdict) == ("improved", "improved_on_validation")
    assert "the validation cases were used before this run; give a test set" in reasons(second)
    other = await engine.run(request(train=desk.eval_set("other", 3), validation=desk.eval_set("train", 3)))
    assert "the validation cases were used before this run" in reasons(other), "they were train cases before"


@pytest.mark.slow
async def test_cases_that_the_search_learned_from_never_speak_for_new_ones() -> None:
    asked = replace(request(), train=None, validation=None, cases=desk.eval_set("cases", 12))
    result = await desk.engine(BOTH).run(asked)
    assert (result.verdict, result.scope) == ("improved_on_validation", "these cases")


@pytest.mark.slow
async def test_the_default_search_learns_only_decisions() -> None:
    journal = MemoryJournal()
    result = await desk_stages.engine().run(request(stop=None), journal=journal)
    assert result.verdict == "improved"
    assert "validation_read" not in {event.type for event in journal.events}


@pytest.mark.slow
async def test_a_run_killed_anywhere_resumes_to_the_same_verdict() -> None:
    def engine() -> Engine:
        return desk.engine(WORSE, BOTH)

    whole, asked = MemoryJournal(), request(cases=8, stop=None, acceptance=MinGain(0.1), alpha=0.2)
    expected = await engine().run(asked, journal=whole)
    assert expected.verdict == "improved"
    assert fold(whole.events) == expected
    for count in range(1, len(whole.events), 11):
        journal = MemoryJournal()
        for event in whole.events[:count]:
            await journal.append(event)
        assert await engine().run(asked, journal=journal) == expected
