from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, get_args

import pytest

from promptiter.backprop.iteration_record import Iteration, get_iteration, get_reflection
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.backprop.record import get_passes
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.request import RunRequest
from promptiter.engine.review import Review, ReviewRequest
from promptiter.engine.run import RunFailedError
from promptiter.errors import SetupError
from promptiter.llm.budget import Budget
from promptiter.observers.progress_state import ProgressState
from promptiter.policies.stopping import TargetScore
from promptiter.profile import Profile
from promptiter.registry import SEARCHES
from promptiter.runlog.events import Event
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.iteration_rows import list_iterations
from promptiter.runs.summary import summarize
from promptiter.search.gepa import GepaSearch
from promptiter.search.gepa_library import CandidateSelection, FrontierType, ModuleSelector
from tests.worlds import desk_stages
from tests.worlds.two_cares import (
    EDITOR,
    Editor,
    add_care,
    build_engine,
    build_request,
    eval_set,
    is_fair,
    read_current,
)


def search(**options: Any) -> GepaSearch:
    return GepaSearch(desk_stages.Blames(), desk_stages.Merges(), reflection_model=EDITOR, seed=0, **options)


def iterations(result: RunResult) -> list[Iteration]:
    found = [get_iteration(each) for each in result.rounds]
    assert all(each is not None for each in found)
    return [each for each in found if each is not None]


async def test_an_iteration_is_a_round_with_its_candidate_and_its_facts() -> None:
    result = await build_engine(search(), Editor()).run(build_request())
    assert (result.baseline_score, result.accepted_score, result.stop_reason) == (0.5, 1.0, "target_score")
    first, last = iterations(result)[0], iterations(result)[-1]
    assert (first.kind, first.parents, first.components) == ("reflective", (0,), ("draft#instruction",))
    assert len(first.minibatch) == len(first.parent_scores[0]) == len(first.candidate_scores) == 3
    assert (last.is_best, last.validation_score, last.pool_number) == (True, 1.0, 2)
    assert set(last.validation_scores.values()) == {1.0}
    assert len(last.validation_scores) == 6
    [child] = result.rounds[-1].candidates
    assert child.profile.digest == last.candidate
    assert child.decision is not None
    assert child.decision.accepted
    assert child.parents == (result.rounds[0].candidates[0].profile.digest,)
    assert get_reflection(result.rounds[0]).calls == 1
    assert get_reflection(result.rounds[0]).input_tokens == 100


async def test_no_case_is_run_twice_under_a_candidate() -> None:
    result = await build_engine(search(), Editor()).run(build_request())
    runs = [
        (each.profile_digest, row.case_id, row.repeat)
        for done in result.rounds
        for each in done.all_evaluations
        for row in each.rows
        if row.origin != "kept"
    ]
    assert len(runs) == len(set(runs))
    assert result.measured.case_runs == len(runs) + 6  # with those of the baseline


async def test_the_search_reads_validation_so_the_gain_is_shown_for_these_cases_at_most() -> None:
    request = build_request(final_test=RunRequest(train=eval_set("a", 1)).final_test)
    result = await build_engine(search()).run(request)
    assert result.verdict == "improved_on_validation"


@pytest.mark.parametrize("selector", get_args(ModuleSelector))
async def test_each_module_selector_finds_both_instructions(selector: str) -> None:
    result = await build_engine(search(module_selector=selector)).run(build_request())
    assert result.accepted_score == 1.0
    sizes = {len(each.components) for each in iterations(result)}
    assert sizes == {"all": {2}, "blame": {2}}.get(selector, {1})


@pytest.mark.parametrize("strategy", get_args(CandidateSelection))
async def test_each_strategy_selects_parents(strategy: str) -> None:
    chosen = search(candidate_selection_strategy=strategy)
    result = await build_engine(chosen).run(build_request(max_rounds=16))
    assert result.accepted_score == 1.0


@pytest.mark.parametrize("frontier", get_args(FrontierType))
async def test_each_frontier_keeps_what_leads_to_the_best(frontier: str) -> None:
    result = await build_engine(search(frontier_type=frontier)).run(build_request(max_rounds=16))
    assert result.accepted_score == 1.0


async def test_a_merge_has_two_parents_and_joins_what_each_does_best() -> None:
    merging = search(use_merge=True, merge_val_overlap_floor=2)
    merging.seed = 3
    result = await build_engine(merging, second=is_fair).run(build_request(max_rounds=10))
    [found] = [each for each in result.rounds if (one := get_iteration(each)) and one.kind == "merge"]
    iteration = get_iteration(found)
    assert iteration is not None
    assert (iteration.validation_score, result.accepted_score) == (1.0, 1.0)
    assert len(iteration.parents) == len(iteration.parent_scores) == 2
    [candidate] = found.candidates
    assert len(candidate.parents) == 2
    assert len(iteration.candidate_scores) == len(iteration.minibatch) == 5


async def test_a_minibatch_with_perfect_scores_is_skipped_with_the_reason() -> None:
    editor = Editor(lambda prompt: add_care(prompt) if read_current(prompt) == "Draft." else f"Try {len(prompt)}.")
    result = await build_engine(search(reflection_minibatch_size=1), editor).run(build_request())
    skipped = [each for each in result.rounds if each.skipped]
    assert skipped
    assert skipped[-1].skipped == "every case of the mini-batch has a perfect score"
    assert not skipped[-1].candidates


async def test_a_child_that_is_no_better_on_the_minibatch_is_rejected_and_recorded() -> None:
    result = await build_engine(search(), Editor(lambda prompt: f"Shout {len(prompt)}!")).run(
        build_request(max_rounds=2)
    )
    [candidate] = result.rounds[0].candidates
    assert candidate.decision is not None
    assert "no better on the mini-batch" in candidate.decision.reason
    assert not result.changes


async def test_a_failed_reflection_is_reported_and_the_run_goes_on() -> None:
    editor = Editor(failures=4)  # the first answer, and its repairs
    result = await build_engine(search(), editor).run(build_request())
    assert result.accepted_score == 1.0
    assert "the reflection failed: draft#instruction: " in iterations(result)[0].error
    assert any("the reflection failed: draft#instruction: " in each for each in result.problems)
    assert "no usable answer" in result.rounds[0].skipped


async def test_a_run_fails_if_every_reflection_fails() -> None:
    with pytest.raises(RunFailedError, match="all of 3 reflections failed"):
        await build_engine(search(), Editor(failures=100)).run(build_request())


async def test_a_text_that_copies_a_case_is_refused_with_the_reason() -> None:
    leak = Editor(lambda _: "Be careful with two tickets to Oslo on the ninth, and the green door at number forty.")
    result = await build_engine(search(), leak).run(build_request(max_rounds=2))
    assert not any(each.candidates for each in result.rounds)
    assert all("draft#instruction" in each.skipped or "polish#instruction" in each.skipped for each in result.rounds)


async def test_a_search_that_proposes_nothing_ends_however_many_rounds_it_has() -> None:
    leak = Editor(lambda _: "Be careful with two tickets to Oslo on the ninth, and the green door at number forty.")
    result = await build_engine(search(), leak).run(build_request(max_rounds=1_000))
    assert len(result.rounds) == 10
    assert result.rounds[-1].notes[-1].data == {"reason": "nothing_proposed"}


async def test_the_budget_is_never_crossed_and_leaves_the_iteration_undecided() -> None:
    for calls in range(14, 60, 5):
        engine = build_engine(search(), budget=Budget(max_calls=calls))
        result = await engine.run(build_request())
        assert result.measured.spent.total.calls <= calls
        if result.stop_reason == "max_calls":
            assert get_iteration(result.rounds[-1]) is None


async def test_the_result_does_not_depend_on_concurrency() -> None:
    found = []
    for concurrency in (1, 8):
        journal = MemoryJournal()
        engine = build_engine(search(module_selector="all", use_merge=True), concurrency=concurrency)
        found.append((await engine.run(build_request(), journal=journal), journal))
    assert found[0][0] == found[1][0]


@pytest.mark.long
async def test_a_run_resumes_from_every_event_with_the_same_result() -> None:
    whole = MemoryJournal()
    options = {"module_selector": "blame", "use_merge": True, "merge_val_overlap_floor": 2}
    expected = await build_engine(search(**options)).run(build_request(max_rounds=3), journal=whole)
    for count in range(1, len(whole.events)):
        journal = MemoryJournal()
        for event in whole.events[:count]:
            await journal.append(event)
        resumed = await build_engine(search(**options)).run(build_request(max_rounds=3), journal=journal)
        assert resumed == expected
        assert [each.type for each in journal.events] == [each.type for each in whole.events]


async def test_without_a_model_the_stages_write_the_texts() -> None:
    offline = GepaSearch(
        desk_stages.Blames(), desk_stages.Merges(), desk_stages.Writes(), module_selector="blame", seed=0
    )
    result = await build_engine(offline).run(build_request())
    assert result.accepted_score == 1.0
    assert iterations(result)[0].components == ("draft#instruction", "polish#instruction")


async def test_the_calls_of_the_stages_are_those_of_the_reflection() -> None:
    staged = GepaSearch(desk_stages.Blames(), desk_stages.Merges(), LLMOptimizer(EDITOR), module_selector="all", seed=0)
    journal = MemoryJournal()
    result = await build_engine(staged).run(build_request(), journal=journal)
    found = [get_reflection(each) for each in result.rounds]
    assert found[0].calls == 2, "one for each instruction"
    assert found[0].input_tokens == 200
    assert sum(each.calls for each in found) == result.measured.spent.by_role()["optimizer"].calls
    again = await build_engine(staged).run(build_request(), journal=journal)
    assert [get_reflection(each) for each in again.rounds] == found


async def test_progress_says_whose_scores_those_of_a_mini_batch_are() -> None:
    journal, state = MemoryJournal(), ProgressState()
    await build_engine(search()).run(build_request(max_rounds=1), journal=journal)
    lines = [line.text.plain for event in journal.events for line in state.update(event)]
    assert lines[2:6] == [
        "mini-batch with the parent: 0.500, 0/3 pass",
        "new texts: draft#instruction",
        "mini-batch with the candidate: 0.667, 1/3 pass",
        "validation, for the frontier: 0.750, 3/6 pass",
    ]


async def test_one_set_of_cases_serves_for_both() -> None:
    request = RunRequest(cases=eval_set("cases", 6), final_test=None, max_rounds=6, stop=TargetScore(1.0), run_id="r")
    result = await build_engine(search()).run(request)
    assert result.accepted_score == 1.0


async def test_a_scorer_is_one_case() -> None:
    def count(profile: Profile) -> float:
        return sum("careful" in str(each) for each in profile.overrides.values()) / 2

    request = RunRequest(scorer=count, final_test=None, max_rounds=6, stop=TargetScore(1.0), run_id="r")
    result = await build_engine(search()).run(request)
    assert result.accepted_score == 1.0


async def test_repeats_of_a_minibatch_are_new_without_the_cache() -> None:
    result = await build_engine(search(cache_evaluation=False)).run(build_request(max_rounds=3))
    rows = [
        row for each in result.rounds for one in each.all_evaluations for row in one.rows if "minibatch" in one.phase
    ]
    assert min(row.repeat for row in rows) > 0
    assert all(row.origin != "kept" for row in rows)


async def test_limits_and_callbacks_of_gepa_end_the_search() -> None:
    class Enough:
        reason = "seen_enough"

        def __call__(self, state: Any) -> bool:
            return int(state.i) >= 1

    class Counts:
        def __init__(self) -> None:
            self.ended = 0

        def on_iteration_end(self, event: Mapping[str, Any]) -> None:
            self.ended += "iteration" in event

    counts = Counts()
    for options, rounds, reason in (
        ({"max_candidate_proposals": 3}, 3, "max_candidate_proposals"),
        ({"max_tracked_candidates": 2}, 1, "max_tracked_candidates"),
        ({"extra_stop_callbacks": [Enough()], "extra_callbacks": [counts]}, 2, "seen_enough"),
    ):
        editor = Editor() if "max_tracked_candidates" in options else Editor(lambda prompt: f"Try {len(prompt)}.")
        result = await build_engine(search(**options), editor).run(build_request())
        assert len(result.rounds) == rounds
        assert [each.data for each in result.rounds[-1].notes if each.type == "search_stop"][-1] == {"reason": reason}
    assert counts.ended == 2


async def test_earlier_answers_to_a_case_are_shown() -> None:
    shown = {}
    for top_k in (0, 2):
        editor = Editor(lambda prompt: f"Try {len(prompt)}.")
        await build_engine(search(reflection_history_top_k=top_k), editor).run(build_request(max_rounds=4))
        shown[top_k] = any("best response so far" in each for each in editor.prompts)
    assert shown == {0: False, 2: True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"module_selector": "best"}, "module_selector is 'best'; give 'round_robin', 'all', 'random', 'blame'"),
        ({"frontier_type": "case"}, "frontier_type is 'case'"),
        ({"candidate_selection_strategy": "x"}, "candidate_selection_strategy is 'x'"),
        ({"reflection_history_top_k": 6}, "reflection_history_top_k is 6; give a number from 0 to 5"),
        ({"reflection_minibatch_size": 0}, "reflection_minibatch_size"),
        ({"perfect_score": "1"}, "perfect_score is '1'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        search(**options)


def test_options_of_a_model_need_a_model() -> None:
    with pytest.raises(SetupError, match="reflection_options are those of a reflection_model"):
        GepaSearch(reflection_options={"temperature": 0.5})


def test_both_names_are_registered() -> None:
    assert SEARCHES.get("gepa") is SEARCHES.get("gepa_reflective") is GepaSearch


async def test_a_run_whose_budget_ended_continues_with_a_larger_one() -> None:
    expected = await build_engine(search()).run(build_request())
    journal = MemoryJournal()
    small = await build_engine(search(), budget=Budget(max_calls=40)).run(build_request(), journal=journal)
    assert small.stop_reason == "max_calls"
    resumed = await build_engine(search(), budget=Budget(max_calls=4_000)).run(build_request(), journal=journal)
    assert resumed.accepted_profile == expected.accepted_profile
    assert [get_iteration(each) for each in resumed.rounds] == [get_iteration(each) for each in expected.rounds]


async def test_patches_of_the_stages_are_reviewed() -> None:
    class Vetoes:
        async def review(self, request: ReviewRequest) -> Review:
            return Review(action="veto", reason=f"not {request.surface.id}")

    stages = GepaSearch(desk_stages.Blames(), desk_stages.Merges(), desk_stages.Writes(), module_selector="blame")
    result = await build_engine(stages).run(build_request(max_rounds=1), reviewer=Vetoes())
    assert "vetoed in review: not draft#instruction" in result.rounds[0].skipped


async def test_texts_of_a_model_are_reviewed() -> None:
    class Edits:
        async def review(self, request: ReviewRequest) -> Review:
            assert request.signal.text == "a reflection on 3 cases"
            return Review(action="edit", value=f"{request.surface.value} Be careful and calm.", reason="calmer")

    result = await build_engine(search()).run(build_request(), reviewer=Edits())
    assert {change.after for change in result.changes} == {
        "Draft. Be careful and calm.",
        "Polish. Be careful and calm.",
    }


async def test_the_iterations_are_in_result_json() -> None:
    result = await build_engine(search(module_selector="blame")).run(build_request(max_rounds=2))
    read = RunResult.from_json(result.to_json())
    assert [get_iteration(each) for each in read.rounds] == iterations(result)
    assert get_reflection(read.rounds[0]) == get_reflection(result.rounds[0])
    assert [len(get_passes(each)) for each in read.rounds] == [1] * len(result.rounds)


async def test_a_cancelled_run_ends_its_thread_and_resumes() -> None:
    class Cancels:
        async def observe(self, event: Event) -> None:
            if event.seq == 40:
                task.cancel()

    expected = await build_engine(search()).run(build_request())
    journal = MemoryJournal()
    task = asyncio.create_task(build_engine(search()).run(build_request(), journal=journal, observers=[Cancels()]))
    with pytest.raises(asyncio.CancelledError):
        await task
    resumed = await build_engine(search()).run(build_request(), journal=journal)
    assert resumed == expected


@pytest.mark.parametrize(
    ("phase", "outcome", "reason"),
    [
        ("minibatch", "no candidate", "ended before a candidate was proposed"),
        ("child_minibatch", "undecided", "ended before a decision"),
        ("frontier", "undecided", "ended before a decision"),
    ],
)
async def test_a_run_that_is_stopped_in_the_middle_of_an_iteration_leaves_it_open_and_resumes(
    phase: str, outcome: str, reason: str
) -> None:
    class Stops:
        async def observe(self, event: Event) -> None:
            if event.phase == phase and event.round == 2:
                interrupt.stop("a button")

    interrupt, journal = Interrupt(), MemoryJournal()
    expected = await build_engine(search()).run(build_request())
    stopped = await build_engine(search()).run(
        build_request(), journal=journal, observers=[Stops()], interrupt=interrupt
    )
    assert (stopped.status, stopped.verdict, stopped.stop_reason) == ("succeeded", "no_evidence", "user_stop")
    assert not stopped.is_final
    assert [get_iteration(each) is None for each in stopped.rounds] == [False, True]
    *_, last = list_iterations(summarize(stopped))
    assert (last.outcome, last.reason) == (outcome, reason)
    assert await build_engine(search()).run(build_request(), journal=journal) == expected


async def test_the_answers_of_stop_callbacks_are_recorded() -> None:
    class Third:
        def __init__(self) -> None:
            self.asked = 0

        def __call__(self, state: Any) -> bool:
            self.asked += state is not None
            return self.asked == 3

    whole = MemoryJournal()
    tries = Editor(lambda prompt: f"Try {len(prompt)}.")
    expected = await build_engine(search(extra_stop_callbacks=[Third()]), tries).run(build_request(), journal=whole)
    journal = MemoryJournal()
    for event in whole.events[:-2]:
        await journal.append(event)
    again = Third()
    resumed = await build_engine(search(extra_stop_callbacks=[again]), tries).run(build_request(), journal=journal)
    assert resumed == expected
    assert again.asked == 0
