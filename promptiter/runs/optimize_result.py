"""OptimizeResult and RoundRecord: a run as users of AgentOptimizer know it, and as result.json of its layout has it.

Names are snake_case in Python and camelCase in the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from promptiter.errors import SetupError
from promptiter.wording import plural
from traces.files import write_atomically

OptimizeStatus: TypeAlias = Literal["SUCCEEDED", "FAILED", "CANCELED"]
FinishReason: TypeAlias = Literal["completed", "perfect_pass_rate", "no_improvement", "error"]
RoundKind: TypeAlias = Literal["reflective", "merge"]

FILE_NAME = "result.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)

    def dump_to(self, path: str | os.PathLike[str]) -> None:
        """Write the record as JSON with camelCase keys, atomically."""
        with write_atomically(path) as file:
            file.write(self.model_dump_json(indent=2, by_alias=True).encode() + b"\n")


class RoundRecord(_Record):
    """One round. `failed_case_ids` and `metric_breakdown` are those of the candidate on validation, if it got there."""

    round: int
    kind: RoundKind = "reflective"
    started_at: str = ""
    duration_seconds: float = 0.0
    optimized_field_names: list[str] = Field(default_factory=list)
    candidate_prompts: dict[str, str] = Field(default_factory=dict)
    accepted: bool = False
    acceptance_reason: str = ""
    per_field_diagnosis: dict[str, str] = Field(default_factory=dict)
    validation_pass_rate: float = 0.0
    metric_breakdown: dict[str, float] = Field(default_factory=dict)
    failed_case_ids: list[str] = Field(default_factory=list)
    failed_cases_truncated: int = 0
    train_minibatch_size: int = 0
    train_subsample_parent_score: float | None = None
    train_subsample_candidate_score: float | None = None
    skip_reason: str | None = None
    error_message: str | None = None
    reflection_lm_calls: int = 0
    round_token_usage: dict[str, int] = Field(default_factory=dict)
    budget_used: int | None = None
    budget_total: int | None = None
    extras: dict[str, Any] = Field(default_factory=dict)


class OptimizeResult(_Record):
    """A finished run. The `best_prompts` are the adopted ones: those of the baseline if no improvement is shown.

    `stop_reason` is the condition that ended the search; None if the run failed. `verdict` is what the final test says,
    and `run_folder` has the whole record.
    """

    status: OptimizeStatus
    finish_reason: FinishReason
    stop_reason: str | None = None
    error_message: str = ""
    algorithm: str = ""
    baseline_pass_rate: float = 0.0
    best_pass_rate: float = 0.0
    pass_rate_improvement: float = 0.0
    baseline_metric_breakdown: dict[str, float] = Field(default_factory=dict)
    best_metric_breakdown: dict[str, float] = Field(default_factory=dict)
    metric_thresholds: dict[str, float] = Field(default_factory=dict)
    per_metric_best_candidates: dict[str, list[int]] = Field(default_factory=dict)
    baseline_prompts: dict[str, str] = Field(default_factory=dict)
    best_prompts: dict[str, str] = Field(default_factory=dict)
    total_rounds: int = 0
    rounds: list[RoundRecord] = Field(default_factory=list)
    total_reflection_lm_calls: int = 0
    total_token_usage: dict[str, int] = Field(default_factory=dict)
    duration_seconds: float = 0.0
    started_at: str = ""
    finished_at: str = ""
    total_metric_calls: int = 0
    rounds_accepted: int = 0
    merge_rounds_total: int = 0
    proposals_total: int = 0
    verdict: str = ""
    run_folder: str = ""
    schema_version: str = "v1"
    extras: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> OptimizeResult:
        """Read a result.json that `dump_to` wrote. SetupError if it is something else."""
        try:
            return cls.model_validate_json(Path(path).read_bytes())
        except OSError as error:
            raise SetupError(f"{os.fspath(path)!r} cannot be read: {error.strerror or error}") from error
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise SetupError(f"{os.fspath(path)!r} is not an OptimizeResult: {where}: {first['msg']}") from error

    def format_summary(self, *, output_dir: str | os.PathLike[str], update_source: bool) -> str:
        """The text of summary.txt."""
        what = "improved" if self.pass_rate_improvement > 0 else "unchanged"
        what = "worse" if self.pass_rate_improvement < 0 else what
        rates = (
            f"{self.baseline_pass_rate:.4f} -> {self.best_pass_rate:.4f} ({self.pass_rate_improvement:+.4f}, {what})"
        )
        lines = [
            f"Optimization complete | status={self.status} | algorithm={self.algorithm}",
            f"pass_rate     : {rates}",
            f"rounds        : {self.rounds_accepted} accepted / {self.total_rounds} total",
            f"duration      : {self.duration_seconds:.2f}s",
            f"stop_reason   : {self.stop_reason or 'none'}",
            f"verdict       : {self.verdict}",
            f"update_source : {str(update_source).lower()}",
            "",
            "metrics (baseline -> best, threshold):",
            *(self._format_metric(name) for name in self.metric_thresholds),
            "",
            "best prompts:",
            *(self._format_prompt(name) for name in self.best_prompts),
            "",
            f"artifacts in {os.fspath(output_dir)}: {', '.join(ARTIFACTS)}",
            f"the run itself is in {self.run_folder}",
        ]
        return "\n".join(lines) + "\n"

    def format_log_line(self) -> str:
        """The line of run.log, for tools that search logs."""
        return (
            f"{self.finished_at} status={self.status} algorithm={self.algorithm} "
            f"baseline={self.baseline_pass_rate:g} best={self.best_pass_rate:g} delta={self.pass_rate_improvement:+g} "
            f"rounds={self.total_rounds} stop_reason={self.stop_reason or 'none'} "
            f"duration_seconds={self.duration_seconds:.1f}\n"
        )

    def _format_metric(self, name: str) -> str:
        before, after = (each.get(name) for each in (self.baseline_metric_breakdown, self.best_metric_breakdown))
        shown = " -> ".join("unscored" if each is None else f"{each:.4f}" for each in (before, after))
        return f"  {name}: {shown} (threshold {self.metric_thresholds[name]:g})"

    def _format_prompt(self, name: str) -> str:
        text = self.best_prompts[name]
        changed = "unchanged" if text == self.baseline_prompts.get(name) else "changed"
        return f"  {name}: {plural(len(text), 'character')}, {changed}"


ARTIFACTS = (
    *(FILE_NAME, "summary.txt", "run.log", "config.snapshot.json"),
    *("rounds/", "baseline_prompts/", "best_prompts/"),
)
"""What the layout consists of, besides the folder of the run itself."""
