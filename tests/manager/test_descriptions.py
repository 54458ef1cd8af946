from __future__ import annotations

from dataclasses import replace

from promptiter.manager.descriptions import describe_end
from promptiter.policies.stop_decision import StopDecision, StopReason
from promptiter.testing.store_hooks import make_result


def test_the_end_of_a_run_is_logged_in_the_words_of_the_list_of_runs() -> None:
    result = make_result()
    result = replace(result, measured=replace(result.measured, duration_s=2.4))
    unfinished = replace(result, is_final=False, rounds=result.rounds[:1])

    def stop(kind: str) -> StopDecision:
        return StopDecision(stop=True, reasons=(StopReason(kind=kind, text="it was asked for"),))

    assert describe_end(result) == "succeeded: no evidence, 2 rounds, 2 s"
    reached = replace(result, rounds=(), stop=stop("target_score"))
    assert describe_end(reached) == "succeeded: target reached, 0 rounds, 2 s"
    assert describe_end(replace(unfinished, stop=stop("user_stop"))) == "stopped: 1 round, 2 s"
    assert describe_end(replace(unfinished, status="cancelled", stop=None)) == "cancelled: 1 round, 2 s"
    failed = replace(unfinished, status="failed", error="no luck", stop=None)
    assert describe_end(failed) == "failed: 'no luck', 1 round, 2 s"
    assert "the next server continues it" in describe_end(replace(unfinished, status="running"))
