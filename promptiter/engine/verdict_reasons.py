"""Reasons of a verdict that no test gives: how much was tried, why nothing was, and what to change in the agent."""

from __future__ import annotations

from promptiter.engine.active_run import ActiveRun
from promptiter.evaluation.surface_reads import find_shared_prompts
from promptiter.wording import join_names, plural

MAX_NAMES = 5
"""Maximum number of surfaces that a reason names."""


def describe_tried(active: ActiveRun, cases: str) -> str:
    """Say how many candidates the search tried on some cases: not those that it rejected after train cases alone."""
    state = active.state
    count = decided = state.candidates_tried
    if active.shape == "two_sets" and state.validation_reader != "search":
        decided = state.validation_use.accepted + state.validation_use.rejected
    some = f", {decided} of them" if decided < count else ""
    return f"the search tried {plural(count, 'candidate')}{some} on {cases}"


def count_cases(active: ActiveRun) -> str:
    """The number of validation cases, in words."""
    what = "validation case" if active.shape == "two_sets" else "case"
    return plural(len(active.validation.cases), what)


def explain_no_acceptance(active: ActiveRun) -> str:
    """Say why a run accepted nothing."""
    if active.state.candidates_tried:
        return "no candidate was accepted"
    last = active.state.round
    if last is not None and last.skipped:
        return f"no candidate was tried: {last.skipped}"
    return "there was nothing to try"


def suggest_steps(active: ActiveRun) -> tuple[str, ...]:
    """Advise a step for each prompt if one step reads several of them and cases fail: blame cannot tell them apart."""
    rows = active.accepted.validation.rows
    if active.request.goal.kind != "score" or all(row.passed for row in rows):
        return ()
    shared = find_shared_prompts(active.snapshot, active.targets, (row.reads for row in rows))
    if not shared:
        return ()
    what = f"one step reads several prompts ({join_names(shared, limit=MAX_NAMES)}), so blame cannot tell them apart"
    if len({active.snapshot.surface(surface_id).node_id for surface_id in shared}) > 1:  # read by the agent as a whole
        return (f"{what}; let the agent call its models through promptiter's gateway, so that each call is a step",)
    return (f"{what}; open a step around each prompt: `with traces.step(...):`",)
