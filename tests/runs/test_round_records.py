from __future__ import annotations

from dataclasses import replace

import pytest

from promptiter.policies.stop_decision import STOP_KINDS, StopDecision, StopReason
from promptiter.policies.stopping import Patience
from promptiter.runlog.results import RunResult
from promptiter.runs.optimize_result import OptimizeResult
from promptiter.runs.round_records import (
    LATER_PHASES,
    RoundTimes,
    build_result,
    find_status,
    find_stop_reason,
    name_prompts,
)
from tests.worlds import desk

NAMES = {"draft#instruction": "draft", "polish#instruction": "polish"}


async def run(*rounds: dict[str, str]) -> tuple[RunResult, OptimizeResult]:
    watcher = desk.Watcher()
    request = desk.request(final_test=None, objective="pass_rate", max_metric_calls=40, stop=Patience(2))
    result = await desk.engine(*rounds).run(request, observers=[watcher])
    times = RoundTimes.read(watcher.events)
    return result, build_result(result, algorithm="tries", names=name_prompts(result), times=times, budget=40)


async def test_each_round_has_its_prompts_decision_validation_and_budget() -> None:
    _, found = await run(desk.DRAFT | desk.POLISH, desk.WORSE)
    first, second = found.rounds
    assert (first.accepted, first.optimized_field_names, first.failed_case_ids) == (True, ["draft", "polish"], [])
    assert first.candidate_prompts == {"draft": "Draft with care: careful.", "polish": "Polish: careful."}
    assert first.per_field_diagnosis == {"draft": "tried", "polish": "tried"}
    assert (first.validation_pass_rate, first.metric_breakdown) == (1.0, {"careful": 1.0})
    assert (second.accepted, second.optimized_field_names) == (False, ["draft"])
    assert second.failed_case_ids == ["validation-0", "validation-1"]
    assert (first.train_minibatch_size, first.train_subsample_parent_score) == (3, 0.0)
    assert (second.train_subsample_parent_score, second.train_subsample_candidate_score) == (1.0, None)
    assert [each.budget_total for each in found.rounds] == [40, 40]
    assert 2 < first.budget_used < second.budget_used == found.total_metric_calls  # type: ignore[operator]


async def test_the_result_has_the_accepted_prompts_and_counts_rounds() -> None:
    result, found = await run(desk.DRAFT | desk.POLISH, desk.WORSE)
    assert (found.status, found.finish_reason, found.verdict) == ("SUCCEEDED", "perfect_pass_rate", result.verdict)
    assert (found.total_rounds, found.rounds_accepted, found.merge_rounds_total, found.proposals_total) == (2, 1, 0, 2)
    assert found.baseline_prompts == {"draft": "Draft.", "polish": "Polish."}
    assert found.best_prompts == found.rounds[0].candidate_prompts
    assert found.best_metric_breakdown == {"careful": 1.0}
    assert found.per_metric_best_candidates == {}, "the search keeps no pool"
    assert found.total_reflection_lm_calls == 0, "calls of the agent are not calls of the search"
    assert found.started_at <= found.rounds[0].started_at <= found.finished_at


async def test_a_failed_run_returns_the_baseline_without_a_stop_reason() -> None:
    result, _ = await run(desk.DRAFT)
    failed = replace(result, status="failed", error="the disk is full")
    found = build_result(failed, algorithm="tries", names=NAMES, times=RoundTimes())
    assert (found.status, found.finish_reason, found.stop_reason) == ("FAILED", "error", None)
    assert (found.error_message, found.best_prompts) == ("the disk is full", found.baseline_prompts)


async def test_a_run_that_the_user_stopped_is_canceled_until_it_is_resumed() -> None:
    result, _ = await run(desk.DRAFT)
    stop = StopDecision(stop=True, reasons=(StopReason("user_stop", "Ctrl-C"),))
    assert find_status(replace(result, stop=stop, is_final=False)) == "CANCELED"
    assert find_status(replace(result, stop=stop, is_final=True)) == "SUCCEEDED"
    assert find_status(replace(result, verdict="invalid_eval")) == "FAILED"


WORDS = {
    "required_metrics_passing",
    "score_threshold",
    "user_requested_stop",
    "no_improvement",
    "timeout",
    "budget_exhausted",
    "max_candidate_proposals",
    "max_tracked_candidates",
    "completed",
}


@pytest.mark.parametrize("kind", [*STOP_KINDS, "exhausted"])
async def test_every_stop_reason_has_a_word_of_agent_optimizer(kind: str) -> None:
    result, _ = await run()
    assert find_stop_reason(replace(result, stop=StopDecision(stop=True, reasons=(StopReason(kind, "x"),)))) in WORDS


async def test_the_reason_of_a_custom_stopper_is_its_own() -> None:
    result, _ = await run()
    stop = StopDecision(stop=True, reasons=(StopReason("slo_breach", "x"),))
    assert find_stop_reason(replace(result, stop=stop)) == "slo_breach"


async def test_prompts_are_named_after_their_nodes_in_the_order_of_the_structure() -> None:
    result, _ = await run()
    assert name_prompts(result) == NAMES
    tools = tuple(replace(each, type="tool", part="terms") for each in result.structure.surfaces[:1])
    others = replace(result, structure=replace(result.structure, surfaces=tools), targets=("draft#tool.terms",))
    assert name_prompts(others) == {"draft#tool.terms": "draft#tool.terms"}


async def test_what_follows_the_search_does_not_count_as_time_of_its_last_round() -> None:
    watcher = desk.Watcher()
    request = desk.request(objective="pass_rate")
    await desk.engine(desk.DRAFT | desk.POLISH).run(request, observers=[watcher])
    assert {"final_test"} <= {each.phase for each in watcher.events if each.round} & LATER_PHASES
    in_search = [each for each in watcher.events if each.round and each.phase not in LATER_PHASES]
    times = RoundTimes.read(watcher.events)
    assert times.ended == {1: in_search[-1].measured.elapsed_s}
