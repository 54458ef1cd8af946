"""The exit codes of all commands."""

from __future__ import annotations

from collections.abc import Mapping

from promptiter.cli.options import Layout, Requirement
from promptiter.runs.outcome import Outcome

FAILED, NOT_SHOWN, CANCELLED = 1, 8, 130

EXIT_CODES: Mapping[Outcome, int] = {
    "improved": 0,
    "improved_on_validation": 0,
    "baseline_only": 0,
    "target_reached": 0,
    "running": 0,
    "failed": FAILED,
    "no_evidence": 3,
    "underpowered": 4,
    "overfit_risk": 5,
    "budget_ended": 6,
    "invalid_eval": 7,
    "interrupted": CANCELLED,
    "stopped": CANCELLED,
    "cancelled": CANCELLED,
}
"""The exit code of `run`, `resume` and `rerun`, by the outcome of the run."""


LAYOUT_CODES: Mapping[Layout, Mapping[str, int]] = {
    "000": {"SUCCEEDED": 0, "FAILED": FAILED, "CANCELED": 2},
    "001": {"SUCCEEDED": 0, "FAILED": FAILED, "CANCELED": CANCELLED},
}
"""The exit codes of runs in a layout of other tools, by status: without an improvement, a run succeeds there."""


def choose_exit_code(outcome: Outcome, *, require: Requirement | None = None) -> int:
    """The exit code of an outcome. If `unseen` is required, every success but `improved` has the code NOT_SHOWN."""
    code = EXIT_CODES[outcome]
    return NOT_SHOWN if require == "unseen" and code == 0 and outcome != "improved" else code


def choose_stop_code(stop_reason: str) -> int:
    """The exit code of a measurement that ended early: because of the user, or of the budget."""
    return CANCELLED if stop_reason == "user_stop" else EXIT_CODES["budget_ended"]


EXIT_CODES_HELP = (
    "Exit codes: 0 improved, or the command succeeded; 1 failed, or below a threshold; 2 wrong usage or input; "
    "3 no evidence; 4 underpowered; 5 overfit risk; 6 budget ended; 7 invalid evaluation; 8 not shown for new cases "
    "(--require unseen); 130 cancelled."
)
