"""SurfaceEvidence: one surface of a run: what changed and why, or what was blamed there and what became of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from promptiter.runs.blame_summary import BlameSummary
from promptiter.runs.hunk_evidence import HunkEvidence, read_hunks
from promptiter.runs.round_summary import RejectionSummary
from promptiter.runs.summary import read_result, summarize_stored


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceEvidence:
    """A surface and the hunks of its change: adopted if `is_adopted`, otherwise accepted so far.

    `blame` has the signals of all rounds, `rejections` the patches of this surface that were not accepted. A change
    that was accepted and dropped again because it contributed nothing `is_removed`. Only a target may change.
    """

    surface_id: str
    hunks: tuple[HunkEvidence, ...] = ()
    is_adopted: bool = False
    blame: BlameSummary | None = None
    rejections: tuple[RejectionSummary, ...] = ()
    is_removed: bool = False
    is_target: bool = True
    is_read: bool = True


def read_surface(folder: str | os.PathLike[str], surface_id: str) -> SurfaceEvidence:
    """Read the evidence of a surface from the folder of a run; UnknownSurfaceError if its agent has no such surface."""
    result = read_result(folder)
    result.structure.surface(surface_id)
    summary = summarize_stored(result, Path(folder))
    return SurfaceEvidence(
        surface_id=surface_id,
        hunks=read_hunks(result).get(surface_id, ()),
        is_adopted=summary.adopted,
        blame=next((each for each in summary.blame if each.surface_id == surface_id), None),
        rejections=tuple(each for each in summary.rejections if surface_id in each.surface_ids),
        is_removed=surface_id in summary.removed,
        is_target=surface_id in summary.targets,
        is_read=surface_id not in summary.unread,
    )
