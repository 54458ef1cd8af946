"""What the search `edits` records: what its mutator wrote, and which candidates no other one dominates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from promptiter.backprop.record import StagesMeasured
from promptiter.profile import PatchSet
from promptiter.runlog.events import Payload, event_type


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """What a mutator made of one profile: patches, or why there are none.

    `refused` are edits that are not allowed, each with its path. If there are any, there are no patches. `vetoed` are
    patches that a reviewer refused. A mutation is `is_exhausted` if its mutator has nothing left to try. `has_failed`
    means that the mutator itself did not work.
    """

    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[str, ...] = ()
    vetoed: PatchSet = field(default_factory=PatchSet)
    note: str = ""
    is_exhausted: bool = False
    has_failed: bool = False

    @property
    def problem(self) -> str:
        """Why there is no candidate; empty if there is one."""
        if self.patches:
            return ""
        return "; ".join([*self.refused, *([self.note] if self.note else [])]) or "nothing was changed"


@event_type("mutations")
@dataclass(frozen=True, slots=True, kw_only=True)
class MutationsWritten(Payload):
    """The mutations of a round, in the order of their numbers."""

    mutations: tuple[Mutation, ...] = ()
    measured: StagesMeasured = field(default_factory=StagesMeasured)


@event_type("front")
@dataclass(frozen=True, slots=True, kw_only=True)
class FrontChanged(Payload):
    """The candidates that no other one dominates, by digest, with their figures of the objectives."""

    members: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
