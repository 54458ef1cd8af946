"""run.json of the layout: what a run began with, and at its end why it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from promptiter.errors import SetupError
from promptiter.runlog.results import RunResult
from promptiter.runs.trial_phases import PhaseSummary, TrialPhases
from promptiter.wording import plural

FILE_NAME = "run.json"

EXIT_REASONS: Mapping[str, str] = {
    "deadline": "max_minutes",
    "max_usd": "max_usd",
    "bound": "max_usd",  # a call that cost more than was reserved for it
    "user_stop": "interrupted",
    "test_now": "interrupted",
    "invalid_eval": "error",
}
"""Why a run ended, by its stop reason. Others have the same name."""

PHASE_REASONS: Mapping[str, str] = {"converged": "convergence", "exhausted": "exhaustion"}


class PhaseExit(BaseModel):
    """Why a phase ended: by a limit of its own, or by what ended the run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cycle: int
    phase: str
    trials: int
    accepted: int
    gain: float
    exit_reason: str


class LayoutHeader(BaseModel):
    """run.json. The fields about the end are added when the run has ended."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run_id: str
    started_at: str = ""
    promptiter_version: str
    baseline_agent_path: str
    baseline_sha256: str
    seed: int
    optimizer_config: dict[str, Any] = Field(default_factory=dict)
    train_cases_count: int = 0
    holdout_cases_count: int = 0
    subagents: dict[str, Any] = Field(default_factory=dict)
    run_folder: str = ""
    exit_reason: str | None = None
    phase_exit_reasons: tuple[PhaseExit, ...] = ()
    verdict: str | None = None
    duration_sec: float | None = None
    total_usd: float | None = None

    def write(self) -> bytes:
        """The content of the file."""
        fields = self.model_dump(mode="json", exclude_none=True)
        return orjson.dumps(fields, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def read_layout_header(folder: Path) -> LayoutHeader:
    """The header of the folder of a run. SetupError if there is none."""
    try:
        return LayoutHeader.model_validate_json((folder / FILE_NAME).read_bytes())
    except (OSError, ValueError) as error:
        raise SetupError(f"{folder} has no readable {FILE_NAME}: {error}; name the folder of a run") from error


def describe_cases(header: LayoutHeader) -> str:
    """The number of cases of a run, and whether the hold-out is used."""
    count = header.holdout_cases_count
    is_skipped = count > 0 and header.optimizer_config.get("holdout_eval_policy") == "skip"
    held = plural(count, "hold-out case") + " (not used)" * is_skipped
    return f"{plural(header.train_cases_count, 'train case')}, {held}"


def add_end(header: LayoutHeader, result: RunResult) -> LayoutHeader:
    """The header with why the run and its phases ended."""
    found = TrialPhases()
    for each in result.rounds:
        found.add(each)
    phases = found.summarize().phases
    exit_reason = find_exit_reason(result, phases)
    return header.model_copy(
        update={
            "exit_reason": exit_reason,
            "phase_exit_reasons": tuple(_describe_phase(each, exit_reason) for each in phases),
            "verdict": result.verdict,
            "duration_sec": round(result.measured.duration_s, 3),
            "total_usd": result.measured.spent.of_models.cost_usd,
        }
    )


def find_exit_reason(result: RunResult, phases: Sequence[PhaseSummary]) -> str:
    """Why a run ended: a dry cycle, the maximum of cycles, a budget, an interrupt or an error."""
    if result.status == "failed":
        return "error"
    if result.status == "cancelled" or (result.status == "running" and result.stop_reason is None):
        return "interrupted"
    reason = result.stop_reason or "interrupted"
    if reason not in ("exhausted", "max_rounds"):
        return EXIT_REASONS.get(reason, reason)
    if phases and phases[-1].ended == "stopped":
        return reason
    last = max((each.cycle for each in phases), default=0)
    if not any(each.accepted for each in phases if each.cycle == last):
        return "dry_cycle"
    return "max_cycles"


def _describe_phase(phase: PhaseSummary, exit_reason: str) -> PhaseExit:
    return PhaseExit(
        cycle=phase.cycle,
        phase=phase.phase,
        trials=phase.trials,
        accepted=phase.accepted,
        gain=phase.gain,
        exit_reason=exit_reason if phase.ended == "stopped" else PHASE_REASONS.get(phase.ended, phase.ended),
    )
