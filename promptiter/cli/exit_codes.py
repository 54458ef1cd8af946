"""The exit codes of all commands."""

from __future__ import annotations

from collections.abc import Mapping

from promptiter.runs.outcome import Outcome

FAILED, CANCELLED = 1, 130

EXIT_CODES: Mapping[Outcome, int] = {
    "improved": 0,
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

EXIT_CODES_HELP = (
    "Exit codes: 0 improved, or the command succeeded; 1 failed, or below a threshold; 2 wrong usage or input; "
    "3 no evidence; 4 underpowered; 5 overfit risk; 6 budget ended; 7 invalid evaluation; 130 cancelled."
)
