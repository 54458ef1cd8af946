"""Lessons: what runs of production say about the texts of an agent, and the patches that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt

from promptiter.profile import PatchSet
from promptiter.stages.optimizer import Rejection
from promptiter.structure import StructureSnapshot
from promptiter.tasks.failure_groups import FailureGroup
from promptiter.tasks.run_tally import SurfaceVersion
from promptiter.tasks.surface_matching import Matching

MIN_CHANGE = 3.0
"""How many standard errors the share of failed runs must rise for a change of a text to be named as its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceLesson:
    """What runs say about one surface. `evidence` is the number of runs behind it, each by how sure its blame is.

    `guessed` of the runs were blamed over guessed edges. `versions` are the texts that runs have read, the latest last.
    Times are None if the traces have none. A patch needs enough evidence (`is_supported`), and a live agent that has
    the surface, if there is one (`is_patchable`).
    """

    surface_id: str
    evidence: float
    case_ids: tuple[str, ...]
    guessed: int
    text: str
    first_ns: int | None
    last_ns: int | None
    versions: tuple[SurfaceVersion, ...] = ()
    is_patchable: bool = True
    is_supported: bool = True

    @property
    def worse_since(self) -> int | None:
        """The first version since which clearly more runs fail than before; None if there is no such change."""
        found = [
            (gap, at)
            for at in range(1, len(self.versions))
            if (gap := _compare_failures(self.versions[:at], self.versions[at:])) >= MIN_CHANGE
        ]
        return max(found)[1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What was learned. `surfaces` are ordered by evidence; `patches` are for those with enough of it.

    `left_out` counts runs by why they taught nothing. `blamed` is the number of failed runs whose blame was found,
    and `sampled` the number that it was looked for. `structure` is what the patches change: that of the live agent, or
    what the traces show, which is `recorded`; some of its edges may be guessed (`guessed_edges`). `stop_reason` is the
    cap of the budget, or `user_stop`, that ended the work early.
    """

    structure: StructureSnapshot
    recorded: StructureSnapshot
    guessed_edges: frozenset[tuple[str, str]] = frozenset()
    runs: int
    judged: int
    failed: int
    sampled: int
    blamed: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    groups: tuple[FailureGroup, ...] = ()
    surfaces: tuple[SurfaceLesson, ...] = ()
    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    matching: Matching | None = None
    notes: tuple[str, ...] = ()
    learned_from: frozenset[str] = frozenset()
    stop_reason: str | None = None


def _compare_failures(before: Sequence[SurfaceVersion], since: Sequence[SurfaceVersion]) -> float:
    """By how many standard errors the share of failed runs is higher in later versions."""
    (failed, runs), (failed_since, runs_since) = (
        (sum(each.failed for each in part), sum(each.runs for each in part)) for part in (before, since)
    )
    share = (failed + failed_since + 1) / (runs + runs_since + 2)
    return (failed_since / runs_since - failed / runs) / sqrt(share * (1 - share) * (1 / runs + 1 / runs_since))
