"""Outcome: how a run ended, or its current state, as one word and as a headline.

A finished run has a verdict. A run that failed, was stopped or is still running has none yet, and a run that only
evaluates the baseline never gets one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from promptiter.evaluation.stats.final_test import Look
from promptiter.policies.goals import GoalKind
from promptiter.policies.verdict import Conclusion, Verdict
from promptiter.runlog.results import RunResult

Outcome: TypeAlias = (
    Verdict | Literal["baseline_only", "target_reached", "running", "interrupted", "stopped", "cancelled", "failed"]
)
"""The verdict of a run, or why it has none. `target_reached`: the baseline was already good enough."""

SAVINGS: Mapping[GoalKind, str] = {"cheaper": "dollars", "fewer_tokens": "tokens"}
"""What goals other than the score save."""

_HEADLINES: Mapping[Outcome, str] = {
    "no_evidence": "No evidence of an improvement, nothing adopted",
    "underpowered": "Underpowered: too few or too noisy cases to show an improvement, nothing adopted",
    "overfit_risk": "Overfit risk: better on the cases of the search only, nothing adopted",
    "budget_ended": "The budget ended before the final test",
    "invalid_eval": "Invalid evaluation",
    "baseline_only": "Baseline",
    "target_reached": "Nothing to fix: the baseline reaches the target score",
    "running": "Running",
    "interrupted": "Interrupted",
    "stopped": "Stopped on request",
    "cancelled": "Cancelled",
    "failed": "Failed",
}
_IN_A_ROUND = frozenset(("running", "interrupted", "stopped", "cancelled", "failed"))


def classify_result(result: RunResult, *, is_held: bool = False) -> Outcome:
    """The outcome of a run. An unfinished run is `running` while a process holds it, otherwise `interrupted`."""
    if result.status in ("queued", "running"):
        return "running" if is_held else "interrupted"
    if result.status != "succeeded":
        return "failed" if result.status == "failed" else "cancelled"
    if result.stop_reason == "user_stop" and not result.is_final:
        return "stopped"
    return classify_end(result.verdict, rounds=len(result.rounds), stop_reason=result.stop_reason)


def classify_end(verdict: Verdict, *, rounds: int, stop_reason: str | None) -> Outcome:
    """The outcome of a run that succeeded: its verdict, unless no round was needed or requested."""
    if not rounds and stop_reason == "max_rounds":
        return "baseline_only"
    if not rounds and stop_reason in ("target_score", "required_metrics"):
        return "target_reached"
    return verdict


def write_headline(result: RunResult, outcome: Outcome) -> str:
    """The outcome as a phrase, with the cases it applies to."""
    saved = SAVINGS.get(result.goal.kind)
    if outcome in ("improved", "improved_on_validation"):
        return _describe_improvement(result, "Improved" if saved is None else f"Fewer {saved} and no worse")
    if outcome == "no_evidence" and result.conclusion is not None and result.conclusion.is_untested:
        return "Adopted without a final test, so there is no evidence of an improvement"
    if saved is not None and outcome in ("no_evidence", "underpowered"):
        if result.working_profile != result.initial_profile:
            return "A loss of quality could not be ruled out, nothing adopted"
        return f"No {saved} could be saved without a loss of quality, nothing adopted"
    if outcome == "target_reached" and result.baseline is not None:
        cases = result.baseline.cases
        scored = sum(case.is_scored for case in cases)
        if scored < len(cases):
            return f"Nothing to fix in the {scored} of {len(cases)} cases that could be scored"
    where = f" in round {len(result.rounds)}" if outcome in _IN_A_ROUND and result.rounds else ""
    return f"{_HEADLINES[outcome]}{where}"


def _describe_improvement(result: RunResult, what: str) -> str:
    if result.scope == "new cases":
        return f"{what} on new cases"
    if result.scope == "this scorer":
        return f"{what} by this scorer"
    learned = ", which the search learned from" if result.shape == "one_set" else ""
    cases = "cases" if result.conclusion is None else f"{result.conclusion.cases} cases"
    return f"{what} on these {cases}{learned}"


def explain_outcome(result: RunResult, outcome: Outcome) -> str:
    """The reason for the outcome in a few words: a p-value, or why a run tested nothing."""
    if outcome == "failed":
        return result.error or "unknown error"
    if outcome in ("invalid_eval", "budget_ended", "interrupted", "running", "cancelled", "stopped"):
        return _describe_cause(result, outcome)
    if result.conclusion is None or outcome in ("baseline_only", "target_reached"):
        return ""
    return _describe_evidence(result.conclusion)


def _describe_cause(result: RunResult, outcome: Outcome) -> str:
    if outcome in ("invalid_eval", "budget_ended"):
        reasons = result.conclusion.reasons if result.conclusion is not None else ()
        if result.stop is None or reasons:
            return "; ".join(reasons[:2])
        return result.stop.text.removeprefix("the budget has ended: ")  # the headline says that
    return "accepted changes are not tested yet" if result.changes else ""


def _describe_evidence(conclusion: Conclusion) -> str:
    if not conclusion.results:
        return conclusion.reasons[0] if conclusion.reasons else ""
    shown = [each for each in conclusion.results if each.scope == conclusion.scope] or conclusion.results[-1:]
    look = shown[-1].looks[-1] if shown[-1].looks else None
    return shown[-1].reason if look is None else _describe_look(look)


def _describe_look(look: Look) -> str:
    if look.gain <= -look.margin:
        return "no gain" if not look.margin else "worse by more than the margin"
    if look.has_run_noise or look.test in ("sign", "bounded_mean"):  # over cases, repeats are no evidence
        return f"p = {look.p_value:.2g}"
    return "same in every repeat" if look.is_shown else "too few repeats to rule out noise"
