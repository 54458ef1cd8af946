"""The rows of trials.jsonl: one for each trial of a run, with what was tried, what it scored, and the decision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

from promptiter.errors import SetupError

FILE_NAME = "trials.jsonl"
TRAJECTORY = "trajectory.csv"
COLUMNS = (
    *("trial_id", "timestamp", "cycle", "phase", "axis_target", "train_mean", "train_std", "holdout_mean"),
    *("best_train", "best_holdout", "noise_bar", "accepted", "trial_usd", "duration_sec"),
)
NONE = "—"
"""What the table shows where a trial has no such value."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ReportSummary(_Record):
    """Figures of an evaluation. The pass rate is a percentage."""

    pass_rate: float | None = None
    average_scores: dict[str, float] = Field(default_factory=dict)


class Sweeps(_Record):
    """The losses of the sweeps of an eval set, and what they took in dollars and seconds."""

    report_summary: ReportSummary = ReportSummary()
    loss_components: dict[str, float] = Field(default_factory=dict)
    penalty_components: dict[str, float] = Field(default_factory=dict)
    loss: float | None = None
    loss_std: float | None = None
    loss_runs: tuple[float, ...] = ()
    errored_runs_excluded: int = 0
    duration_sec: float = 0.0
    trial_usd: float | None = 0.0


class TrialDecision(_Record):
    """Why a trial was accepted or rejected."""

    best_train_mean_before: float | None = None
    train_mean: float | None = None
    train_std: float | None = None
    train_improvement: float | None = None
    pooled_train_std: float | None = None
    accept_sigma: float | None = None
    noise_bar: float | None = None
    improvement_clears_noise: bool | None = None
    holdout_mean: float | None = None
    best_holdout_mean_before: float | None = None
    holdout_regression: float | None = None
    holdout_noise_bar: float | None = None
    holdout_within_noise: bool | None = None
    accepted: bool
    outcome: str
    reason: str


class StudyState(_Record):
    """Where the search was after a trial."""

    cycle: int
    phase: str
    numeric_study_id: str | None = None
    tpe_n_observations_this_study: int | None = None
    best_trial_id: int = 0


class TrialRow(_Record):
    """One trial. Trial 0 is the baseline."""

    trial_id: int
    timestamp: str
    cycle: int
    phase: str
    phase_trial: int = 0
    axis_target: str = NONE
    baseline_before_path: str | None = None
    proposal_source: dict[str, Any] | None = None
    candidate_path: str | None = None
    repeats: int
    train: Sweeps
    holdout: Sweeps | None = None
    decision: TrialDecision
    study_state: StudyState
    stages_usd: float | None = 0.0

    @property
    def trial_usd(self) -> float | None:
        """The dollars of the whole trial: train, hold-out, critic and applier; None if a part is unknown."""
        parts = [self.train.trial_usd, self.stages_usd, *([] if self.holdout is None else [self.holdout.trial_usd])]
        return None if None in parts else sum(each for each in parts if each is not None)

    @property
    def rationales(self) -> list[tuple[str, str]]:
        """What the critic and the applier said of each text, each on one line with its name, if they said anything."""
        source = self.proposal_source or {}
        critics, appliers = (
            source.get(f"{role}s") or ([source[role]] if source.get(role) else []) for role in ("critic", "applier")
        )
        by_axis = {each.get("axis"): {**each} for each in critics}
        for each in appliers:
            by_axis.setdefault(each.get("axis"), {}).update(each)
        texts = []
        for axis, said in by_axis.items():
            of = f" of {axis}" if len(by_axis) > 1 else ""
            texts += [
                (f"pattern{of}", said.get("failing_pattern")),
                (f"cause{of}", said.get("root_cause_hypothesis")),
                (f"direction{of}", said.get("suggested_change_direction")),
                (f"edit{of}", said.get("rationale") or said.get("diff_summary")),
            ]
        return [(name, " ".join(str(text).split())) for name, text in texts if text]

    @property
    def duration_sec(self) -> float:
        return self.train.duration_sec + (0.0 if self.holdout is None else self.holdout.duration_sec)


def write_rows(rows: Sequence[TrialRow]) -> bytes:
    """The content of trials.jsonl."""
    return b"".join(orjson.dumps(row.model_dump(mode="json")) + b"\n" for row in rows)


def read_rows(folder: Path) -> list[TrialRow]:
    """The rows of the folder of a run. SetupError if there are none."""
    try:
        lines = (folder / FILE_NAME).read_bytes().splitlines()
    except OSError as error:
        raise SetupError(f"{folder / FILE_NAME} cannot be read: {error.strerror or error}; name another run") from error
    return [TrialRow.model_validate_json(line) for line in lines if line.strip()]


def write_trajectory(rows: Sequence[TrialRow]) -> bytes:
    """The content of trajectory.csv."""
    lines = [",".join(COLUMNS)]
    best_train = best_holdout = None
    for row in rows:
        holdout = row.decision.holdout_mean
        if row.decision.accepted:
            best_train = row.train.loss
            best_holdout = best_holdout if holdout is None else holdout
        cells = (
            *(str(row.trial_id), row.timestamp, str(row.cycle), row.phase, _quote(row.axis_target)),
            *(_number(row.train.loss), _number(row.train.loss_std), _number(holdout)),
            *(_number(best_train), _number(best_holdout)),
            NONE if row.phase == "baseline" else _number(row.decision.noise_bar),
            str(row.decision.accepted).lower(),
            *("" if row.trial_usd is None else f"{row.trial_usd:.4f}", f"{row.duration_sec:.1f}"),
        )
        lines.append(",".join(cells))
    return ("\n".join(lines) + "\n").encode()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _quote(text: str) -> str:
    return f'"{text}"' if "," in text else text
