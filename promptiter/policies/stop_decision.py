"""StopDecision: whether a run stops, and why."""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.errors import SetupError

STOP_KINDS = (
    "required_metrics",
    "target_score",
    "user_stop",
    "test_now",
    "patience",
    "max_failures",
    "deadline",
    "max_metric_calls",
    "max_evaluations",
    "max_calls",
    "max_tokens",
    "max_usd",
    "max_candidate_proposals",
    "max_tracked_candidates",
    "max_rounds",
)
"""The kinds of stop reasons, the most informative first. Kinds of custom policies come after these."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """One reason to stop: its kind, and a text for the user."""

    kind: str
    text: str

    @property
    def sort_key(self) -> tuple[int, str, str]:
        rank = STOP_KINDS.index(self.kind) if self.kind in STOP_KINDS else len(STOP_KINDS)
        return (rank, self.kind, self.text)


@dataclass(frozen=True, slots=True)
class StopDecision:
    """Whether the run stops, and all reasons for it, in the order of STOP_KINDS."""

    stop: bool
    reasons: tuple[StopReason, ...] = ()

    def __post_init__(self) -> None:
        if self.stop != bool(self.reasons):
            raise SetupError(f"stop is {self.stop!r} with reasons {self.reasons!r}; give reasons exactly when it stops")
        object.__setattr__(self, "reasons", tuple(sorted(set(self.reasons), key=lambda reason: reason.sort_key)))

    @property
    def reason(self) -> str | None:
        """The kind that becomes the run's stop_reason; None if the run continues."""
        return self.reasons[0].kind if self.reasons else None

    @property
    def text(self) -> str:
        return "; ".join(reason.text for reason in self.reasons)

    @property
    def is_user_stop(self) -> bool:
        """Whether only the user stopped the run."""
        return self.stop and all(reason.kind == "user_stop" for reason in self.reasons)


CONTINUE = StopDecision(False)


def stop_if(condition: bool, kind: str, text: str) -> StopDecision:
    """Return a decision to stop for this reason if the condition holds, else CONTINUE."""
    return StopDecision(True, (StopReason(kind, text),)) if condition else CONTINUE
