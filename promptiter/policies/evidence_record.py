"""EvidenceRecord: the evidence of a decision as the run log has it, by reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from promptiter.evaluation.result import Evaluation, Objective
from promptiter.policies.evidence import Evidence
from promptiter.policies.pairing import leave_out_lost_pairs, renumber_repeats


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRecord:
    """What a policy saw, by reference: the evaluations of each profile by number, each with its cases (None: all).

    The change cannot reach the `unaffected` cases. `looks` is how often the policy was asked. With the rows of these
    evaluations, the decision can be made again, or another policy can be tried.
    """

    accepted: Mapping[int, tuple[str, ...] | None] = field(default_factory=dict)
    candidate: Mapping[int, tuple[str, ...] | None] = field(default_factory=dict)
    unaffected: tuple[str, ...] = ()
    objective: Objective = "mean_score"
    round: int = 0
    candidates_tried: int = 1
    protected: tuple[str, ...] = ()
    first_look_repeats: int = 1
    characters: tuple[int, int] | None = None
    accepted_gain: float = 0.0
    looks: int = 1
    train: EvidenceRecord | None = None

    def build_evidence(self, accepted: Evaluation, candidate: Evaluation, *, train: Evidence | None = None) -> Evidence:
        """Build the evidence of these rows, and of the evidence on train."""
        accepted, candidate = leave_out_lost_pairs(
            *renumber_repeats(accepted, candidate, unaffected=frozenset(self.unaffected))
        )
        return Evidence(
            accepted=accepted,
            candidate=candidate,
            objective=self.objective,
            round=self.round,
            candidates_tried=self.candidates_tried,
            protected=frozenset(self.protected),
            first_look_repeats=self.first_look_repeats,
            train=train,
            characters=self.characters,
            accepted_gain=self.accepted_gain,
        )
